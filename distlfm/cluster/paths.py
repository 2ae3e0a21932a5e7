"""How another Python process finds the modules of this one."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

from distlfm import version


def import_environment() -> dict[str, str]:
    """Environment with which a new Python imports this very distlfm; nothing where it is installed anyway."""
    root = str(Path(version.__file__).resolve().parent.parent)
    installed = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    if root in installed:
        return {}
    known = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != root]
    return {"PYTHONPATH": os.pathsep.join([root, *known])}


def import_path() -> list[str]:
    """The places that this process imports from, as absolute paths."""
    return [os.path.abspath(entry) for entry in sys.path]


def adopt_import_path(path: Sequence[str]) -> None:
    """Import from these places, in this order, and after them from those known here only.

    A process that Ray starts looks into the working directory first, where a `queue.py` may lie by chance.
    """
    own = [entry for entry in import_path() if entry not in path and entry != os.getcwd()]
    sys.path[:] = [*path, *own]
