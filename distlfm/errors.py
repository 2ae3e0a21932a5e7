"""How distlfm fails: one sentence with the cause, one with the fix, and an exit code.

Whoever calls the library sees ordinary exception families (`ValueError`, `ImportError`, `RuntimeError`); the command
line turns each into its sentence and its exit code, and shows a traceback only with `--debug`.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

TRY_AGAIN = 75
"""Exit code of work that wants to be continued later."""


class DistlfmWarning(UserWarning):
    """Something was mended or guessed, and the user should know."""


class DistlfmError(Exception):
    """Base of all that we raise on purpose.

    cause: a sentence that says what is wrong. fix: a sentence that says what to do; it is printed after the cause.
    """

    exit_code = 1

    def __init__(self, cause: str, fix: str = "") -> None:
        super().__init__(cause if not fix else f"{cause} {fix}")
        self.cause = cause
        self.fix = fix


class UsageError(DistlfmError, ValueError):
    """The call itself is wrong: an unknown key, a file that is not there, a value out of range."""

    exit_code = 2


class OtherWork(UsageError):
    """A place holds work that was begun with other settings or data, or by another version: it cannot go on there."""


class WorkError(DistlfmError, RuntimeError):
    """The call was right and the work failed."""


class StorageError(WorkError):
    """A disk is full, read-only or broken: nothing more can be kept until that is mended."""


class StartError(WorkError):
    """Processes that the work needs cannot be started: no instance is to blame, and none can be had until they are."""


class MissingExtra(DistlfmError, ImportError):
    """An optional dependency is not installed; `fix` holds the exact install line."""


class Stopped(DistlfmError):
    """A signal ended the work before it was done; nothing that was done is lost.

    The exit code is what a shell gives for that signal; for USR1, with which schedulers warn, 75: try again later.
    which: the signal. when: such as "after 3 of 10 instances". command: the one that goes on.
    """

    def __init__(self, which: signal.Signals, when: str, command: str) -> None:
        super().__init__(f"Stopped by {which.name} {when}.", f"To go on: {command}")
        self.exit_code = TRY_AGAIN if which == signal.SIGUSR1 else 128 + which


@dataclass(frozen=True)
class Problem:
    """What is wrong with some data, where, and what to do about it.

    what, fix: a sentence each. file, row, column, instance: where, as far as that is known; `row` counts lines of the
    file from 1.
    """

    what: str
    fix: str
    file: str = ""
    row: int | None = None
    column: str | None = None
    instance: str | None = None

    def __str__(self) -> str:
        where = [self.file] if self.file else []
        named = (("instance {!r}", self.instance), ("row {}", self.row), ("column {!r}", self.column))
        where += [text.format(one) for text, one in named if one is not None]
        place = ", ".join(where)
        return f"{place}: {self.what} {self.fix}" if place else f"{self.what} {self.fix}"


@dataclass(frozen=True)
class Doubt(Problem):
    """Data that were read and look wrong, so that whoever reads an answer should know too."""


class DataError(UsageError):
    """Data that cannot be used; `problem` has the parts."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


def refused(
    what: str, fix: str, file: str = "", row: int | None = None, column: str | None = None, instance: str | None = None
) -> DataError:
    """Return the error of one problem. what, fix, file, row, column, instance: as for `Problem`."""
    return DataError(Problem(what, fix, file, row, column, instance))
