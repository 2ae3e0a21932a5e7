"""A Ray to work with: a private one on this machine that ends with us, or a cluster that runs already.

Ray listens on all interfaces, and an open Ray runs anybody's code: so a private one always asks for a token that is
made anew and known to its own processes only. What Ray changes in the process that starts it (environment, signals,
output, files) is put back at the end.
"""

from __future__ import annotations

import fcntl
import importlib
import logging
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from distlfm.cluster.machine import object_store_bytes, usable_cpus
from distlfm.cluster.ray import guard as ray_guard
from distlfm.cluster.ray.contact import contact, reach
from distlfm.errors import UsageError, WorkError
from distlfm.optional import require
from distlfm.runtime.process import LOOPBACK, short_temporary, touch

PREFIX = "dlfm-"
LOCK = "lock"
INNER = "r"
"""Ray opens its directory to everybody, so it gets one inside ours."""

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
        for name in filter(_rays, list(os.environ)):
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


def forget_token() -> None:
    """Ray reads its token once a process: a second session would show the first one's."""
    with suppress(ImportError, AttributeError):  # no public way; a Ray without these reads the token anew
        raylet = importlib.import_module("ray._raylet")
        raylet.Config.initialize("")
        raylet.AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def guarded_directory() -> Iterator[Path]:
    """A directory for Ray's sockets and logs, inside one that only we can read, removed at the end.

    At the end, or when this process dies, no process of the Ray in it is left; see `guard.py`.
    """
    with private_directory() as directory:
        (directory / INNER).mkdir()
        command = [sys.executable, "-I", "-S", ray_guard.__file__, str(directory)]
        null = subprocess.DEVNULL
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=null, stderr=null, start_new_session=True):
            yield directory / INNER


@contextmanager
def private_directory() -> Iterator[Path]:
    """A directory that only we can read, removed at the end.

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


NO_HISTORY = {"RAY_task_events_report_interval_ms": "0"}
"""Nobody looks at Ray's history of tasks, and it waits 5 s at the end to hand it to a server that is gone."""

PRIVATE = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Each job starts its own processes, so that none is needed in advance.
    "RAY_enable_worker_prestart": "0",
    "RAY_prestart_worker_first_driver": "0",
    **NO_HISTORY,
    # A node that dies is noticed after 4 s instead of 16 s.
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""Environment of a private Ray; its token comes on top."""

STRAY = ("RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH", "RAY_NAMESPACE", "RAY_RUNTIME_ENV_HOOK")
"""Settings of some other Ray that a private one must not heed."""

JOINED = "DISTLFM_RAY_JOINED"
"""Environment variable with the address of a Ray that has just let in whoever started this process, with our token: it
need not be tried once more."""

CONNECT_SECONDS = 5.0
FIRST_WITH_TOKENS = (2, 52)
"""Older versions ignore the token and let everybody in."""

AGAIN = "If this machine is very busy, try again later; `--executor serial` needs no Ray."


class RayEnded(WorkError):
    """The Ray that we are connected to is gone."""


@dataclass(frozen=True)
class RaySession:
    """A Ray that this process is connected to. local: a private one on this machine."""

    ray: ModuleType
    address: str
    local: bool

    @property
    def words(self) -> str:
        """Where the work is done, for people."""
        nodes = self.node_cpus()
        cpus = f"{sum(nodes.values())} CPU{'s' if sum(nodes.values()) > 1 else ''}"
        if self.local:
            return f"this machine ({cpus})"
        return f"the cluster at {self.address} ({len(nodes)} node{'s' if len(nodes) > 1 else ''}, {cpus})"

    def reachable(self) -> bool:
        """Is Ray's server there? Without it Ray's calls hang for a minute, and then Ray ends this process."""
        try:
            touch(self.address, CONNECT_SECONDS)
        except OSError as error:
            return not isinstance(error, ConnectionRefusedError)  # a busy network proves nothing
        return True

    def node_cpus(self) -> dict[str, int]:
        """CPUs of each node that is alive, by its id. Raises RayEnded."""
        nodes = self.ray.nodes() if self.reachable() else []
        alive = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in nodes if node["Alive"]}
        if not nodes or (self.local and not alive):
            raise RayEnded(f"The Ray at {self.address} has ended.", "The same command goes on with what is left.")
        return alive


@contextmanager
def ray_session(address: str | None = None, cpus: int | None = None) -> Iterator[RaySession]:
    """Start a private Ray with `cpus` cores (those that this process may use), or join the cluster at `address`.

    address: None for a private one; `auto` or `HOST:PORT` joins, with the token that the environment holds. A Ray that
    this process is connected to already is used as it is, if no other address is asked for, and left running.
    """
    if cpus is not None and cpus < 1:
        raise UsageError(f"{cpus} CPUs were asked for.", "Give 1 or more.")
    with environment_restored():
        ray = require("ray", extra="ray")
        if ray.is_initialized():
            yield _present(ray, address)
            return
        with _private(ray, cpus or usable_cpus()) if address is None else _joined(ray, address) as session:
            yield session


def _present(ray: ModuleType, address: str | None) -> RaySession:
    connected = _address(ray)
    if address not in (None, "auto", connected):
        raise UsageError(
            f"This process is connected to the Ray at {connected} already, and {address} was asked for.",
            "Call ray.shutdown() first, or leave the address out.",
        )
    return RaySession(ray, connected, local=False)


def require_tokens(version: str) -> None:
    """Refuse a Ray that cannot ask for a token."""
    if tuple(int(part) for part in version.split(".")[:2]) < FIRST_WITH_TOKENS:
        first = ".".join(map(str, FIRST_WITH_TOKENS))
        raise UsageError(
            f"Ray {version} lets anybody on the network run code in this process's name.",
            f'Install {first} or newer: pip install "ray>={first}".',
        )


@contextmanager
def _private(ray: ModuleType, cpus: int) -> Iterator[RaySession]:
    require_tokens(str(ray.__version__))
    for name in STRAY:
        os.environ.pop(name, None)
    os.environ.update(PRIVATE, RAY_AUTH_TOKEN=secrets.token_hex(32))
    settings = {
        "address": "local",
        "num_cpus": cpus,
        "num_gpus": 0,
        "object_store_memory": object_store_bytes(),
        "include_dashboard": False,
        "_node_ip_address": LOOPBACK,
    }
    with guarded_directory() as inner:
        settings["_temp_dir"] = str(inner)
        with _connected(ray, "Cannot start Ray on this machine", settings):
            yield RaySession(ray, _address(ray), local=True)


@contextmanager
def _joined(ray: ModuleType, address: str) -> Iterator[RaySession]:
    if os.environ.get(JOINED) == address:
        reach(address)
    else:
        contact(address)
    os.environ.update(NO_HISTORY)
    with _connected(ray, f"Cannot join the Ray cluster at {address}", {"address": address}):
        yield RaySession(ray, _address(ray), local=False)


@contextmanager
def _connected(ray: ModuleType, trouble: str, settings: dict[str, Any]) -> Iterator[None]:
    forget_token()
    with quiet():
        try:
            try:
                with signals_kept():
                    ray.init(**settings, log_to_driver=False, logging_level=logging.CRITICAL)
            except Exception as error:  # Ray raises no narrower class where the machine was too slow for it
                raise WorkError(f"{trouble}: {' '.join(str(error).split())[:500]}", AGAIN) from error
            yield
        finally:
            ray.shutdown()


def _address(ray: ModuleType) -> str:
    return str(ray.get_runtime_context().gcs_address)
