"""A stop that is asked for by a signal: the first one asks, the second one insists."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, the end of a batch job, and the warning that Slurm gives before it."""


class BrokenOff(BaseException):
    """Work went on for too long after a stop was asked for. No ordinary handler of exceptions should catch it."""


class Signalled(BaseException):
    """A signal ended what was going on. No ordinary handler of exceptions should catch it."""

    def __init__(self, which: signal.Signals) -> None:
        super().__init__(which.name)
        self.which = which


@contextmanager
def raised() -> Iterator[None]:
    """Inside this context a signal raises Signalled, where by itself it would end the process without a word.

    As with `Stop`, only in the main thread, and not for a signal that was ignored.
    """

    def handle(number: int, _frame: FrameType | None) -> None:
        raise Signalled(signal.Signals(number))

    before = _taken(handle)
    try:
        yield
    finally:
        _given_back(before)


def _taken(handle: Callable[[int, FrameType | None], None]) -> dict[signal.Signals, Any]:
    """Handle the signals that are not ignored, in the main thread alone; what handled them before."""
    if threading.current_thread() is not threading.main_thread():
        return {}
    heard = [which for which in SIGNALS if signal.getsignal(which) is not signal.SIG_IGN]
    return {which: signal.signal(which, handle) for which in heard}


def _given_back(before: Mapping[signal.Signals, Any]) -> None:
    for which, handler in before.items():
        signal.signal(which, signal.SIG_DFL if handler is None else handler)


class Stop:
    """Inside this context the first signal sets `requested`, and a second one raises KeyboardInterrupt.

    Only the main thread can take signals: in any other the context changes nothing, and `request` is the way to ask.
    A signal that was ignored (as by `nohup`) stays ignored. The handlers found are put back at the end.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}
        self._grace: float | None = None
        self._timer: threading.Timer | None = None
        self._overdue = False

    def request(self, which: signal.Signals | None = None) -> None:
        """Ask for the stop."""
        self.requested = True
        self.signal = self.signal or which

    @contextmanager
    def limit(self, grace: float) -> Iterator[None]:
        """What runs inside is broken off, by BrokenOff, `grace` seconds after a signal asked for the stop."""
        self._grace = grace
        if self.requested and self._before:
            self._arm(grace, self.signal or signal.SIGINT)
        try:
            yield
        finally:
            self._grace = None
            if self._timer is not None:
                self._timer.cancel()

    def __enter__(self) -> Stop:
        self._before = _taken(self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        _given_back(self._before)
        self._before = {}

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._overdue:
            self._overdue = False
            if self._grace is not None:
                raise BrokenOff
        elif self.requested:
            raise KeyboardInterrupt
        else:
            self.request(signal.Signals(number))
            if self._grace is not None:
                self._arm(self._grace, number)

    def _arm(self, grace: float, number: int) -> None:
        self._timer = threading.Timer(grace, self._break_off, (number,))
        self._timer.daemon = True
        self._timer.start()

    def _break_off(self, number: int) -> None:
        """Handlers run in the main thread only, and a real signal also wakes it from a system call."""
        self._overdue = True
        signal.pthread_kill(threading.main_thread().ident or 0, number)
