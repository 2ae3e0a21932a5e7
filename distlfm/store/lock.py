"""One driver a store. The lock is the kernel's: it is free the moment its holder dies, however it dies."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.store.files import storing
from distlfm.store.find import RUN_STORE
from distlfm.store.markers import NO_LOCKS

FILE = "lock"
ATTEMPTS, PAUSE = 5, 0.05
"""Whoever asks for the holder has the lock for an instant; a driver tries this often before it believes it is taken."""

_log = logging.getLogger(__name__)


class Holder(Config):
    """The driver of a store. since: ISO time at which it began."""

    role: str
    host: str
    pid: int
    since: str

    def __str__(self) -> str:
        return f"{self.role} on {self.host}, process {self.pid}, since {self.since}"


@contextmanager
def driver_lock(store: Path, role: str = "fit") -> Iterator[Holder]:
    """Be the only driver of a store; a second one is refused, and told who is the first."""
    path = store / FILE
    with storing("the lock", store):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        if not _taken(descriptor, path):
            raise UsageError(
                f"{store} is in use: {_read(path) or 'another process holds its lock'}.",
                "Wait until it has finished, or stop it; `distlfm status` shows what it does.",
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        holder = Holder(role=role, host=socket.gethostname(), pid=os.getpid(), since=now)
        with storing("the lock", store):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(holder.model_dump()).encode(), 0)
        yield holder
    finally:
        os.close(descriptor)


def holder(store: Path) -> Holder | None:
    """Who drives the store now, or None."""
    path = store / FILE
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(path)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def driver_of(store: Path) -> Holder | None:
    """Who works on the store now: the lock of a run is beside its store, that of any other in it."""
    return holder(store) or (holder(store.parent) if store.name == RUN_STORE else None)


def _taken(descriptor: int, path: Path) -> bool:
    """Take the lock if it is free."""
    for _ in range(ATTEMPTS):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            time.sleep(PAUSE)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            _log.warning("The file system of %s has no locks: take care that only one driver works on it.", path)
            return True
    return False


def _read(path: Path) -> Holder | None:
    try:
        return Holder.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
