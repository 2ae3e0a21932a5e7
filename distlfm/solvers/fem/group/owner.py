"""A helper group: long-lived MPI ranks that hold meshes, matrices and factors, and the owner's side of talking to them.

The owner, which is the process that runs a fit, never loads MPI. It starts the ranks and listens; each rank dials in on
a connection of its own and blocks there between requests, so idle ranks use no processor. A request goes to all ranks
and each of them answers. Some requests must be heard again by a group that was started anew.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import selectors
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, Self

from distlfm.errors import DistlfmError, MissingExtra, UsageError, WorkError
from distlfm.solvers.fem.group.launcher import LauncherName
from distlfm.solvers.fem.group.starting import RunningGroup, Settings, TransportName, start_ranks
from distlfm.solvers.fem.group.wire import Array, Message, PeerGone, WireError

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class Request:
    """arrays: the same for all ranks, or those of each."""

    verb: str
    header: Mapping[str, Any]
    arrays: Arrays | Sequence[Arrays]


@dataclass(frozen=True)
class Reply:
    """What one rank answered."""

    rank: int
    header: Mapping[str, Any]
    arrays: Arrays


START_SECONDS = 60.0
GRACE_SECONDS = 15.0
"""How long the other ranks may be silent after one has failed."""
CLOSE_SECONDS = 3.0
SLICE_SECONDS = 0.2
SERVICE = "distlfm.solvers.fem.group.service"

_log = logging.getLogger(__name__)


class GroupHandle:
    """Something that a group keeps, dropped when nobody can ask for it any more. name: by which to ask for it."""

    def __init__(self, drop: Callable[[], None], name: Any = None) -> None:
        self._drop, self.name = drop, name

    def __del__(self) -> None:
        with contextlib.suppress(DistlfmError, OSError):
            self._drop()


class Group:
    """A running helper group. Use it as a context manager, or call `close`; it also ends with its owner.

    One request at a time: calls from several threads wait for each other.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._lock = threading.RLock()
        self._openings: list[Request] = []
        self._forgotten: collections.deque[str] = collections.deque()
        self._lost: set[str] = set()
        self.before_restart: Callable[[], None] = lambda: None
        """Lets go of problems that are only cached, so that the new ranks need not open them."""
        self._deferred: collections.deque[Request] = collections.deque()
        self._asking = False
        self._running: RunningGroup | None = None
        self.generation = 0
        """How often the group was started: what ranks held in an earlier generation is gone."""
        self._finalizer: weakref.finalize[[], Group] | None = None
        self._begin()

    @classmethod
    def start(
        cls,
        ranks: int = 1,
        launcher: LauncherName = "auto",
        transport: TransportName = "auto",
        *,
        timeout: float = START_SECONDS,
        grace: float = GRACE_SECONDS,
        host: str | None = None,
        service: str = SERVICE,
        environment: Mapping[str, str] | None = None,
    ) -> Group:
        """Start `ranks` ranks and wait, at most `timeout` seconds, until all have dialled in.

        launcher: see `plan_launch`. transport: `unix` for ranks on this node, `tcp` for those on others; `host` is the
        address at which the ranks reach this process, by default 127.0.0.1, or with srun that of the route to the
        job's nodes. grace: how long the other ranks may be silent after one has failed, before the group is ended.
        service: the module with the verbs.
        """
        if ranks < 1:
            raise UsageError(f"A helper group cannot have {ranks} ranks.", "Give 1 or more.")
        given = dict(os.environ if environment is None else environment)
        return cls(Settings(ranks, launcher, transport, timeout, grace, host, service, given))

    @property
    def ranks(self) -> int:
        return self._settings.ranks

    @property
    def alive(self) -> bool:
        return self._running is not None and not self._running.job.ended()

    @property
    def pids(self) -> list[int]:
        """Process numbers of the ranks, on their own hosts; empty if the group has ended."""
        return [] if self._running is None else [int(about["pid"]) for about in self._running.about]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def call(
        self,
        verb: str,
        header: Mapping[str, Any] | None = None,
        arrays: Arrays | Sequence[Arrays] | None = None,
        *,
        timeout: float | None = None,
        remember: bool = False,
    ) -> list[Reply]:
        """Ask all ranks, and give their answers in the order of ranks.

        arrays: the same for all ranks, or a list with those of each. `remember`: ask it again after a `restart`.

        An error that the ranks raise is raised here, and the group goes on. If a rank dies, if the answers are not
        there after `timeout` seconds, or if one rank fails while the others wait for it, the group is ended, a
        WorkError says so, and `restart` begins anew.
        """
        opening = Request(verb, header or {}, {} if arrays is None else arrays)
        with self._lock:
            self._find_again(opening.header.get("key"))
            replies = self._ask(opening, timeout)
            if remember:
                self._openings = [*self._remembered(), opening]
        return replies

    def later(self, verb: str, header: Mapping[str, Any]) -> None:
        """Ask this before the next call, and ignore the answer. Safe anywhere, in `__del__` too: it does not wait."""
        self._deferred.append(Request(verb, header, {}))

    def forget(self, key: str) -> None:
        """Do not repeat requests whose header has this `key` after a `restart`. Safe anywhere, as `later` is."""
        self._forgotten.append(key)

    def _remembered(self) -> list[Request]:
        """What would be asked again after a `restart`, in the order in which it was first asked."""
        while self._forgotten:
            key = self._forgotten.popleft()
            self._openings = [one for one in self._openings if one.header.get("key") != key]
        return self._openings

    @property
    def holds(self) -> int:
        """How many requests would be asked again after a `restart`."""
        with self._lock:
            return len(self._remembered())

    def restart(self) -> None:
        """End what is left of the group, start it anew, and ask again what was to be remembered.

        A request with a `key` that fails now is asked once more when its key is next used, and its error is raised
        there: others go on without it.
        """
        with self._lock:
            self.before_restart()
            self._lost.clear()
            while True:
                self._finish()
                self._begin()
                if all(self._repeat(opening) for opening in self._remembered()):
                    return

    def _repeat(self, opening: Request) -> bool:
        """Ask again what was to be remembered; False if the group did not survive it."""
        key = opening.header.get("key")
        if key in self._lost:
            return True
        try:
            self._ask(opening, None)
        except DistlfmError as error:
            if key is None:
                raise
            self._lost.add(key)
            _log.warning("The helper group could not open %s again: %s", key, error)
        return self._running is not None

    def _find_again(self, key: str | None) -> None:
        """Ask once more for what a restart could not bring back."""
        if key not in self._lost:
            return
        for opening in self._remembered():
            if opening.header.get("key") == key:
                try:
                    self._ask(opening, None)
                except DistlfmError as error:
                    cause = f"The helper group was started anew and cannot open this problem again: {error.cause}"
                    raise type(error)(cause, error.fix) from None
        self._lost.discard(key)

    def revive(self) -> None:
        """`restart` a group that has ended; one that is alive goes on."""
        with self._lock:
            if not self.alive:
                rank, how = (None, "") if self._running is None else self._running.job.fate()
                why = f"rank {rank} {how}" if rank is not None else "it had ended"
                _log.warning("The helper group of %d ranks is started anew: %s.", self.ranks, why)
                self.restart()

    def check(self, generation: int) -> None:
        """Raise a WorkError if the group was started anew since, and what its ranks held is gone."""
        if generation != self.generation:
            raise WorkError("The helper group was started anew after the forward solve.", "Solve forward again.")

    def close(self) -> None:
        """Ask the ranks to stop, and end those that do not."""
        with self._lock:
            running = self._running
            if running is not None and os.getpid() == running.owner:
                deadline = time.monotonic() + CLOSE_SECONDS
                with contextlib.suppress(WireError, OSError, TimeoutError):
                    for channel in running.channels:
                        channel.send(Message({"verb": "shutdown"}), deadline)
                    for channel in running.channels:
                        channel.receive(deadline)
                    running.job.wait(deadline - time.monotonic())
            self._finish()

    def _begin(self) -> None:
        self._running = running = start_ranks(self._settings)
        self._deferred.clear()
        self.generation += 1
        self._finalizer = weakref.finalize(self, running.end)

    def _finish(self) -> None:
        if self._finalizer is not None:
            self._finalizer()
        self._running = None

    def _ask(self, request: Request, timeout: float | None) -> list[Reply]:
        running = self._running
        if running is None:
            raise WorkError("The helper group has ended.", "Call restart() to begin anew.")
        if self._asking:  # only from __del__ or a signal handler, in the middle of another request of this thread
            raise WorkError(f"The helper group was asked {request.verb!r} in the middle of a call.", "Use later().")
        deadline = None if timeout is None else time.monotonic() + timeout
        self._asking = True
        try:
            while self._deferred:
                with contextlib.suppress(UsageError):
                    self._exchange(running, self._deferred.popleft(), deadline)
            return self._exchange(running, request, deadline)
        except DistlfmError:
            raise
        except BaseException:  # what is half sent or half read cannot be taken up again
            self._finish()
            raise
        finally:
            self._asking = False

    def _exchange(self, running: RunningGroup, request: Request, deadline: float | None) -> list[Reply]:
        arrays = request.arrays
        if not isinstance(arrays, Mapping) and len(arrays) != self.ranks:
            raise UsageError(f"There are arrays for {len(arrays)} ranks, and {self.ranks} ranks.", "Give one per rank.")
        answers: dict[int, Message] = {}
        rank = 0
        try:
            for rank, channel in enumerate(running.channels):
                own = arrays if isinstance(arrays, Mapping) else arrays[rank]
                channel.send(Message({"verb": request.verb, "header": request.header}, own), deadline)
            self._collect(running, request.verb, deadline, answers)
        except _RankGone as gone:
            self._bury(running, gone.args[0], request.verb)
        except PeerGone:
            self._bury(running, rank, request.verb)
        except TimeoutError:
            silent = [number for number in range(self.ranks) if number not in answers]
            self._finish()
            raise WorkError(
                f"{_named(silent)} of the helper group did not answer {request.verb!r} in time; the group was ended.",
                "Give it more time, or call restart().",
            ) from None
        except WireError as error:
            self._finish()
            raise WorkError(f"The helper group was ended: {error}.", "Call restart() to begin anew.") from None
        failed = {number: answer.header["error"] for number, answer in answers.items() if not answer.header["ok"]}
        if failed:
            self._raise(failed, request.verb, [number for number in range(self.ranks) if number not in answers])
        return [Reply(number, answers[number].header["header"], answers[number].arrays) for number in sorted(answers)]

    def _collect(self, running: RunningGroup, verb: str, deadline: float | None, answers: dict[int, Message]) -> None:
        """Read the answers; returns early if a rank failed and the others stay silent."""
        patience: float | None = None
        with selectors.DefaultSelector() as selector:
            for rank, channel in enumerate(running.channels):
                selector.register(channel, selectors.EVENT_READ, rank)
            while len(answers) < self.ranks:
                now = time.monotonic()
                if deadline is not None and now > deadline:
                    raise TimeoutError(verb)
                if patience is not None and now > patience:
                    return
                limits = [limit - now for limit in (deadline, patience) if limit is not None]
                ready = selector.select(max(0.0, min([SLICE_SECONDS, *limits])))
                if not ready and running.job.ended():
                    raise _RankGone(next(rank for rank in range(self.ranks) if rank not in answers))
                for key, _ in ready:
                    try:
                        answers[key.data] = running.channels[key.data].receive(deadline)
                    except PeerGone:
                        raise _RankGone(key.data) from None
                    selector.unregister(key.fileobj)
                    if patience is None and not answers[key.data].header["ok"]:
                        patience = time.monotonic() + self._settings.grace

    def _raise(self, failed: Mapping[int, Mapping[str, str]], verb: str, silent: list[int]) -> NoReturn:
        first = min(failed)
        error = failed[first]
        if silent:
            self._finish()
            raise WorkError(
                f"Rank {first} of the helper group failed at {verb!r}: {error['cause']} {_named(silent)} kept waiting "
                "for it, so the group was ended.",
                error["fix"] or "Call restart() to begin anew.",
            )
        kind = {"UsageError": UsageError, "DataError": UsageError, "MissingExtra": MissingExtra}.get(
            error["kind"], WorkError
        )
        cause = error["cause"] if len(failed) == self.ranks else f"Rank {first} of the helper group: {error['cause']}"
        raise kind(cause, error["fix"])

    def _bury(self, running: RunningGroup, rank: int, verb: str) -> NoReturn:
        running.job.wait(2.0)  # for the launcher's own account of it
        ended, how = running.job.fate()
        who = rank if ended is None else ended
        words = running.job.last_words(who)
        self._finish()
        raise WorkError(
            f"Rank {who} of the helper group {how or 'closed its connection'} during {verb!r}; the group was ended."
            + (f" Its last words:\n{words}\n" if words else ""),
            "Call restart() to begin anew; if memory ran out, use more ranks or a coarser mesh.",
        )


class _RankGone(Exception):
    """Its argument is the number of the rank."""


def _named(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"Rank {ranks[0]}"
    return f"Ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
