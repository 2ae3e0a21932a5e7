"""One probe as a program: `python -m distlfm.doctor.probe MODULE.CHECK [DIRECTORY]`, and how it replies.

The reply is one line of JSON on stdout, or a traceback that the doctor turns into `broken`. Only the module of the
probe that is asked for is imported: another's libraries may crash this process.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import shlex
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Literal

from distlfm.errors import MissingExtra

RANK = "mpi.run_mpi_rank"
"""Not a probe, but one of the processes that the probe of mpirun starts."""

Status = Literal["ok", "missing", "broken"]


class Finding(Exception):
    """A part that is missing or broken in a way the probe understands. Without a `fix`, the doctor's own is shown."""

    def __init__(self, status: Status, detail: str, fix: str = "") -> None:
        super().__init__(detail)
        self.status: Status = status
        self.detail = detail
        self.fix = fix


def load(name: str) -> ModuleType:
    """Import a module, telling one that is not installed (missing) from one that does not work (its own error)."""
    root = name.partition(".")[0]
    if importlib.util.find_spec(root) is None:
        raise Finding("missing", f"{root} is not installed")
    return importlib.import_module(name)


def expect(holds: bool, otherwise: str) -> None:
    """Broken, in the words of `otherwise`, unless it holds. Unlike an assert, `python -O` keeps it."""
    if not holds:
        raise Finding("broken", otherwise)


def reply(check: Callable[[], str]) -> None:
    """Run a probe's `check`, which returns what it found in a few words, and write the line the doctor reads."""
    # At a time limit: unwind, so that temporary directories are removed and children told.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    status: Status = "ok"
    try:
        detail, fix = check(), ""
    except Finding as finding:
        status, detail, fix = finding.status, finding.detail, finding.fix
    except MissingExtra as error:
        status, detail, fix = "missing", error.cause, ""
    line = json.dumps({"status": status, "detail": detail, "fix": fix})
    # Native libraries may have left half a line.
    sys.stdout.write(f"\n{line}\n")
    sys.stdout.flush()


def requested_directory() -> Path:
    """Return the directory of the command line; missing, with the command that makes it, if it could be made."""
    directory = Path(sys.argv[2]).absolute()
    if directory.is_dir():
        return directory
    existing = next(parent for parent in directory.parents if parent.exists())
    if directory.exists() or not existing.is_dir():
        at_fault = directory if directory.exists() else existing
        raise Finding("broken", f"{at_fault} is a file, not a directory")
    raise Finding("missing", f"{directory} does not exist", f"mkdir -p {shlex.quote(str(directory))}")


def main() -> None:
    """Run the probe that the command line names."""
    name = sys.argv[1]
    module, _, function = name.partition(".")
    program = getattr(importlib.import_module(f"distlfm.doctor.{module}"), function)
    if name == RANK:
        program()
    else:
        reply(program)


if __name__ == "__main__":
    # Findings are raised by modules that import this one by its name, so the class must be theirs.
    importlib.import_module("distlfm.doctor.probe").main()
