"""Who has which block, and what is known of it: the part that all pools share. It knows of no process."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distlfm.cluster.failure import Failure
from distlfm.cluster.job import Job
from distlfm.cluster.pool import BlockDone, BlockRetried, Event, RowsSetAside
from distlfm.cluster.rescue import Rescue, Run
from distlfm.cluster.schedule import Schedule


class Ledger:
    """Blocks of a job on their way to done. Several may be in rescue at once.

    left: blocks that are not done. proven: some block has been done with at least one row.
    """

    def __init__(self, job: Job, blocks: Sequence[int]) -> None:
        self._job = job
        self._schedule = Schedule(blocks, job.sizes())
        self._again: deque[Rescue] = deque()
        self.left = len(self._schedule)
        self.proven = False

    @property
    def waiting(self) -> int:
        """Blocks that a worker could take now."""
        return len(self._again) + len(self._schedule)

    def take(self) -> Rescue | None:
        """What to do next: blocks that have failed come first, so that a run that cannot work ends early."""
        if self._again:
            return self._again.popleft()
        block = self._schedule.next()
        return None if block is None else Rescue(block, self._job.count(block))

    def give_back(self, rescue: Rescue) -> None:
        """Its worker was lost without any fault of the block: the same once more."""
        self._again.appendleft(rescue)

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
        rescue.feed(failure, self.proven)
        if rescue.error is not None:
            raise rescue.error.error()
        if not rescue.finished:
            self._again.append(rescue)
            if failure is not None and whole:
                yield BlockRetried(rescue.block, failure.reason)
            return
        self.left -= 1
        self.proven = self.proven or len(rescue.left_out) < rescue.count
        self._schedule.done(rescue.block, seconds)
        if rescue.left_out:
            yield RowsSetAside(rescue.block, dict(rescue.left_out))
        yield BlockDone(rescue.block, report, worker, self._schedule.time_left(workers))
