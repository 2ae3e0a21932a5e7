"""Which block comes next, and how long the rest will take.

The block that costs most goes first: with several workers, the long ones then don't stick out at the end. What a block
costs is measured: a first guess only says which blocks are alike.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from distlfm.cluster.rates import Rates, kind_of

MIDWAY = 0.5
"""A block in hand is taken to be half done."""

WORTH_A_LOOK = 8
"""With so many blocks a kind to try, trying the smallest and a middling one early costs little of the order."""


class Schedule:
    """Blocks by falling cost, as it is expected from blocks that are done.

    weights: [number of all blocks of the job], indexed by block: a guess of what each costs. Blocks of equal weight
    keep their order. measured: seconds of blocks that were done before.
    """

    def __init__(
        self, blocks: Iterable[int], weights: Sequence[float], measured: Mapping[int, float] | None = None
    ) -> None:
        self._weights = {block: _usable(weights[block]) for block in blocks}
        self._rates = Rates()
        for block, seconds in (measured or {}).items():
            self._rates.learn(_usable(weights[block]), seconds)
        self._waiting: dict[int, deque[int]] = {}
        for block in sorted(self._weights, key=lambda block: (-self._weights[block], block)):
            self._waiting.setdefault(kind_of(self._weights[block]), deque()).append(block)
        self._totals = {kind: sum(self._weights[block] for block in alike) for kind, alike in self._waiting.items()}
        self._in_hand: set[int] = set()
        self._looks = self._first_looks()

    def __len__(self) -> int:
        """Blocks that nobody has taken yet."""
        return sum(len(alike) for alike in self._waiting.values())

    def next(self) -> int | None:
        """Take the block that is expected to cost most, after a first look at each size; None when all are taken."""
        if not self._waiting:
            return None
        kind = next(self._looks, None)
        if kind is None or kind not in self._waiting or self._rates.knows(kind):
            kind = max(self._waiting, key=lambda kind: (self._cost(self._waiting[kind][0], kind), kind))
        alike = self._waiting[kind]
        block = alike.popleft()
        self._totals[kind] -= self._weights[block]
        if not alike:
            del self._waiting[kind], self._totals[kind]
        self._in_hand.add(block)
        return block

    def done(self, block: int, seconds: float | None) -> None:
        """A block that was taken is done. seconds: what it took, or None if that says nothing of the others."""
        self._in_hand.discard(block)
        if seconds is not None:
            self._rates.learn(self._weights[block], seconds)

    def time_left(self, workers: int) -> float:
        """Seconds until all is done by so many workers; NaN before any block is measured.

        No schedule is shorter than the even share of the work, nor than the longest block; this is the longer of both.
        """
        if not self._rates:
            return math.nan
        in_hand = [MIDWAY * self._cost(block, kind_of(self._weights[block])) for block in self._in_hand]
        longest = [self._cost(alike[0], kind) for kind, alike in self._waiting.items()] or in_hand
        waiting = sum(max(0.0, total) * self._rates.of(kind) for kind, total in self._totals.items())
        return max((waiting + sum(in_hand)) / max(1, workers), max(longest, default=0.0))

    def _cost(self, block: int, kind: int) -> float:
        return self._weights[block] * self._rates.of(kind)

    def _first_looks(self) -> Iterator[int]:
        """The kinds to begin with: the largest, the smallest and one between, if there is enough to gain by it."""
        kinds = sorted(self._waiting)
        looks = list(dict.fromkeys([kinds[-1], kinds[0], kinds[len(kinds) // 2]])) if kinds else []
        return iter(looks if len(self) >= WORTH_A_LOOK * len(looks) else [])


def _usable(weight: float) -> float:
    """A guess that says nothing counts as one."""
    return float(weight) if math.isfinite(weight) and weight > 0 else 1.0
