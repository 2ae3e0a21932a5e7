"""Work off the blocks of a job by whoever is there, with progress for people and for machines.

What the markers of a store say is known to those who go on with it (`StoreJob.past`).
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from distlfm.cluster.blocks.job import (
    BlockDone,
    BlockRetried,
    Event,
    Job,
    Past,
    Pool,
    RowsSetAside,
    Started,
    WorkerLost,
)
from distlfm.cluster.blocks.ledger import Share
from distlfm.cluster.blocks.serial import SerialPool
from distlfm.errors import Stopped
from distlfm.runs.settings import WorkConfig
from distlfm.runtime.process import Signalled, Stop, raised
from distlfm.runtime.reporting import Reporter, Task, append_line, watched
from distlfm.solvers.field.meshed import close_helper_groups
from distlfm.store import Store, write_progress
from distlfm.store.files import storing
from distlfm.store.metadata import is_store


def past_of(store: Store) -> Past:
    """Seconds of the blocks that are done, and whether a row of theirs was worked on to its end, well or badly."""
    markers = store.markers()
    seconds = {block: marker.seconds for block, marker in markers.items() if marker.seconds is not None}
    return Past(seconds, any(marker.statuses.get("failed", 0) < marker.count for marker in markers.values()))


class StoreJob(Job):
    """A job whose blocks are those of a store."""

    store: Store

    @property
    def num_blocks(self) -> int:  # type: ignore[override]
        return self.store.spec.num_blocks

    def count(self, block: int) -> int:
        return len(self.store.block_range(block))

    def past(self) -> Past:
        return past_of(self.store)


@dataclass(frozen=True)
class Fleet:
    """What is worked on. what: the verb; command: what the user types to go on; folder: where events are written.

    worth: the number of blocks that is worth the seconds that Ray takes to start, where nobody asks for it. share: what
    is worked on here, while others work on the rest; all blocks by default. named: the name of an instance by its
    number.
    """

    what: str
    job: Job
    store: Store
    command: str
    folder: Path
    worth: int = 2
    share: Share | None = None
    named: Callable[[int], str] = str

    @property
    def blocks(self) -> range:
        """Those that are worked on here."""
        count = self.store.spec.num_blocks
        return range(count) if self.share is None else self.share.blocks(count)

    @property
    def total(self) -> int:
        """Instances in them."""
        return sum(len(self.store.block_range(block)) for block in self.blocks)

    @property
    def events(self) -> Path:
        """The file of events: each part has its own, as shared file systems mix up lines of several writers."""
        part = f"-{self.share.part}-of-{self.share.parts}" if self.share else ""
        return self.folder / f"events{part}.jsonl"

    def missing(self) -> list[int]:
        """Blocks that are still to be done here."""
        return sorted(set(self.store.missing()) & set(self.blocks))

    def failed(self) -> int:
        """Instances without an answer among those that are done here."""
        done = self.store.markers()
        return sum(done[block].failed for block in self.blocks if block in done)


def run_blocks(fleet: Fleet, config: WorkConfig, reporter: Reporter) -> None:
    """Do every block that is missing. Raises Stopped if a signal ended it before all were done."""
    store, missing, total = fleet.store, fleet.missing(), fleet.total
    left = sum(len(store.block_range(block)) for block in missing)
    if left < total:
        reporter.say(f"{total - left} of {total} instances are there already; {left} are left.")
    if not missing:
        return
    with (
        Stop() as stop,
        _pool(fleet, len(missing), config, reporter) as pool,
        reporter.task(fleet.what, total, total - left) as task,
        watched(task.tell),  # a worker in this process is heard; those of Ray are elsewhere
    ):
        watch = _Watch(fleet, pool, total - left, task, reporter)
        for event in pool.work(fleet.job, missing, stop):
            watch.see(event)
        watch.end()
    if stop.requested and fleet.missing():
        raise Stopped(stop.signal or signal.SIGINT, f"after {watch.done} of {total} instances", fleet.command)


@contextmanager
def resumable(store: Path, command: str) -> Iterator[None]:
    """Signals outside the blocks, while data are read or the report is written, end the work with a sentence too.

    store: where it is, or will be; command: what goes on once it is there.
    """
    try:
        with raised():
            yield
    except (Signalled, KeyboardInterrupt) as ended:
        which = ended.which if isinstance(ended, Signalled) else signal.SIGINT
        if not is_store(store):
            raise Stopped(which, "before the first block was begun", "give the same command again.") from None
        opened = Store.open(store)
        done, total = sum(marker.count for marker in opened.markers().values()), opened.spec.instances
        unsaid = ", before summary and report were written" if opened.spec.kind == "fit" else ""
        when = f"after {done} of {total} instances" if done < total else f"after all {total} instances{unsaid}"
        raise Stopped(which, when, command) from None


@contextmanager
def _pool(fleet: Fleet, num_blocks: int, config: WorkConfig, reporter: Reporter) -> Iterator[Pool]:
    """Who does the work: Ray where it is installed and there is enough to do, else this process."""
    wants_ray = config.executor == "ray" or (config.executor == "auto" and config.address is not None)
    enough = num_blocks >= fleet.worth and config.workers != 1
    alone = fleet.share is None  # whoever has a part of the work has one core of many
    may_ray = config.executor == "auto" and alone and enough and find_spec("ray") is not None
    if not wants_ray and not may_ray:
        yield SerialPool()
        return
    from distlfm.cluster.ray.pool import RayPool
    from distlfm.cluster.ray.session import ray_session

    close_helper_groups()  # the driver opened the mesh of a field to make the store; from here on workers have it
    with ray_session(config.address) as session:
        pool = RayPool(session, config.workers)
        reporter.say(f"Ray: {pool.planned(fleet.job, num_blocks)} workers on {session.words}")
        yield pool


class _Watch:
    """Turns events into progress: a bar or lines for people, JSON lines and a small file for machines."""

    def __init__(self, fleet: Fleet, pool: Pool, done: int, task: Task, reporter: Reporter) -> None:
        self.fleet, self.pool, self.task, self.reporter = fleet, pool, task, reporter
        self.done, self.failed = done, fleet.failed() if done else 0
        self._before = done
        self._began = time.monotonic()
        self._running: dict[int, str] = {}
        self._left = math.nan
        self._tell("started")

    def see(self, event: Event) -> None:
        if isinstance(event, Started):
            self._running[event.block] = event.worker
            self._tell("block_started", block=event.block, worker=event.worker)
        elif isinstance(event, BlockDone):
            self._running.pop(event.block, None)
            count, failed = int(event.report["count"]), int(event.report["failed"])
            self.done, self.failed, self._left = self.done + count, self.failed + failed, event.time_left
            workers = f"{self.pool.workers} worker{'s' if self.pool.workers > 1 else ''}"
            self.task.advance(count, f"{workers}, {self.failed} failed" if self.failed else workers)
            self._tell("block_done", block=event.block, worker=event.worker, report=dict(event.report))
        elif isinstance(event, BlockRetried):
            self._running.pop(event.block, None)
            self.reporter.warn(f"block {event.block} is tried again: {event.why}")
            self._tell("block_retried", block=event.block, why=event.why)
        elif isinstance(event, RowsSetAside):
            first = self.fleet.store.block_range(event.block).start
            ids = {row: self.fleet.named(first + row) for row in event.reasons}
            for row, reason in event.reasons.items():
                self.reporter.warn(f"{ids[row]} (row {row} of block {event.block}) is set aside: {reason}")
            self._tell("set_aside", block=event.block, reasons=dict(event.reasons), ids=ids)
        elif isinstance(event, WorkerLost):
            self.reporter.warn(f"worker {event.worker} is lost: {event.why}")
            self._tell("worker_lost", worker=event.worker, why=event.why)

    def end(self) -> None:
        """The last word."""
        self._running.clear()
        self._tell("ended")

    def _tell(self, event: str, **more: Any) -> None:
        seconds = max(time.monotonic() - self._began, 1e-9)
        state = {
            "done": self.done,
            "total": self.fleet.total,
            "failed": self.failed,
            "rate": (self.done - self._before) / seconds,
            "left_s": None if math.isnan(self._left) else self._left,
            "workers": self.pool.workers,
            "running": sorted(self._running),
        }
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        with storing("an event", self.fleet.folder):
            append_line(self.fleet.events, json.dumps({"time": now, "event": event, **state, **more}))
        driver = {"host": socket.gethostname(), "pid": os.getpid()}
        part = str(self.fleet.share or "")
        write_progress(self.fleet.store.path, {"time": now, "what": self.fleet.what, **driver, **state}, part)
