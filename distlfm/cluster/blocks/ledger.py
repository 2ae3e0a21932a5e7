"""Decide who has which block, and what is known of it: the part that all pools share. It knows of no process.

`BlockLedger` hands out blocks and takes back what became of them. `Schedule` says which block is next and how long the
rest will take: the block that costs most goes first, because with several workers the long ones then do not stick out
at the end. Costs are measured: `Rates` learns the seconds of a size from blocks that are done, and a first guess only
says which blocks are alike. `Share` is one part of a job's blocks, for those who work beside each other without a
driver over them.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from distlfm.cluster.blocks.job import BlockDone, BlockRetried, Event, Failure, Job, RowsSetAside
from distlfm.cluster.blocks.rescue import Phase, Rescue, Run
from distlfm.errors import UsageError


@dataclass(frozen=True)
class Share:
    """Part `part` of `parts`, counted from 1."""

    part: int
    parts: int

    def __str__(self) -> str:
        return f"{self.part}/{self.parts}"

    def blocks(self, num_blocks: int) -> range:
        """Its blocks of `num_blocks`: every `parts`-th, so that dear and cheap ones are mixed."""
        return range(self.part - 1, num_blocks, self.parts)


def share_of(text: str) -> Share:
    """The share that a text such as `2/16` names."""
    match = re.fullmatch(r"(\d+)/(\d+)", text.strip())
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"{text!r} is not a part of the work.", "Give --part I/N with I from 1 to N, such as 2/16.")
    return Share(int(match[1]), int(match[2]))


KINDS_A_DOUBLING = 4
"""Sizes within a quarter of a doubling are of one kind."""

LEAST_SECONDS = 1e-6
"""No clock is finer."""


def kind_of(weight: float) -> int:
    """Which sizes are alike."""
    return round(KINDS_A_DOUBLING * math.log2(weight))


class Rates:
    """Seconds a unit of weight, for each kind of size: measured, or between those of the next kinds that were.

    measured: the seconds and the weight of all blocks of a kind. Before anything is measured every rate is one.
    """

    def __init__(self) -> None:
        self.measured: dict[int, tuple[float, float]] = {}

    def learn(self, weight: float, seconds: float) -> None:
        """Take note that a block of this weight took `seconds`."""
        kind = kind_of(weight)
        before = self.measured.get(kind, (0.0, 0.0))
        self.measured[kind] = (before[0] + max(seconds, LEAST_SECONDS), before[1] + weight)

    def of(self, kind: int) -> float:
        """The rate of a kind; between two that were measured it is a power of the size."""
        if not self.measured:
            return 1.0
        above = min((one for one in self.measured if one >= kind), default=max(self.measured))
        below = kind if above == kind else max((one for one in self.measured if one < kind), default=above)
        if below == above:
            return self._rate(above)
        share = (kind - below) / (above - below)
        return float(self._rate(below) ** (1 - share) * self._rate(above) ** share)

    def _rate(self, kind: int) -> float:
        seconds, weight = self.measured[kind]
        return seconds / weight


MIDWAY = 0.5
"""A block in hand is taken to be half done."""

WORTH_A_LOOK = 8
"""With this many blocks per kind to try, trying the smallest and a middling one early costs little of the order."""


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
        if kind is None or kind not in self._waiting or kind in self._rates.measured:
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
        """Seconds until all is done by this number of workers; NaN before any block is measured.

        No schedule is shorter than the even share of the work, nor than the longest block; this is the longer of both.
        """
        if not self._rates.measured:
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


DOUBTED_BLOCKS, DOUBTED_ROWS = 2, 64
"""If this many blocks, with this many rows, fail as a wrong call does and none has worked, the call is wrong."""

RETURNS = 3
"""Workers that an action may lose with their nodes, in a row: one more, and it may be what ends nodes."""


class BlockLedger:
    """Blocks of a job on their way to done. Several may be in rescue at once.

    left: blocks that are not done. proven: some block, now or in an earlier try, has been done with at least one row.
    """

    def __init__(self, job: Job, blocks: Sequence[int]) -> None:
        past = job.past()
        self._job = job
        self._schedule = Schedule(blocks, job.sizes(), past.seconds)
        self._again: deque[Rescue] = deque()
        self._alone: deque[Rescue] = deque()
        self._doubted: list[Rescue] = []
        self._lost: list[Rescue] = []
        self._in_hand = 0
        self.left = len(self._schedule)
        self.proven = past.answered

    @property
    def waiting(self) -> int:
        """Blocks that a worker could take now."""
        return len(self._again) + len(self._schedule) or int(self.solitary and self._in_hand == 0)

    @property
    def solitary(self) -> bool:
        """Is nothing left but blocks that are done one at a time, with all memory for themselves?"""
        return bool(self._alone) and not self._again and not len(self._schedule)

    def take(self) -> Rescue | None:
        """What to do next: blocks that have failed come first, so that a run that cannot work ends early."""
        if self._again:
            rescue = self._again.popleft()
        elif (block := self._schedule.next()) is not None:
            rescue = Rescue(block, self._job.count(block))
        elif self._alone and self._in_hand == 0:
            rescue = self._alone.popleft()
        else:
            return None
        self._in_hand += 1
        return rescue

    def give_back(self, rescue: Rescue) -> bool:
        """Its worker was lost without any fault of the block: the same once more.

        False if that has happened too often to be chance: then it has to be recorded as a failure.
        """
        rescue.returned += 1
        if rescue.returned > RETURNS:
            return False
        self._in_hand -= 1
        (self._alone if rescue.alone else self._again).appendleft(rescue)
        return True

    def record(
        self,
        rescue: Rescue,
        report: Mapping[str, Any],
        failure: Failure | None,
        seconds: float,
        worker: str,
        workers: int,
    ) -> Iterator[Event]:
        """Take note of how the action of a block went, which took `seconds`. Raises what ends the whole run."""
        whole = isinstance(rescue.action, Run)
        self._in_hand -= 1
        rescue.feed(failure, self.proven)
        if rescue.phase is Phase.DONE:
            answered = len(rescue.left_out) < rescue.count
            self.left -= 1
            self.proven = self.proven or answered
            self._schedule.done(rescue.block, seconds if answered else None)
            if rescue.left_out:
                yield RowsSetAside(rescue.block, dict(rescue.left_out))
            yield BlockDone(rescue.block, report, worker, self._schedule.time_left(workers))
        elif not rescue.finished and rescue.phase is not Phase.DOUBT and failure is not None and whole:
            yield BlockRetried(rescue.block, failure.reason)
        self._sort(rescue)
        self._judge()

    def _sort(self, rescue: Rescue) -> None:
        """Put a block where it waits for what comes next."""
        if rescue.phase is Phase.DOUBT:
            self._doubted.append(rescue)
        elif rescue.phase is Phase.LOST:
            self._lost.append(rescue)
        elif not rescue.finished and rescue.alone:
            self._alone.appendleft(rescue)
        elif not rescue.finished:
            self._again.append(rescue)
        elif rescue.error is not None:
            raise rescue.error.error()

    def _judge(self) -> None:
        """What becomes of blocks in doubt, and of lost ones when nothing else is left."""
        if self.proven:
            for rescue in self._doubted:
                rescue.trust()
            self._again.extend(self._doubted)
            self._doubted = []
        rows = sum(rescue.count for rescue in self._doubted)
        nothing_else = self.left == len(self._doubted) + len(self._lost)
        many = len(self._doubted) >= DOUBTED_BLOCKS and rows >= DOUBTED_ROWS
        for rescue in [*self._doubted, *self._lost]:
            if rescue.error is not None and (nothing_else or (many and rescue.phase is Phase.DOUBT)):
                raise rescue.error.error()
