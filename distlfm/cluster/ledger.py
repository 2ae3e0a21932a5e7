"""Who has which block, and what is known of it: the part that all pools share. It knows of no process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distlfm.cluster.failure import Failure
from distlfm.cluster.job import Job
from distlfm.cluster.pool import BlockDone, BlockRetried, Event, RowsSetAside
from distlfm.cluster.rescue import Phase, Rescue, Run
from distlfm.cluster.schedule import Schedule

DOUBTED_BLOCKS, DOUBTED_ROWS = 2, 64
"""If so many blocks with so many rows together fail as a wrong call does, and none has worked, the call is wrong."""

RETURNS = 3
"""Workers that an action may lose with their nodes, in a row: one more, and it may be what ends nodes."""


class Ledger:
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
        rescue = self._next()
        self._in_hand += rescue is not None
        return rescue

    def _next(self) -> Rescue | None:
        if self._again:
            return self._again.popleft()
        block = self._schedule.next()
        if block is not None:
            return Rescue(block, self._job.count(block))
        return self._alone.popleft() if self._alone and self._in_hand == 0 else None

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
        """How the action of a block went, that took so many seconds. Raises what ends the whole run."""
        whole = isinstance(rescue.action, Run)
        self._in_hand -= 1
        rescue.feed(failure, self.proven)
        if rescue.phase is Phase.DONE:
            yield from self._done(rescue, report, seconds, worker, workers)
        elif not rescue.finished and rescue.phase is not Phase.DOUBT and failure is not None and whole:
            yield BlockRetried(rescue.block, failure.reason)
        self._sort(rescue)
        self._judge()

    def _done(
        self, rescue: Rescue, report: Mapping[str, Any], seconds: float, worker: str, workers: int
    ) -> Iterator[Event]:
        answered = len(rescue.left_out) < rescue.count
        self.left -= 1
        self.proven = self.proven or answered
        self._schedule.done(rescue.block, seconds if answered else None)
        if rescue.left_out:
            yield RowsSetAside(rescue.block, dict(rescue.left_out))
        yield BlockDone(rescue.block, report, worker, self._schedule.time_left(workers))

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
