"""The processes of a role: started with a clean environment, watched, started again when they end, and none is left.

A process holds one end of a pipe to its supervisor, and ends when the other end closes, however the supervisor ended.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from distlfm.federated.setup.homes import LOOPBACK, Home, near_address
from distlfm.runtime.process import Stop
from distlfm.runtime.reporting import Reporter
from distlfm.store.files import no_room, put_quickly

LOOK_SECONDS = 0.2
DISK_SECONDS = 2.0
FIRST_WAIT, LONGEST_WAIT = 1.0, 30.0
"""Seconds before a process is started again; doubled each time until it has lasted STEADY_SECONDS."""
STEADY_SECONDS = 60.0
END_SECONDS = 8.0
"""What a process is given to end by itself."""
LOG_BYTES = 10_000_000
START = "DISTLFM_START"
"""Tells a process how often its supervisor has started it: 1 is the first time."""
NOT_LOGGED = "What cannot be logged is refused. Free space; then it goes on by itself."
_DROPPED = ("FLWR_", "OTEL_")


def environment(home: Home, *near: str, **more: str) -> dict[str, str]:
    """For Flower's processes: no telemetry, no look for updates, no installing, and a home of their own.

    A proxy may be needed to reach a link elsewhere; what stays on this machine goes by none, and of the two spellings
    of that setting programs read either. near: addresses of this machine besides loopback.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    straight = ",".join(filter(None, (kept.get("NO_PROXY"), kept.get("no_proxy"), *LOOPBACK, *near)))
    return kept | {
        "FLWR_HOME": str(home.flower),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "NO_PROXY": straight,
        "no_proxy": straight,
        **more,
    }


def end_with_supervisor() -> None:
    """Called in a supervised process: when standard input closes, ask this process to end, and then insist."""

    def wait() -> None:
        while os.read(0, 1024):
            continue
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(END_SECONDS)
        os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def is_listening(host: str, port: int) -> bool:
    """Whether somebody takes connections there. host: an address to listen on, which may be that of all of them."""
    with suppress(OSError), socket.create_connection((near_address(host), port), timeout=0.5):
        return True
    return False


@dataclass(frozen=True)
class Program:
    """What is run: `python -m module arguments`. ready: whether it does its work by now."""

    name: str
    module: str
    arguments: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    ready: Callable[[], bool] = lambda: True


@dataclass
class _Child:
    program: Program
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0
    started: float = 0.0
    wait: float = FIRST_WAIT
    due: float = 0.0
    last_exit: int | None = None
    up: bool = False

    def to_status(self) -> dict[str, object]:
        state = "up" if self.up else "starting" if self.process is not None else "waiting"
        pid = self.process.pid if self.process is not None else None
        return {"state": state, "pid": pid, "starts": self.starts, "last_exit": self.last_exit}


@dataclass
class Supervisor:
    """Keeps programs running until a stop is asked for. `status.json` says how each of them is.

    look: what else is done at each look, such as to pass on the audit log.
    """

    home: Home
    programs: Sequence[Program]
    reporter: Reporter
    look: Callable[[], None] = lambda: None
    _children: list[_Child] = field(default_factory=list)
    _told: str = ""
    _full: str = ""
    _disk_due: float = 0.0

    def run(self, stop: Stop) -> None:
        """Until the stop is asked for; then all processes are ended."""
        self._children = [_Child(program) for program in self.programs]
        try:
            while not stop.requested:
                self._look_at_disk()
                for child in self._children:
                    self._look(child)
                self._tell("running")
                self.look()
                time.sleep(LOOK_SECONDS)
        finally:
            self._end()
            self._tell("stopped")
            self.look()

    def _look_at_disk(self) -> None:
        """Say that the disk is full, and that it is no longer: neither logs nor `status.json` can tell that."""
        now = time.monotonic()
        if now < self._disk_due:
            return
        self._disk_due, before, self._full = now + DISK_SECONDS, self._full, no_room(self.home.path)
        if self._full and not before:
            self.reporter.warn(f"{self._full}. {NOT_LOGGED}")
        elif before and not self._full:
            self.reporter.say("there is space again")

    def _look(self, child: _Child) -> None:
        now = time.monotonic()
        if child.process is None:
            if now >= child.due:
                self._start(child, now)
            return
        code = child.process.poll()
        if code is None:
            if not child.up and child.program.ready():
                child.up = True
                self.reporter.say(f"{child.program.name} is up")
            return
        steady = now - child.started > STEADY_SECONDS
        child.wait = FIRST_WAIT if steady else min(2 * child.wait, LONGEST_WAIT)
        self._close(child)
        child.last_exit, child.up, child.due = code, False, now + child.wait
        self.reporter.warn(
            f"{child.program.name} ended with code {code}; started again in {child.wait:.0f} s. "
            f"Why: {child.program.log}"
        )

    def _start(self, child: _Child, now: float) -> None:
        program, log = child.program, child.program.log
        try:
            if log.exists() and log.stat().st_size > LOG_BYTES:
                log.replace(log.with_suffix(".log.1"))
            with open(log, "ab", opener=partial(os.open, mode=0o600)) as output:
                child.process = subprocess.Popen(
                    [sys.executable, "-m", program.module, *program.arguments],
                    stdin=subprocess.PIPE,
                    stdout=output,
                    stderr=output,
                    env={**program.environment, START: str(child.starts + 1)},
                    start_new_session=True,
                )
            child.starts, child.started = child.starts + 1, now
        except OSError as error:
            child.wait = min(2 * child.wait, LONGEST_WAIT)
            child.due = now + child.wait
            where = f"{program.name} cannot be started ({error.strerror}: {log.parent})"
            self.reporter.warn(f"{where}; tried again in {child.wait:.0f} s.")

    def _close(self, child: _Child) -> None:
        if child.process is not None and child.process.stdin is not None:
            child.process.stdin.close()
        child.process = None

    def _end(self) -> None:
        running = [child.process for child in self._children if child.process is not None]
        for process in running:
            process.terminate()
        until = time.monotonic() + END_SECONDS
        for process in running:
            try:
                process.wait(max(until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for child in self._children:
            self._close(child)

    def _tell(self, state: str) -> None:
        processes = {child.program.name: child.to_status() for child in self._children}
        text = json.dumps({"state": state, "pid": os.getpid(), "processes": processes})
        if text != self._told:
            with suppress(OSError):  # of a full disk; it is tried again, and what is supervised goes on meanwhile
                put_quickly(self.home.status, text.encode())
                self._told = text
