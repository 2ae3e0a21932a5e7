"""What Ray changes in the process that starts it, and how that is put back: environment, signals, output, files."""

from __future__ import annotations

import fcntl
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from distlfm.cluster import ray_guard
from distlfm.cluster.machine import short_temporary

PREFIX = "dlfm-"
LOCK = "lock"

UNTIL_DRIVER_DECIDES = {signal.SIGUSR1}
"""Slurm's warning reaches every process of a job, and would end Ray's own; they start with it blocked. (Ctrl-C is
blocked in them by Ray.)"""


@contextmanager
def environment_restored() -> Iterator[None]:
    """At the end the environment is as before; importing and starting Ray both change it."""
    before = {name: value for name, value in os.environ.items() if _rays(name)}
    try:
        yield
    finally:
        for name in list(filter(_rays, os.environ)):
            if name not in before:
                del os.environ[name]
        os.environ.update(before)


def _rays(name: str) -> bool:
    return name.startswith("RAY_") or name == "PYTHONBREAKPOINT"


@contextmanager
def signals_kept() -> Iterator[None]:
    """Ray puts its own handler for SIGTERM, which ends the process at once; ours is put back."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {which: signal.getsignal(which) for which in (signal.SIGINT, signal.SIGTERM)}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, UNTIL_DRIVER_DECIDES)
    try:
        yield
    finally:
        for which, handler in handlers.items():
            signal.signal(which, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@contextmanager
def quiet() -> Iterator[None]:
    """Ray prints a paragraph on standard output for each worker that dies, whatever its logging level is."""
    worker: Any = importlib.import_module("ray._private.worker")  # there is no public switch
    before = getattr(worker, "_worker_logs_enabled", True)
    worker._worker_logs_enabled = False
    try:
        yield
    finally:
        worker._worker_logs_enabled = before


@contextmanager
def guarded(directory: Path) -> Iterator[None]:
    """At the end, or when this process dies, no process of the Ray in `directory` is left; see `ray_guard`."""
    command = [sys.executable, "-I", "-S", ray_guard.__file__, str(directory)]
    null = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True):
        yield


def forget_token() -> None:
    """Ray reads its token once a process: a second session would show the first one's."""
    with suppress(ImportError, AttributeError):  # no public way; a Ray without these reads the token anew
        raylet = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def private_directory() -> Iterator[Path]:
    """A directory for Ray's sockets and logs that only we can read, removed at the end.

    What a killed process left behind is removed by the next one: a lock that nobody holds tells.
    """
    parent = short_temporary()
    _sweep(parent)
    directory, lock = _locked(parent)
    with lock:
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _locked(parent: Path) -> tuple[Path, TextIO]:
    """A new directory and its lock, held. Another process may sweep it away just before it is."""
    while True:
        directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
        lock = (directory / LOCK).open("w")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if os.fstat(lock.fileno()).st_nlink > 0:
            return directory, lock
        lock.close()


def _sweep(parent: Path) -> None:
    for left in parent.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):  # held by a living process, or just gone
            if left.parent.is_symlink() or left.parent.stat().st_uid != os.getuid():
                continue
            with left.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.parent, ignore_errors=True)
