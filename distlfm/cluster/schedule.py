"""Which block comes next, and how long the rest will take.

The block that costs most goes first: with several workers, the long ones then don't stick out at the end.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

MIDWAY = 0.5
"""A block in hand is taken to be half done."""


class Schedule:
    """Blocks by falling weight; the seconds that a unit of weight takes are learned from blocks that are done.

    weights: [number of all blocks of the job], indexed by block. Blocks of equal weight keep their order.
    """

    def __init__(self, blocks: Iterable[int], weights: Sequence[float]) -> None:
        self._weights = {block: _usable(weights[block]) for block in blocks}
        self._waiting = [(-weight, block) for block, weight in self._weights.items()]
        heapq.heapify(self._waiting)
        self._waiting_weight = sum(self._weights.values())
        self._in_hand: set[int] = set()
        self._done_seconds = 0.0
        self._done_weight = 0.0

    def __len__(self) -> int:
        """Blocks that nobody has taken yet."""
        return len(self._waiting)

    def next(self) -> int | None:
        """Take the block that is expected to cost most; None when all are taken."""
        if not self._waiting:
            return None
        weight, block = heapq.heappop(self._waiting)
        self._waiting_weight += weight
        self._in_hand.add(block)
        return block

    def done(self, block: int, seconds: float) -> None:
        """A block that was taken is done."""
        self._in_hand.discard(block)
        self._done_seconds += seconds
        self._done_weight += self._weights[block]

    def seconds(self, block: int) -> float:
        """What a block is expected to take; NaN before any is done."""
        return self._weights[block] * self._rate()

    def time_left(self, workers: int) -> float:
        """Seconds until all is done by so many workers; NaN before any block is done.

        No schedule is shorter than the even share of the work, nor than the longest block; this is the longer of both.
        """
        in_hand = [self._weights[block] * MIDWAY for block in self._in_hand]
        longest = max([-self._waiting[0][0]] if self._waiting else in_hand, default=0.0)
        weight = max(max(0.0, self._waiting_weight) + sum(in_hand), 0.0)
        return max(weight / max(1, workers), longest) * self._rate()

    def _rate(self) -> float:
        return self._done_seconds / self._done_weight if self._done_weight > 0 else math.nan


def _usable(weight: float) -> float:
    """A guess that says nothing counts as one."""
    return float(weight) if math.isfinite(weight) and weight > 0 else 1.0
