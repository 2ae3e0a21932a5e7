"""Mechanisms of the user's own: modules that a config names are imported before the config is checked."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import model_validator

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.runtime.import_file import import_file


class WithPlugins(Config):
    """plugins: modules to import first, which register mechanisms."""

    plugins: tuple[str, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _with_plugins(cls, content: Any) -> Any:
        if isinstance(content, dict) and isinstance(content.get("plugins"), list | tuple):
            import_plugins([str(name) for name in content["plugins"]])
        return content


def import_plugins(names: Sequence[str]) -> None:
    """Import each module: NAME.py in the current folder or at a path, or an installed one.

    What they register is then known.
    """
    for name in names:
        module = plugin_name(name)
        if module in sys.modules:
            continue
        file = _file(name)
        try:
            if file.is_file():
                import_file(module, file)
            else:
                importlib.import_module(module)
        except Exception as error:
            if isinstance(error, OSError) and str(error.filename) == str(file.absolute()):
                raise UsageError(
                    f"Cannot read the plugin {name}: {error.strerror}.", "Check the path and its permissions."
                ) from error
            # The user's own code: whatever it raises is told, and --debug shows where.
            place = file if file.is_absolute() else f"{file} in the current folder"
            raise UsageError(
                f"The plugin {name!r} cannot be imported: {type(error).__name__}: {error}.",
                f"It must be {place}, or an installed module.",
            ) from error


def plugin_name(name: str) -> str:
    """The module that a config means, whether it gives its name or the path of its file."""
    return Path(name).stem if name.endswith(".py") else name


def located(names: Sequence[str]) -> tuple[str, ...]:
    """The same plugins, those in files by their absolute paths."""
    return tuple(str(_file(name).absolute()) if _file(name).is_file() else name for name in names)


def _file(name: str) -> Path:
    return Path(name if name.endswith(".py") else f"{name}.py")
