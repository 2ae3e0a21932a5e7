"""What is to be done, cut into blocks, and who does it.

A job describes the work and opens workers; a worker does one block after another. Neither knows who calls it: a serial
pool opens one worker in its own process, a Ray pool one in each actor. What goes wrong in a worker is plain data that
crosses processes: no exception object has to be unpickled.

Blocks go into a pool and events come out as they happen. It keeps no results. Blocks are done in any order, each
exactly once; the iterator ends when all are done, or soon after a stop was asked for. What ends the whole run is raised
from the iterator.
"""

from __future__ import annotations

import math
import traceback
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from distlfm.errors import DistlfmError, MissingExtra, StartError, StorageError, UsageError, WorkError
from distlfm.runtime.process import Stop


@dataclass(frozen=True)
class Past:
    """What earlier tries at a job have left. seconds: that blocks took which are done, by block.

    answered: the call has proven right, as some row of theirs did not fail.
    """

    seconds: Mapping[int, float] = field(default_factory=dict)
    answered: bool = False


class Worker(ABC):
    """Does blocks of a job, in one process. A block has rows `0 .. count - 1`, one per instance."""

    @abstractmethod
    def run(self, block: int, left_out: Mapping[int, str]) -> Mapping[str, Any]:
        """Do a block and store it; a block that is stored already is left as it is.

        left_out: rows that are not tried, with the reason that is stored for them.
        Returns a small report of plain values, with at least `count`, `failed` and `seconds`.
        """

    @abstractmethod
    def attempt(self, block: int, rows: Sequence[int]) -> None:
        """The same work for some rows of a block, and nothing is stored: raises what those rows raise."""

    def close(self) -> None:  # noqa: B027 (most workers hold nothing)
        """Let go of what the worker holds."""


class Job(ABC):
    """A description that can be pickled, and is opened in each worker's process.

    cpus: what a worker takes, as threads or as processes of its own.
    grouped: a worker starts `cpus` processes of its own, so their places are reserved together on one node.
    memory: bytes that a block in hand takes, about; 0 if that is little.
    """

    num_blocks: int
    cpus: int = 1
    grouped: bool = False
    memory: int = 0

    @abstractmethod
    def sizes(self) -> Sequence[float]:
        """[num_blocks]: a first guess of what each block costs, in any unit."""

    @abstractmethod
    def count(self, block: int) -> int:
        """Number of rows of a block."""

    def past(self) -> Past:
        """What is known from earlier tries; nothing by default."""
        return Past()

    @abstractmethod
    def open(self) -> Worker:
        """A worker in this process."""


FAMILIES: dict[str, type[DistlfmError]] = {
    "storage": StorageError,
    "start": StartError,
    "usage": UsageError,
    "extra": MissingExtra,
    "work": WorkError,
}
"""What we raise on purpose keeps its family; of these, an exception belongs to the first that fits."""

TORCH_STARVED = "DefaultCPUAllocator"
"""Torch raises a plain RuntimeError where there is no memory; this is in its message."""

DIED = "WorkerDied"
TEXT_LIMIT = 2000
"""Characters of a message that are kept."""


@dataclass(frozen=True)
class Failure:
    """kind: the exception's type name. where: the line that raised, for the log.

    family: a key of `FAMILIES`, "memory" if there was not enough of it, "death" of the worker's process, or "other".
    """

    kind: str
    family: str
    cause: str
    fix: str = ""
    where: str = ""

    @property
    def died(self) -> bool:
        """The worker's process ended."""
        return self.family == "death"

    @property
    def starved(self) -> bool:
        """There was not enough memory, whoever had it."""
        return self.family == "memory"

    @property
    def reason(self) -> str:
        """One line for the row that fails this way."""
        text = self.cause if not self.fix else f"{self.cause} {self.fix}"
        return f"{self.kind}: {text}" if self.family in ("other", "memory") and self.kind != DIED else text

    def error(self) -> DistlfmError:
        """An exception of the same family and text."""
        if self.family in FAMILIES:
            return FAMILIES[self.family](self.cause, self.fix)
        place = f" (raised at {self.where})" if self.where else ""
        return WorkError(f"{self.reason}{place}.")


def failure_of(error: BaseException) -> Failure:
    """The plain data of an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    kind = type(error).__name__
    for family, member in FAMILIES.items():
        if isinstance(error, member):
            return Failure(kind, family, _short(error.cause), _short(error.fix), where)
    text = _text(error)
    starved = isinstance(error, MemoryError) or TORCH_STARVED in text
    return Failure(kind, "memory" if starved else "other", _short(text), "", where)


def death(cause: str, starved: bool = False) -> Failure:
    """A worker's process ended, for the given cause. starved: it was ended for the memory that it took."""
    return Failure(DIED, "memory" if starved else "death", cause)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide the failure
        return "(its message cannot be shown)"


def _short(text: str) -> str:
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}…"


GRACE_SECONDS = 10.0
"""After a stop was asked for, blocks in hand may still be finished for so long."""


@dataclass(frozen=True)
class Started:
    """A block was given to a worker; `worker` is `host:pid`."""

    block: int
    worker: str


@dataclass(frozen=True)
class BlockDone:
    """A block is stored; `report` is what its worker said. `time_left` in seconds, NaN while nothing is known."""

    block: int
    report: Mapping[str, Any]
    worker: str
    time_left: float = math.nan


@dataclass(frozen=True)
class BlockRetried:
    """A block failed as a whole and is tried again, whole or in parts."""

    block: int
    why: str


@dataclass(frozen=True)
class RowsSetAside:
    """Rows that fail on their own, with the reason of each; comes just before the block's `BlockDone`."""

    block: int
    reasons: Mapping[int, str]


@dataclass(frozen=True)
class WorkerLost:
    """A worker's process is gone; another takes its place."""

    worker: str
    why: str


Event = Started | BlockDone | BlockRetried | RowsSetAside | WorkerLost


class Pool(ABC):
    """Who does the work; `workers` is how many are up, which is the most blocks in hand at a time."""

    workers: int

    @abstractmethod
    def work(self, job: Job, blocks: Sequence[int], stop: Stop) -> Iterator[Event]:
        """Do these blocks of a job, those that cost most first."""
