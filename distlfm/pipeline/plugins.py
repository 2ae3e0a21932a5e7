"""Mechanisms of the user's own: modules that a config names are imported before the config is checked."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from distlfm.errors import UsageError
from distlfm.runtime.import_file import import_file


def import_plugins(names: Sequence[str]) -> None:
    """Import each module: NAME.py in the current folder, or an installed one. What they register is then known."""
    for name in names:
        if name in sys.modules:
            continue
        file = Path(f"{name}.py")
        try:
            if file.is_file():
                import_file(name, file)
            else:
                importlib.import_module(name)
        except Exception as error:
            # The user's own code: whatever it raises is told, and --debug shows where.
            raise UsageError(
                f"The plugin {name!r} cannot be imported: {type(error).__name__}: {error}.",
                f"It must be {file} in the current folder, or an installed module.",
            ) from error
