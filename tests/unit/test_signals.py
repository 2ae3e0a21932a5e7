"""The first signal asks, the second insists, and afterwards all is as before."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from distlfm.runtime.process import SIGNALS, BrokenOff, Stop
from tests.conftest import hear_interrupts


def test_programs_of_tests_hear_ctrl_c_where_the_shell_has_the_tests_ignore_it() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        hear_interrupts()
        program = "import signal; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
        subprocess.run([sys.executable, "-c", program], check=True)
    finally:
        signal.signal(signal.SIGINT, before)


def send(which: signal.Signals) -> None:
    """To this very process; Python handles it before the next line."""
    os.kill(os.getpid(), which)
    time.sleep(0.01)


def send_later(which: signal.Signals, seconds: float) -> None:
    timer = threading.Timer(seconds, os.kill, (os.getpid(), which))
    timer.daemon = True
    timer.start()


@pytest.mark.parametrize("which", SIGNALS)
def test_a_signal_asks_for_a_stop(which: signal.Signals) -> None:
    with Stop() as stop:
        assert not stop.requested
        send(which)
        assert stop.requested
        assert stop.signal is which


def test_a_second_signal_interrupts() -> None:
    with Stop() as stop:
        send(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            send(signal.SIGINT)
    assert stop.signal is signal.SIGTERM


def test_handlers_are_put_back() -> None:
    before = [signal.getsignal(which) for which in SIGNALS]
    with Stop():
        assert all(signal.getsignal(which) is not handler for which, handler in zip(SIGNALS, before, strict=True))
    assert [signal.getsignal(which) for which in SIGNALS] == before


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with Stop() as stop:
            send(signal.SIGUSR1)
        assert not stop.requested
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_in_another_thread_a_stop_can_be_asked_for_by_call() -> None:
    before, seen = [signal.getsignal(which) for which in SIGNALS], []

    def body() -> None:
        with Stop() as stop:
            stop.request()
            seen.append(stop.requested)

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert seen == [True]
    assert [signal.getsignal(which) for which in SIGNALS] == before


def test_work_that_goes_on_for_too_long_is_broken_off() -> None:
    began = time.monotonic()
    with Stop() as stop:
        send_later(signal.SIGTERM, 0.05)
        with pytest.raises(BrokenOff), stop.limit(0.2):
            time.sleep(20)
    assert stop.requested
    assert time.monotonic() - began < 5


def test_work_that_ends_in_time_is_not_broken_off() -> None:
    with Stop() as stop:
        with stop.limit(0.1):
            send(signal.SIGTERM)
        time.sleep(0.2)
    assert stop.signal is signal.SIGTERM
