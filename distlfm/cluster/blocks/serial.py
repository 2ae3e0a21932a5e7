"""One worker in this very process: needs no Ray, and is what every other pool must agree with.

`perform` does one action with a worker; what it raises, and what it reports, comes back as plain data.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Iterator, Sequence
from typing import Any

from distlfm.cluster.blocks.job import GRACE_SECONDS, Event, Failure, Job, Pool, Started, Worker, failure_of
from distlfm.cluster.blocks.ledger import BlockLedger
from distlfm.cluster.blocks.rescue import Action, Attempt, Run
from distlfm.runtime.process import BrokenOff, Stop


def perform(worker: Worker, action: Action) -> tuple[dict[str, Any], Failure | None]:
    """The worker's report and None, or nothing and its failure."""
    try:
        if isinstance(action, Attempt):
            worker.attempt(action.block, action.rows)
            return {}, None
        report = worker.run(action.block, action.left_out)
        plain: dict[str, Any] = json.loads(json.dumps(dict(report), default=_plain))
        return plain, None
    except (Exception, SystemExit) as error:  # a library that calls exit() ends no one but its row
        return {}, failure_of(error)


def _plain(value: Any) -> Any:
    """A scalar of numpy or torch as Python's; of anything else its text."""
    return value.item() if hasattr(value, "item") else str(value)


class SerialPool(Pool):
    """Blocks one after another; after a stop was asked for, the one in hand may be finished for `grace` seconds."""

    def __init__(self, grace: float = GRACE_SECONDS) -> None:
        self.workers = 1
        self.grace = grace

    def work(self, job: Job, blocks: Sequence[int], stop: Stop) -> Iterator[Event]:
        """See Pool."""
        if not blocks or stop.requested:
            return
        ledger = BlockLedger(job, blocks)
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
