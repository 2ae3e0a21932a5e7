"""The directory that a probe of storage is asked about: the first argument of its command line."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

from distlfm.pipeline.probes.answer import Finding


def asked_directory() -> Path:
    """That directory, if it is there; missing, with the command that makes it, if it could be made."""
    directory = Path(sys.argv[1]).absolute()
    if directory.is_dir():
        return directory
    existing = next(parent for parent in directory.parents if parent.exists())
    if directory.exists() or not existing.is_dir():
        at_fault = directory if directory.exists() else existing
        raise Finding("broken", f"{at_fault} is a file, not a directory")
    raise Finding("missing", f"{directory} does not exist", f"mkdir -p {shlex.quote(str(directory))}")
