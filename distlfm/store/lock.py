"""One driver per store, or several that have parts of it. Locks are the kernel's: free the moment their holder dies."""

from __future__ import annotations

import fcntl
import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from pydantic import ValidationError

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.runtime.process import job_name
from distlfm.store.files import storing
from distlfm.store.metadata import RUN_STORE, open_lock, wait_for_lock

FILE, PARTS, TURN = "lock", "parts", "turn"
ATTEMPTS, PAUSE = 5, 0.05
"""Whoever asks for the holder has the lock for an instant; a driver tries this often before it believes it is taken."""

OWN_SECONDS = 180.0
"""A file server may believe for so long that a machine which has died still has its locks: a job that is begun again
waits for those of its own earlier attempt."""

_log = logging.getLogger(__name__)


class Holder(Config):
    """The driver of a store. since: ISO time at which it began. job: of the scheduler, if it belongs to one."""

    role: str
    host: str
    pid: int
    since: str
    job: str = ""

    def __str__(self) -> str:
        job = f"job {self.job}, " if self.job else ""
        return f"{self.role} on {self.host}, {job}process {self.pid}, since {self.since}"


def driver_lock(store: Path, role: str = "fit") -> AbstractContextManager[Holder]:
    """Be the only driver of a store; a second one is refused with the name of the first."""
    return _held(store, store / FILE, role)


@contextmanager
def part_lock(store: Path, share: str) -> Iterator[Holder]:
    """Be the driver of one part, `2/16`, beside those of the others. A driver of the whole is refused meanwhile, as is
    one of a part of another size: both would do what is in hand here."""
    folder, name = store / PARTS, share.replace("/", "-of-")
    with storing("the lock", store):
        folder.mkdir(exist_ok=True)
    with _held(store, store / FILE, "fit", shared=True), _held(store, folder / name, f"fit, part {share}") as me:
        for other in sorted(folder.glob("*-of-*")):
            who = _holder(other) if other.name.partition("-of-")[2] != name.partition("-of-")[2] else None
            if who is not None:
                raise _in_use(store, who)
        yield me


@contextmanager
def turn(store: Path) -> Iterator[None]:
    """Let in one part's driver at a time; the others wait here."""
    with _opened(store, store / PARTS / TURN) as descriptor:
        wait_for_lock(descriptor)
        yield


@contextmanager
def _opened(store: Path, path: Path) -> Iterator[int]:
    with storing("the lock", store):
        descriptor = open_lock(path)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _held(store: Path, path: Path, role: str, *, shared: bool = False) -> Iterator[Holder]:
    with _opened(store, path) as descriptor:
        job, until = job_name(os.environ), time.monotonic() + OWN_SECONDS
        while not _taken(descriptor, path, fcntl.LOCK_SH if shared else fcntl.LOCK_EX):
            who = holder(store)
            if who is None or not job or who.job != job or time.monotonic() > until:
                raise _in_use(store, who)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        me = Holder(role=role, host=socket.gethostname(), pid=os.getpid(), since=now, job=job)
        if not shared:
            with storing("the lock", store):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, me.model_dump_json().encode(), 0)
        yield me


def _in_use(store: Path, who: Holder | None) -> UsageError:
    return UsageError(
        f"{store} is in use: {who or 'another process holds its lock'}.",
        "Wait until it has finished, or stop it; `distlfm status` shows what it does.",
    )


def drivers(store: Path) -> list[Holder]:
    """Who works on the store now: its driver, or those of its parts."""
    holders = [_holder(path) for path in (store / FILE, *sorted((store / PARTS).glob("*-of-*")))]
    return [who for who in holders if who is not None]


def drivers_of(store: Path) -> list[Holder]:
    """Who works on the store now: the lock of a run is beside its store, that of any other in it."""
    return drivers(store) or (drivers(store.parent) if store.name == RUN_STORE else [])


def holder(store: Path) -> Holder | None:
    """Return who drives the store now, or the first of those who do; None if nobody does."""
    return next(iter(drivers(store)), None)


def _holder(path: Path) -> Holder | None:
    """Who has this lock."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        with suppress(OSError, ValidationError):
            return Holder.model_validate_json(path.read_bytes())
    except OSError:
        return None
    return None


def _taken(descriptor: int, path: Path, how: int) -> bool:
    """Take the lock if it is free."""
    for _ in range(ATTEMPTS):
        try:
            if not wait_for_lock(descriptor, how | fcntl.LOCK_NB):
                _log.warning("The file system of %s has no locks: take care that only one driver works on it.", path)
            return True
        except BlockingIOError:
            time.sleep(PAUSE)
    return False
