"""A Ray to work with: a private one on this machine that ends with us, or a cluster that runs already.

Ray listens on all interfaces, and an open Ray runs anybody's code: so a private one always asks for a token that is
made anew and known to its own processes only.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from distlfm.cluster.machine import object_store_bytes, short_temporary, usable_cpus
from distlfm.cluster.ray_knock import knock
from distlfm.errors import UsageError, WorkError
from distlfm.optional import require

PREFIX = "dlfm-"
LOCK = "lock"

PRIVATE = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # A node that dies is noticed after 4 s instead of 16 s.
    "RAY_health_check_initial_delay_ms": "2000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""Environment of a private Ray; its token comes on top."""

STRAY = ("RAY_ADDRESS", "RAY_AUTH_TOKEN_PATH", "RAY_NAMESPACE", "RAY_RUNTIME_ENV_HOOK")
"""Settings of some other Ray that a private one must not heed."""

UNTIL_DRIVER_DECIDES = {signal.SIGUSR1}
"""Slurm's warning reaches every process of a job, and would end Ray's own; they start with it blocked. (Ctrl-C is
blocked in them by Ray.)"""


@dataclass(frozen=True)
class RaySession:
    """A Ray that this process is connected to."""

    ray: ModuleType
    address: str
    local: bool

    def node_cpus(self) -> dict[str, int]:
        """CPUs of each node that is alive, by its id."""
        return {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in self.ray.nodes() if node["Alive"]}


@contextmanager
def ray_session(address: str | None = None, cpus: int | None = None) -> Iterator[RaySession]:
    """Start a private Ray with `cpus` cores (those that this process may use), or join the cluster at `address`.

    address: None for a private one; `auto` or `HOST:PORT` joins. A Ray that this process is connected to already is
    used as it is, if no other address is asked for, and left running.
    """
    ray = require("ray", extra="ray")
    if ray.is_initialized():
        yield _present(ray, address)
        return
    if cpus is not None and cpus < 1:
        raise UsageError(f"{cpus} CPUs were asked for.", "Give 1 or more.")
    with _environment_restored():
        if address is None:
            with _directory() as directory:
                yield from _private(ray, cpus or usable_cpus(), directory)
        else:
            yield from _joined(ray, address)


def _present(ray: ModuleType, address: str | None) -> RaySession:
    found = str(ray.get_runtime_context().gcs_address)
    if address not in (None, "auto", found):
        raise UsageError(
            f"This process is connected to the Ray at {found} already, and {address} was asked for.",
            "Call ray.shutdown() first, or leave the address out.",
        )
    return RaySession(ray, found, local=False)


def _private(ray: ModuleType, cpus: int, directory: Path) -> Iterator[RaySession]:
    for name in STRAY:
        os.environ.pop(name, None)
    os.environ.update(PRIVATE, RAY_AUTH_TOKEN=secrets.token_hex(32))
    _forget_token()
    try:
        with _signals_kept():
            ray.init(
                address="local",
                num_cpus=cpus,
                num_gpus=0,
                object_store_memory=object_store_bytes(),
                include_dashboard=False,
                log_to_driver=False,
                logging_level=logging.CRITICAL,
                _temp_dir=str(directory),
                _node_ip_address="127.0.0.1",
            )
        yield RaySession(ray, str(ray.get_runtime_context().gcs_address), local=True)
    finally:
        ray.shutdown()


def _joined(ray: ModuleType, address: str) -> Iterator[RaySession]:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    knock(address)
    _forget_token()
    try:
        with _signals_kept():
            ray.init(address=address, log_to_driver=False, logging_level=logging.CRITICAL)
        yield RaySession(ray, str(ray.get_runtime_context().gcs_address), local=False)
    except ConnectionError as error:
        raise WorkError(f"Cannot join the Ray cluster at {address}: {error}.") from None
    finally:
        ray.shutdown()


@contextmanager
def _environment_restored() -> Iterator[None]:
    """Ray's settings in the environment are as before, at the end."""
    before = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    try:
        yield
    finally:
        for name in [name for name in os.environ if name.startswith("RAY_")]:
            del os.environ[name]
        os.environ.update(before)


@contextmanager
def _signals_kept() -> Iterator[None]:
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


def _forget_token() -> None:
    """Ray reads its token once a process: a second session would show the first one's."""
    with suppress(ImportError, AttributeError):  # no public way; a Ray without these reads the token anew
        from ray._raylet import AuthenticationTokenLoader, Config

        Config.initialize("")
        AuthenticationTokenLoader.instance().reset_cache()


@contextmanager
def _directory() -> Iterator[Path]:
    """A private directory of Ray's sockets and logs, removed at the end.

    What a killed process left behind is removed by the next one: a lock that nobody holds tells.
    """
    parent = short_temporary()
    _sweep(parent)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    with (directory / LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)


def _sweep(parent: Path) -> None:
    for left in parent.glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):  # of another user, held by a living process, or just gone
            if left.parent.stat().st_uid != os.getuid() or left.parent.is_symlink():
                continue
            with left.open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(left.parent, ignore_errors=True)
