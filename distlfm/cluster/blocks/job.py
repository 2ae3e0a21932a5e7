"""What is to be done, cut into blocks: a job describes it and opens workers, a worker does one block after another.

Neither knows who calls it: a serial pool opens one worker in its own process, a Ray pool one in each actor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Past:
    """What earlier tries at a job have left. seconds: that blocks took which are done, by block.

    answered: the call has proven right, as some row of theirs did not fail.
    """

    seconds: Mapping[int, float] = field(default_factory=dict)
    answered: bool = False


class Worker(ABC):
    """Does blocks of a job, in one process. A block has rows `0 .. count - 1`, one an instance."""

    @abstractmethod
    def run(self, block: int, left_out: Mapping[int, str]) -> Mapping[str, Any]:
        """Do a block and store it; a block that is stored already is left as it is.

        left_out: rows that are not tried, with the reason that is stored for them.
        Returns a small report of plain values, with at least `count`, `failed` and `seconds`.
        """

    @abstractmethod
    def attempt(self, block: int, rows: Sequence[int]) -> None:
        """The same work for some rows of a block, and nothing is stored: raises what those rows raise."""

    def close(self) -> None:  # noqa: B027 (most workers hold nothing)
        """Let go of what the worker holds."""


class Job(ABC):
    """A description that can be pickled, and is opened in each worker's process.

    cpus: what a worker takes, as threads or as processes of its own.
    grouped: a worker starts `cpus` processes of its own, so their places are reserved together on one node.
    memory: bytes that a block in hand takes, about; 0 if that is little.
    """

    num_blocks: int
    cpus: int = 1
    grouped: bool = False
    memory: int = 0

    @abstractmethod
    def sizes(self) -> Sequence[float]:
        """[num_blocks]: a first guess of what each block costs, in any unit."""

    @abstractmethod
    def count(self, block: int) -> int:
        """Number of rows of a block."""

    def past(self) -> Past:
        """What is known from earlier tries; nothing by default."""
        return Past()

    @abstractmethod
    def open(self) -> Worker:
        """A worker in this process."""
