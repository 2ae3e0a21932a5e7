"""What went wrong in a worker, as plain data that crosses processes: no exception object has to be unpickled."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from distlfm.errors import DistlfmError, MissingExtra, StartError, StorageError, UsageError, WorkError

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
