"""Blocks spread over Ray actors, on one machine or a cluster.

The driver keeps all that is known of a block, and an actor only follows its orders: so any of them may be killed at
any moment, and what it had in hand is done again elsewhere.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from distlfm.cluster.blocks.job import (
    GRACE_SECONDS,
    BlockRetried,
    Event,
    Failure,
    Job,
    Pool,
    Started,
    WorkerLost,
    death,
)
from distlfm.cluster.blocks.ledger import BlockLedger
from distlfm.cluster.blocks.rescue import Run
from distlfm.cluster.machine import MEBIBYTE, free_bytes
from distlfm.cluster.ray.actors import Crew, Member, MemberLost
from distlfm.cluster.ray.session import RayEnded, RaySession
from distlfm.errors import UsageError, WorkError
from distlfm.runtime.process import Stop

START_SECONDS = 300.0
"""Without any worker for so long, the work is given up."""

WAIT_SECONDS = 0.1
"""A stop is noticed within this time."""

RECOUNT_SECONDS = 5.0
"""How often the cluster's nodes are counted: they may come and go."""

OPEN_TRIES = 3
"""Number of workers in a row that may fail to open, while none is open, before the work is given up."""

WORKER_BYTES = 400 * MEBIBYTE
"""What the process of a worker takes before it has a block."""

SIGNAL_SECONDS = 0.5
"""The end of a batch job ends Ray's own processes too, perhaps a moment before its signal reaches this one."""


class RayPool(Pool):
    """Workers are Ray actors, as many as are asked for; otherwise one for every CPU, as far as memory is known to do.

    workers: those that are up.
    """

    def __init__(
        self,
        session: RaySession,
        workers: int | None = None,
        grace: float = GRACE_SECONDS,
        patience: float = START_SECONDS,
    ) -> None:
        self.session = session
        self.grace = grace
        self.patience = patience
        self._asked = workers
        self._free = free_bytes() if session.local else None  # once: workers that are up have taken theirs
        self.workers = 0

    def planned(self, job: Job, num_blocks: int) -> int:
        """Number of workers that a job with `num_blocks` gets."""
        nodes = self.session.node_cpus().values()
        if job.cpus > max(nodes, default=0):
            raise UsageError(
                f"A worker of this job takes {job.cpus} CPUs, and the largest node has {max(nodes, default=0)}.",
                "Give a worker fewer CPUs, or use larger nodes.",
            )
        return max(1, min(num_blocks, self.room(job)))

    def room(self, job: Job) -> int:
        """How many workers of this job the nodes that are alive could hold, no more than were asked for."""
        room = sum(cpus // job.cpus for cpus in self.session.node_cpus().values())
        if self._asked is not None:
            return min(room, self._asked)
        if self._free is None or not job.memory:
            return room
        return min(room, max(1, self._free // (job.memory + WORKER_BYTES)))

    def work(self, job: Job, blocks: Sequence[int], stop: Stop) -> Iterator[Event]:
        """See Pool."""
        if not blocks or stop.requested:
            return
        shift = _Shift(self, job, blocks)
        try:
            yield from shift.work(stop)
        except RayEnded:
            time.sleep(SIGNAL_SECONDS)
            if not stop.requested:
                raise
        finally:
            shift.crew.end(polite=shift.ledger.left == 0)
            self.workers = 0


class _Shift:
    """One call of `RayPool.work`."""

    def __init__(self, pool: RayPool, job: Job, blocks: Sequence[int]) -> None:
        self.pool = pool
        self.job = job
        self.ledger = BlockLedger(job, blocks)
        self.crew = Crew(pool.session, job)
        self._room = self._wanted = pool.planned(job, len(blocks))
        self._counted = self._alive = time.monotonic()
        self._failed_opens = self._unusable = 0

    def work(self, stop: Stop) -> Iterator[Event]:
        """Until all is done or a stop is asked for."""
        while self.ledger.left and not stop.requested:
            self._man()
            for member in self.crew.idle:
                rescue = self.ledger.take()
                if rescue is None:
                    break
                member.ask(rescue)
                if isinstance(rescue.action, Run):
                    yield Started(rescue.block, member.name)
            answered = self.crew.wait(WAIT_SECONDS)
            if stop.requested:
                break
            for member in answered:
                yield from self._heed(member)
        if self.ledger.left:
            yield from self._leave()

    def _man(self) -> None:
        """As many members as there are places and blocks for."""
        now = time.monotonic()
        if now - self._counted > RECOUNT_SECONDS:
            self._room, self._counted = self.pool.room(self.job), now
        places = min(self._room, max(1, self._room - self._unusable))
        wanted = min(places, self.ledger.waiting + len(self.crew.busy))
        self._wanted = max(1, wanted)
        spare = self.crew.starting + (self.crew.idle if self.ledger.solitary else [])  # those hold memory
        for member in spare[: max(0, len(self.crew.members) - wanted)]:
            self.crew.dismiss(member)
        while len(self.crew.members) < wanted:
            self.crew.hire()
        self.pool.workers = self.crew.up
        if self.crew.up:
            self._alive = now
        elif now - self._alive > self.pool.patience:
            raise WorkError(
                f"No worker could be started for {self.pool.patience:.0f} s.",
                "The cluster's CPUs may be taken by others, or its nodes gone; the same command goes on later.",
            )

    def _heed(self, member: Member) -> Iterator[Event]:
        """A member has answered."""
        since, rescue = member.since, member.rescue
        try:
            report, failure = self.crew.answer(member)
        except MemberLost as lost:
            if not self.crew.doubt(member, lost):
                yield from self._replace(member, lost)
            return
        if rescue is None:
            yield from self._opened(member, report, failure)
            return
        member.rescue = None
        seconds = time.monotonic() - since
        yield from self.ledger.record(rescue, report, failure, seconds, member.name, self._wanted)

    def _opened(self, member: Member, report: dict[str, str], failure: Failure | None) -> Iterator[Event]:
        if failure is None:
            member.name, member.node = report["name"], report["node"]
            self._failed_opens = 0
            self.pool.workers = self.crew.up
            return
        self.crew.dismiss(member)
        self._unopened(failure)
        yield WorkerLost("a new worker", failure.reason)

    def _unopened(self, failure: Failure) -> None:
        """Where others work, a place in which none can be opened is not tried again; where none does, the run ends."""
        if self.crew.up:
            self._unusable += 1
            return
        self._failed_opens += 1
        deliberate = failure.family not in ("other", "death")
        if deliberate or self._failed_opens >= OPEN_TRIES:
            raise failure.error()

    def _replace(self, member: Member, lost: MemberLost) -> Iterator[Event]:
        """A member is gone; another is made when there is work for it."""
        verdict = self.crew.verdict(member, lost)
        self.crew.dismiss(member)
        self.pool.workers = self.crew.up
        yield WorkerLost(member.name or "a new worker", verdict.why)
        if member.rescue is None:
            if not verdict.blameless:
                self._unopened(death(f"No worker can be started: {verdict.why}."))
        elif verdict.blameless and self.ledger.give_back(member.rescue):
            yield BlockRetried(member.rescue.block, verdict.why)
        else:
            seconds = time.monotonic() - member.since
            failure = death(f"it takes its worker down: {verdict.why}", verdict.starved)
            yield from self.ledger.record(member.rescue, {}, failure, seconds, member.name, self._wanted)

    def _leave(self) -> Iterator[Event]:
        """A stop was asked for: blocks in hand may be finished for a while, and nothing new is begun."""
        until = time.monotonic() + self.pool.grace
        for member in list(self.crew.members):
            if member.rescue is None or not isinstance(member.rescue.action, Run):
                self.crew.dismiss(member)
        while self.crew.members and (rest := until - time.monotonic()) > 0:
            for member in self.crew.wait(min(WAIT_SECONDS, rest)):
                try:
                    report, failure = self.crew.answer(member)
                except MemberLost:
                    failure = death("")
                self.crew.dismiss(member)
                if failure is None and member.rescue is not None:
                    seconds = time.monotonic() - member.since
                    yield from self.ledger.record(member.rescue, report, None, seconds, member.name, self._wanted)
