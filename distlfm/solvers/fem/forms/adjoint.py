"""dolfin-adjoint, on whichever UFL dolfin itself speaks.

dolfin-adjoint imports `ufl_legacy`. Newer distributions build dolfin on that name too; Debian 12's dolfin still says
`ufl`. The code is the same, but two copies of one class are two classes, and `solve(a == L)` then fails deep inside.
So where dolfin speaks `ufl`, `ufl_legacy` becomes another name of those very modules before dolfin-adjoint is loaded.

Importing dolfin initialises MPI: call this only in a helper process started with
`distlfm.runtime.process.scrubbed_mpi_environment`.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import sys
from types import ModuleType

from distlfm.errors import WorkError
from distlfm.optional import require

NAME_OF_DOLFIN_ADJOINT = "ufl_legacy"


@functools.cache
def import_adjoint() -> ModuleType:
    """Import `fenics_adjoint` so that its forms and dolfin's are of the same classes.

    Call it before any function space is built: it also chooses how dolfin orders degrees of freedom.

    Raises MissingExtra where dolfin or dolfin-adjoint is not installed, and WorkError where another import of
    `ufl_legacy` came first.
    """
    dolfin = require("dolfin", "fem")
    package: str = dolfin.FiniteElement.__module__.partition(".")[0]
    if package != NAME_OF_DOLFIN_ADJOINT:
        _alias_package(package, NAME_OF_DOLFIN_ADJOINT)
    # The gradient by a Constant lives in a space of one degree of freedom. On several ranks SCOTCH, the default, fails
    # to order the empty rest of it on one rank, and the others wait for ever.
    dolfin.parameters["dof_ordering_library"] = "Boost"
    return require("fenics_adjoint", "fem")


def _alias_package(package: str, alias: str) -> None:
    """Make `alias` and every submodule of it the same module objects as those of `package`."""
    root = importlib.import_module(package)
    loaded = sys.modules.get(alias)
    if loaded is not None and loaded is not root:
        raise WorkError(
            f"{alias} was imported before dolfin-adjoint could be joined to dolfin's {package}.",
            "Call distlfm.solvers.fem.forms.adjoint.import_adjoint() before anything imports dolfin_adjoint.",
        )
    names = [module.name for module in pkgutil.walk_packages(root.__path__, f"{package}.")]
    modules = {name: importlib.import_module(name) for name in names}
    sys.modules[alias] = root
    sys.modules.update({f"{alias}.{name.partition('.')[2]}": module for name, module in modules.items()})
