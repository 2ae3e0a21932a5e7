"""A stop that is asked for by a signal: the first one asks, the second one insists."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)
"""Ctrl-C, the end of a batch job, and the warning that Slurm gives before it."""


class Stop:
    """Inside this context the first signal sets `requested`, and a second one raises KeyboardInterrupt.

    Only the main thread can take signals: in any other the context changes nothing, and `request` is the way to ask.
    A signal that was ignored (as by `nohup`) stays ignored. The handlers found are put back at the end.
    """

    def __init__(self) -> None:
        self.requested = False
        self.signal: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def request(self, which: signal.Signals | None = None) -> None:
        """Ask for the stop."""
        self.requested = True
        self.signal = self.signal or which

    def __enter__(self) -> Stop:
        if threading.current_thread() is threading.main_thread():
            for which in SIGNALS:
                if signal.getsignal(which) is not signal.SIG_IGN:
                    self._before[which] = signal.signal(which, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for which, handler in self._before.items():
            signal.signal(which, signal.SIG_DFL if handler is None else handler)
        self._before = {}

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.request(signal.Signals(number))
