"""Run a command for a limited time, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_SECONDS = 0.05
GRACE_SECONDS = 3.0  # between asking and killing; Ray and mpirun need about one to end their children


@dataclass(frozen=True)
class Ended:
    """How a command ended; `returncode` is None where the time limit or a stop ended it."""

    returncode: int | None
    stdout: str
    stderr: str


def run_bounded(
    command: Sequence[str], environment: Mapping[str, str], time_limit: float, stop: threading.Event
) -> Ended:
    """Run `command` in a session of its own until it ends, `time_limit` seconds pass, or `stop` is set.

    Whatever of that session is still alive then is ended too. Output goes through files, not pipes: a child that
    outlives the command would hold a pipe open.
    """
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        process = subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        deadline = time.monotonic() + time_limit
        try:
            while process.poll() is None and time.monotonic() < deadline and not stop.is_set():
                time.sleep(POLL_SECONDS)
            returncode = process.poll()
        finally:
            _end_session(process)
        texts = []
        for stream in (stdout, stderr):
            stream.seek(0)
            texts.append(stream.read().decode(errors="replace"))
    return Ended(returncode, *texts)


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """End all processes of the session that `process` leads: first asked, then killed."""
    for which, patience in ((signal.SIGTERM, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        for member in _session_members(process):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(member, which)
        deadline = time.monotonic() + patience
        while _session_members(process) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _session_members(process: subprocess.Popen[bytes]) -> list[int]:
    """Process ids in the session of `process`, itself among them while it runs. Without /proc, only itself."""
    members = [] if process.poll() is not None else [process.pid]
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(int(entry.name)) == process.pid and int(entry.name) != process.pid:
                members.append(int(entry.name))
    return members
