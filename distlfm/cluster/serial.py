"""One worker in this very process: needs no Ray, and is what every other pool must agree with."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from distlfm.cluster.failure import Failure, failure_of
from distlfm.cluster.job import Job, Worker
from distlfm.cluster.pool import BlockDone, BlockRetried, Event, Pool, RowsSetAside, Started
from distlfm.cluster.rescue import Action, Attempt, Rescue, Run
from distlfm.cluster.schedule import Schedule
from distlfm.runtime.signals import Stop


class SerialPool(Pool):
    """Blocks one after another; a stop is heeded between two of them."""

    workers = 1

    def work(self, job: Job, blocks: Sequence[int], stop: Stop) -> Iterator[Event]:
        """See Pool."""
        if not blocks or stop.requested:
            return
        schedule = Schedule(blocks, job.sizes())
        name = f"{socket.gethostname()}:{os.getpid()}"
        proven = False
        worker = job.open()
        try:
            while (block := schedule.next()) is not None:
                rescue = Rescue(block, job.count(block))
                while not rescue.finished:
                    if stop.requested:
                        return
                    action = rescue.action
                    if isinstance(action, Run):
                        yield Started(block, name)
                    since = time.monotonic()
                    report, failure = perform(worker, action)
                    rescue.feed(failure, proven)
                    if failure is not None and isinstance(action, Run) and not rescue.finished:
                        yield BlockRetried(block, failure.reason)
                if rescue.error is not None:
                    raise rescue.error.error()
                schedule.done(block, time.monotonic() - since)
                proven = proven or len(rescue.left_out) < rescue.count
                if rescue.left_out:
                    yield RowsSetAside(block, rescue.left_out)
                yield BlockDone(block, report, name, schedule.time_left(self.workers))
        finally:
            worker.close()


def perform(worker: Worker, action: Action) -> tuple[Mapping[str, Any], Failure | None]:
    """Do one action; what it raises comes back as plain data."""
    try:
        if isinstance(action, Attempt):
            worker.attempt(action.block, action.rows)
            return {}, None
        return dict(worker.run(action.block, action.left_out)), None
    except Exception as error:
        return {}, failure_of(error)
