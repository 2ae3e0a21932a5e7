"""How long a site works for one message: until the round is over, its run has ended, or the policy's time is up.

Loops of the work call `keep_time` between their steps. Whoever asked may be gone by then, and the next round must find
the site free.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from distlfm.federated.refused import Reason, Refused
from distlfm.store.files import storing

LOOK_SECONDS = 1.0
"""Between two looks at whether the work is still wanted."""


@dataclass
class WorkTime:
    """seconds: the most of it. why_not: says why the work is no longer wanted; empty while it is."""

    seconds: float
    why_not: Callable[[], str]
    clock: Callable[[], float] = time.monotonic
    _begun: float = field(init=False)
    _looked: float = field(init=False)

    def __post_init__(self) -> None:
        self._begun = self._looked = self.clock()

    def check(self) -> None:
        """Refuse to go on with work that nobody waits for."""
        now = self.clock()
        if now - self._begun > self.seconds:
            raise Refused(Reason.TIME, f"It was stopped after {self.seconds:g} seconds. Ask for fewer task.steps.")
        if now - self._looked >= LOOK_SECONDS:
            self._looked = now
            reason = self.why_not()
            if reason:
                raise Refused(Reason.TIME, reason)


_CURRENT: ContextVar[WorkTime | None] = ContextVar("time of the work", default=None)


def keep_time() -> None:
    """Raise Refused if the work of the message that is being answered has to stop; nothing outside of a message."""
    current = _CURRENT.get()
    if current is not None:
        current.check()


@contextmanager
def working(time_: WorkTime) -> Iterator[None]:
    """Let `keep_time` hold the work to its time."""
    token = _CURRENT.set(time_)
    try:
        yield
    finally:
        _CURRENT.reset(token)


ENDED = "ended"


class Runs:
    """Runs that a site works for, as files below its state: the process that is connected to the link marks those that
    have ended, and those that work for them see it."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "working"

    @contextmanager
    def working(self, run: str) -> Iterator[None]:
        """Say that a message of this run is being worked on."""
        with storing("the site's state", self._folder):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            path = self._folder / f"{run}-{os.getpid()}"
            path.touch()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)

    def under_way(self) -> list[str]:
        """The runs that are worked for."""
        with suppress(FileNotFoundError):
            return sorted({path.name.rpartition("-")[0] for path in self._folder.iterdir() if not path.suffix})
        return []

    def clear(self) -> None:
        """Forget all; a process that was killed has left its file."""
        for path in self._folder.glob("*"):
            path.unlink(missing_ok=True)

    def end(self, run: str) -> None:
        """Mark a run as ended."""
        with suppress(OSError):
            (self._folder / f"{run}.{ENDED}").touch()

    def has_ended(self, run: str) -> bool:
        """Whether a run was marked."""
        return (self._folder / f"{run}.{ENDED}").exists()
