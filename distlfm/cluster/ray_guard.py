"""Waits for a driver's end, and then ends what is left of its private Ray, however the driver ended.

Ray's servers die with their driver, but some of their children linger for half a minute. This runs as a process of its
own, on the standard library alone: its standard input gives one line of JSON (`token`, `directory`) and closes when the
driver is gone.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import time
from pathlib import Path

SWEEP_SECONDS = 5.0
LOOK_SECONDS = 0.25


class Belongings:
    """Processes of the Ray with this token and directory.

    Its servers have the directory among their arguments. Their children are known by the token, and by the number of
    the server that started them, which must be noted while it lives: a child that changes its title loses the first of
    its environment.
    """

    def __init__(self, token: str, directory: str) -> None:
        self.directory = directory
        self.noted = False
        self._place = directory.encode()
        self._marks = [f"RAY_AUTH_TOKEN={token}".encode()]

    def note(self) -> None:
        """Note the server that starts the others."""
        for process in self._processes():
            command = _read(process / "cmdline")
            if self._place in command and command.split(b"\0")[0].endswith(b"/raylet"):
                self._marks.append(f"RAY_RAYLET_PID={process.name}".encode())
                self.noted = True

    def sweep(self) -> None:
        """End them all, and those that they start meanwhile; then remove the directory."""
        until = time.monotonic() + SWEEP_SECONDS
        while time.monotonic() < until:
            found = [int(process.name) for process in self._processes() if self._ours(process)]
            if not found:
                break
            for number in found:
                try:
                    os.kill(number, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            time.sleep(0.02)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _ours(self, process: Path) -> bool:
        """The driver's other children have the token too, and are left alone."""
        entries = _read(process / "environ").split(b"\0")
        if not any(mark in entries for mark in self._marks):
            return False
        return any(entry.startswith(b"RAY_RAYLET_PID=") for entry in entries) or self._place in _read(
            process / "cmdline"
        )

    @staticmethod
    def _processes() -> list[Path]:
        return [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # of another user, or just gone
        return b""


def main() -> None:
    """Guard the process that started this one."""
    for which in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1):
        signal.signal(which, signal.SIG_IGN)
    parent = os.getppid()
    belongings = Belongings(**json.loads(sys.stdin.readline()))
    # A fork of the driver may hold the other end open; then its parent's number tells.
    while os.getppid() == parent and not select.select([sys.stdin], [], [], LOOK_SECONDS)[0]:
        if not belongings.noted:
            belongings.note()
    belongings.sweep()


if __name__ == "__main__":
    main()
