"""Seconds that blocks of a size take, learned from those that are done."""

from __future__ import annotations

import math
from bisect import bisect_left

KINDS_A_DOUBLING = 4
"""Sizes within a quarter of a doubling are of one kind."""

LEAST_SECONDS = 1e-6
"""No clock is finer."""


def kind_of(weight: float) -> int:
    """Which sizes are alike."""
    return round(KINDS_A_DOUBLING * math.log2(weight))


class Rates:
    """Seconds a unit of weight, for each kind of size: measured, or between those of the next kinds that were.

    Falsy before anything is measured; every rate is one then.
    """

    def __init__(self) -> None:
        self._measured: dict[int, tuple[float, float]] = {}
        self._kinds: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._measured)

    def knows(self, kind: int) -> bool:
        """Was any of this kind measured?"""
        return kind in self._measured

    def learn(self, weight: float, seconds: float) -> None:
        """A block of this weight took so many seconds."""
        kind = kind_of(weight)
        before = self._measured.get(kind, (0.0, 0.0))
        self._measured[kind] = (before[0] + max(seconds, LEAST_SECONDS), before[1] + weight)
        self._kinds = sorted(self._measured)

    def of(self, kind: int) -> float:
        """The rate of a kind; between two that were measured it is a power of the size."""
        if not self._kinds:
            return 1.0
        place = bisect_left(self._kinds, kind)
        above = self._kinds[min(place, len(self._kinds) - 1)]
        below = self._kinds[max(place - 1, 0)] if above != kind else kind
        if below == above:
            return self._rate(above)
        share = (kind - below) / (above - below)
        return float(self._rate(below) ** (1 - share) * self._rate(above) ** share)

    def _rate(self, kind: int) -> float:
        seconds, weight = self._measured[kind]
        return seconds / weight
