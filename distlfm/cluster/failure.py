"""What went wrong in a worker, as plain data that crosses processes: no exception object has to be unpickled."""

from __future__ import annotations

import traceback
from dataclasses import dataclass

from distlfm.errors import DistlfmError, MissingExtra, StorageError, UsageError, WorkError

FAMILIES: dict[str, type[DistlfmError]] = {
    "storage": StorageError,
    "usage": UsageError,
    "extra": MissingExtra,
    "work": WorkError,
}
"""What we raise on purpose keeps its family; of these, an exception belongs to the first that fits."""

TEXT_LIMIT = 2000
"""Characters of a message that are kept."""


@dataclass(frozen=True)
class Failure:
    """kind: the exception's type name. family: a key of `FAMILIES`, "other", or "death" of the worker's process.

    where: the line that raised, for the log.
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
    def reason(self) -> str:
        """One line for the row that fails this way."""
        text = self.cause if not self.fix else f"{self.cause} {self.fix}"
        return f"{self.kind}: {text}" if self.family == "other" else text

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
    return Failure(kind, "other", _short(_text(error)), "", where)


def death(cause: str) -> Failure:
    """A worker's process ended, for the given cause."""
    return Failure("WorkerDied", "death", cause)


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # a broken __str__ must not hide the failure
        return "(its message cannot be shown)"


def _short(text: str) -> str:
    return text if len(text) <= TEXT_LIMIT else f"{text[:TEXT_LIMIT]}…"
