"""Import a module on demand: one of an optional dependency, or say exactly how to install it; or one from a file."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from distlfm.errors import MissingExtra

SYSTEM_PACKAGES = {
    "fem": "apt-get install python3-dolfin python3-petsc4py python3-mpi4py openmpi-bin",
}


def install_line(extra: str) -> str:
    """The command that installs an extra, with its system packages where pip cannot bring them."""
    line = f'pip install "distlfm[{extra}]"'
    return f"{SYSTEM_PACKAGES[extra]} && {line}" if extra in SYSTEM_PACKAGES else line


def require(module: str, extra: str) -> ModuleType:
    """Import `module`, which the extra `extra` brings.

    Raises MissingExtra with the install line. An import that fails inside an installed module is not disguised as a
    missing one: its own error comes through.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise MissingExtra(f"{module} is not installed.", f"Install it with: {install_line(extra)}") from error


def import_file(name: str, file: Path) -> ModuleType:
    """Execute the file as the module `name`; if it fails, nothing of it stays."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
