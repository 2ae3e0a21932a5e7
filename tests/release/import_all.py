"""Import every module of distlfm and name the file it came from.

    python import_all.py            one line a module
    python import_all.py --no-mpi   leave out the programs of the MPI helper groups; fail if another one loads MPI

Exit code 1 if a module cannot be imported.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
import traceback
from types import ModuleType

# These run inside an MPI program; importing one of them elsewhere initialises MPI.
MPI_PROGRAMS = ("distlfm.solvers.fem.",)
MPI_MODULES = ("dolfin", "petsc4py", "mpi4py", "fenics_adjoint", "dolfin_adjoint")


def module_names() -> list[str]:
    """All modules of the installed package, itself first."""
    package = importlib.import_module("distlfm")
    # A subpackage has to be imported to be walked; one that cannot be is told of by `main`.
    found = pkgutil.walk_packages(package.__path__, "distlfm.", onerror=lambda name: None)
    return ["distlfm", *sorted(info.name for info in found)]


def try_import(name: str) -> ModuleType | None:
    try:
        return importlib.import_module(name)
    except Exception:
        traceback.print_exc()
        return None


def main(arguments: list[str]) -> int:
    without_mpi = arguments == ["--no-mpi"]
    names = [name for name in module_names() if not (without_mpi and name.startswith(MPI_PROGRAMS))]
    modules = {name: try_import(name) for name in names}
    for name, module in modules.items():
        sys.stdout.write(f"{name}\t{'cannot be imported' if module is None else module.__file__}\n")
    loaded = [name for name in MPI_MODULES if name in sys.modules] if without_mpi else []
    if loaded:
        sys.stderr.write(f"loaded by an import: {', '.join(loaded)}\n")
    return 1 if loaded or None in modules.values() else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
