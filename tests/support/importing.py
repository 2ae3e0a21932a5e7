"""How a process that a test starts finds `tests.support`."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def import_environment() -> dict[str, str]:
    """Return the environment of this process, with the root of the repository first on PYTHONPATH."""
    known = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry and entry != str(ROOT)]
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *known])}
