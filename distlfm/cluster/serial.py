"""One worker in this very process: needs no Ray, and is what every other pool must agree with."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator, Sequence

from distlfm.cluster.job import Job
from distlfm.cluster.ledger import Ledger
from distlfm.cluster.perform import perform
from distlfm.cluster.pool import GRACE_SECONDS, Event, Pool, Started
from distlfm.cluster.rescue import Run
from distlfm.runtime.signals import BrokenOff, Stop


class SerialPool(Pool):
    """Blocks one after another; after a stop was asked for, the one in hand may be finished for `grace` seconds."""

    def __init__(self, grace: float = GRACE_SECONDS) -> None:
        self.workers = 1
        self.grace = grace

    def work(self, job: Job, blocks: Sequence[int], stop: Stop) -> Iterator[Event]:
        """See Pool."""
        if not blocks or stop.requested:
            return
        ledger = Ledger(job, blocks)
        name = f"{socket.gethostname()}:{os.getpid()}"
        worker = job.open()
        try:
            while not stop.requested and (rescue := ledger.take()) is not None:
                if isinstance(rescue.action, Run):
                    yield Started(rescue.block, name)
                since = time.monotonic()
                try:
                    with stop.limit(self.grace):
                        report, failure = perform(worker, rescue.action)
                except BrokenOff:
                    return
                yield from ledger.record(rescue, report, failure, time.monotonic() - since, name, self.workers)
        finally:
            worker.close()
