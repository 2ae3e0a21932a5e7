"""What processes that train together are given to do."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from distlfm.lfo.ranks import Ranks


class RankTask(ABC):
    """Done by all ranks alike; it can be pickled, and opens on the spot what cannot."""

    @abstractmethod
    def __call__(self, ranks: Ranks, stop: Callable[[], bool]) -> dict[str, Any]:
        """Do it. Gives plain data, of which the first rank's counts. stop: asked between steps; ranks may differ."""
