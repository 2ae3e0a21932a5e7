"""Ray actors of one job: made, asked and ended one by one.

`Crew` is the driver's side. An actor that dies is never restarted by Ray, which would hand it the same deadly block for
ever: the pool makes a new one, and decides what that does. `Host` runs inside an actor: one worker of a job, whose
answers are plain text.
"""

from __future__ import annotations

import ctypes
import json
import os
import pickle
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from distlfm.cluster.blocks.job import Failure, Job, Worker, failure_of
from distlfm.cluster.blocks.rescue import Action, Rescue
from distlfm.cluster.blocks.serial import perform
from distlfm.cluster.machine import adopt_import_path, import_environment, import_path
from distlfm.cluster.ray.session import RaySession
from distlfm.optional import require

PR_SET_PDEATHSIG = 1


class Host:
    """Holds the worker of one process.

    path: where the driver imports from. job: pickled; it is opened by `open`, so that what fails there can be reported.
    """

    def __init__(self, path: Sequence[str], job: bytes) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches all; the driver decides
        signal.signal(signal.SIGTERM, signal.SIG_DFL)  # Ray's handler raises SystemExit into whatever runs
        die_with_parent()
        adopt_import_path(path)
        self._job = job
        self._worker: Worker | None = None

    def open(self) -> str:
        """Open the worker; says which process this is."""
        try:
            job = pickle.loads(self._job)  # noqa: S301 (made by the driver that made this actor)
            assert isinstance(job, Job)
            self._worker = job.open()
        except Exception as error:
            return encode({}, failure_of(error))
        node = require("ray", extra="ray").get_runtime_context().get_node_id()
        return encode({"name": f"{socket.gethostname()}:{os.getpid()}", "node": node}, None)

    def perform(self, action: Action) -> str:
        """Do a piece of work."""
        assert self._worker is not None
        return encode(*perform(self._worker, action))

    def ping(self) -> None:
        """Be there."""

    def close(self) -> None:
        """Let go of what the worker holds."""
        if self._worker is not None:
            self._worker.close()


def die_with_parent() -> None:
    """Be killed when the process that started this one ends.

    Without it a worker whose node was given up would go on with its block, and store it while another does the same.
    """
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def encode(report: Mapping[str, Any], failure: Failure | None) -> str:
    """An outcome as text."""
    return json.dumps({"report": report, "failure": None if failure is None else asdict(failure)})


def decode(text: str) -> tuple[dict[str, Any], Failure | None]:
    """An outcome from its text."""
    outcome = json.loads(text)
    failure = outcome["failure"]
    return outcome["report"], None if failure is None else Failure(**failure)


THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
CLOSE_SECONDS = 3.0
DOUBT_SECONDS = 60.0
"""How long it may take until Ray knows whether a member that cannot be reached is dead."""

DOUBT_PAUSE = 0.1
NODE_DIED = "its node has died"
"""What Ray says of an actor whose node is gone, if it never came up."""

STARVED = "its process was ended because the memory of its node was used up"
UNEXPECTED = "its process ended unexpectedly (killed from outside, out of memory, or a crash in compiled code)"


class Member:
    """One actor: starting while `name` is empty, then idle, or busy while it has a `rescue`.

    call: the answer that is awaited. since: when it was asked for. doubted: since when it cannot be reached.
    group: the places reserved for its processes.
    """

    def __init__(self, actor: Any, group: Any) -> None:
        self.actor, self.group = actor, group
        self.name = self.node = ""
        self.rescue: Rescue | None = None
        self.call: Any = actor.open.remote()
        self.since = time.monotonic()
        self.doubted: float | None = None

    def ask(self, rescue: Rescue) -> None:
        """Give it a block's next action."""
        self.rescue = rescue
        self.call = self.actor.perform.remote(rescue.action)
        self.since = time.monotonic()


class MemberLost(Exception):
    """A member gives no answer; `Crew.verdict` says what that means."""


@dataclass(frozen=True)
class Verdict:
    """Why a member is gone. blameless: its node went, so nothing is known against what it did.

    starved: its node had no memory left, whoever had taken it.
    """

    why: str
    blameless: bool
    starved: bool = False


class Crew:
    """The members that work on one job."""

    def __init__(self, session: RaySession, job: Job) -> None:
        self._session, self._ray, self._job = session, session.ray, job
        cloudpickle = require("ray.cloudpickle", extra="ray")
        self._arguments = (import_path(), cloudpickle.dumps(job))
        self._host = self._ray.remote(Host)
        self.members: list[Member] = []

    @property
    def busy(self) -> list[Member]:
        """Those with work in hand."""
        return [member for member in self.members if member.rescue is not None]

    @property
    def idle(self) -> list[Member]:
        """Those that wait for work."""
        return [member for member in self.members if member.call is None]

    @property
    def starting(self) -> list[Member]:
        """Those whose process is not up yet."""
        return [member for member in self.members if not member.name]

    @property
    def up(self) -> int:
        """How many have a process that is up."""
        return len(self.members) - len(self.starting)

    def hire(self) -> None:
        """One more member."""
        job = self._job
        threads = str(1 if job.grouped else job.cpus)
        group, place = self._reserve() if job.grouped else (None, "SPREAD")
        actor = self._host.options(
            num_cpus=1 if job.grouped else job.cpus,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy=place,
            runtime_env={"env_vars": dict.fromkeys(THREADS, threads) | import_environment()},
        ).remote(*self._arguments)
        self.members.append(Member(actor, group))

    def _reserve(self) -> tuple[Any, Any]:
        """A place for each process of a member's group, all on one node; the actor takes the first."""
        group = require("ray.util", extra="ray").placement_group([{"CPU": 1}] * self._job.cpus, strategy="STRICT_PACK")
        strategies = require("ray.util.scheduling_strategies", extra="ray")
        return group, strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)

    def wait(self, seconds: float) -> list[Member]:
        """Those that have answered, after this time at the latest."""
        calls = {member.call: member for member in self.members if member.call is not None}
        if not calls:
            time.sleep(seconds)
            return []
        ready, _ = self._ray.wait(list(calls), num_returns=1, timeout=seconds)
        if ready:
            ready, _ = self._ray.wait(list(calls), num_returns=len(calls), timeout=0)
        return [calls[call] for call in ready]

    def answer(self, member: Member) -> tuple[dict[str, Any], Failure | None]:
        """What a member that has answered says; it is free then. Raises Lost, from Ray's error if there is one."""
        call, member.call = member.call, None
        try:
            answer = self._ray.get(call)
        except self._ray.exceptions.RayError as error:
            raise MemberLost from error
        if member.doubted is not None:  # it lives, but what it was asked before is lost
            raise MemberLost
        return decode(answer)

    def doubt(self, member: Member, lost: MemberLost) -> bool:
        """Is it unknown yet whether a lost member is dead? Then it is asked again: it answers, or is lost for good."""
        if not isinstance(lost.__cause__, self._ray.exceptions.ActorUnavailableError):
            return False
        now = time.monotonic()
        member.doubted = member.doubted or now
        if now - member.doubted > DOUBT_SECONDS:
            return False
        time.sleep(DOUBT_PAUSE)
        member.call = member.actor.ping.remote()
        return True

    def verdict(self, member: Member, lost: MemberLost) -> Verdict:
        """Why a member is gone. Raises RayEnded."""
        error, nodes = lost.__cause__, self._session.node_cpus()
        if (member.node and member.node not in nodes) or NODE_DIED in str(error):
            return Verdict("its node is gone", blameless=True)
        if error is None or isinstance(error, self._ray.exceptions.ActorUnavailableError):
            return Verdict("it could not be reached for a while", blameless=True)
        text = str(error).strip()
        if getattr(error, "actor_init_failed", False):
            return Verdict(f"it could not start: {text.splitlines()[-1]}", blameless=False)
        if isinstance(error, self._ray.exceptions.OutOfMemoryError) or "low on memory" in text:
            return Verdict(STARVED, blameless=False, starved=True)
        return Verdict(UNEXPECTED, blameless=False)

    def dismiss(self, member: Member) -> None:
        """End a member at once, whatever it does, and give its places back."""
        self.members.remove(member)
        if self._session.reachable():
            self._release(member)

    def _release(self, member: Member) -> None:
        with suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(member.actor)
        if member.group is not None:
            require("ray.util", extra="ray").remove_placement_group(member.group)

    def end(self, polite: bool) -> None:
        """End all. polite: those that are idle may first let go of what they hold."""
        if not self._session.reachable():
            return
        closing = [member.actor.close.remote() for member in self.idle] if polite else []
        if closing:
            self._ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for member in self.members:
            self._release(member)
