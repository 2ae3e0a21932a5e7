"""Boundary conditions: what they add to the weak form, and which degrees of freedom they fix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from distlfm.config import nearest
from distlfm.errors import UsageError
from distlfm.solvers.fem.adjoint import import_adjoint
from distlfm.solvers.fem.collective import together
from distlfm.solvers.fem.meshes import WHOLE, Domain
from distlfm.solvers.fem.spec import BoundaryConfig, FloatArray, IntArray


class Boundary:
    """The conditions of a problem on its mesh. Collective to make.

    A condition on a named part goes before one on `all`, which then holds on the rest. Where no condition is given, no
    flux crosses the boundary.
    """

    def __init__(self, conditions: Mapping[str, BoundaryConfig], domain: Domain) -> None:
        import dolfin

        for name in conditions:
            if name not in domain.boundaries:
                raise UsageError(f"The mesh has no boundary named {name!r}.", nearest(name, sorted(domain.boundaries)))
        self._conditions = {name: conditions[name] for name in sorted(conditions, key=lambda name: name != WHOLE)}
        dims = domain.dims
        self._markers = dolfin.MeshFunction("size_t", domain.mesh, dims - 1, 0)
        marks = together(domain.mesh.mpi_comm(), lambda: self._marks(domain))
        self._markers.set_values(marks)

    def _marks(self, domain: Domain) -> Any:
        marks = np.zeros(self._markers.size(), dtype=np.uintp)
        names = ["", *self._conditions]
        for mark, name in enumerate(self._conditions, start=1):
            facets = domain.boundaries[name]
            others = [int(other) for other in np.unique(marks[facets]) if other and names[other] != WHOLE]
            if others:
                raise UsageError(
                    f"The boundaries {names[others[0]]!r} and {name!r} overlap, and both have a condition.",
                    "Give one condition for each place.",
                )
            marks[facets] = mark
        return marks

    def natural(self, mesh: Any, y: Any, v: Any) -> Any:
        """The terms of Neumann and Robin conditions in the weak form, or None."""
        adjoint = import_adjoint()
        import dolfin

        ds = dolfin.Measure("ds", domain=mesh, subdomain_data=self._markers)
        form = None
        for mark, condition in enumerate(self._conditions.values(), start=1):
            value, rate = adjoint.Constant(condition.value), adjoint.Constant(condition.rate)
            if condition.kind == "neumann" and condition.value:
                term = value * v * ds(mark)
            elif condition.kind == "robin" and condition.rate:
                term = rate * (value - y) * v * ds(mark)
            else:
                continue
            form = term if form is None else form + term
        return form

    def essential(self, space: Any) -> list[Any]:
        """The Dirichlet conditions as dolfin-adjoint's objects."""
        adjoint = import_adjoint()
        return [
            adjoint.DirichletBC(space, adjoint.Constant(condition.value), self._markers, mark)
            for mark, condition in enumerate(self._conditions.values(), start=1)
            if condition.kind == "dirichlet"
        ]


def fixed_dofs(space: Any, conditions: list[Any]) -> tuple[IntArray, FloatArray]:
    """Local numbers [F] and values [F] of this rank's degrees of freedom that Dirichlet conditions fix. Collective."""
    import dolfin

    # Applied to vectors, because the facet that fixes a degree of freedom may be on another rank.
    values, free = dolfin.Function(space), dolfin.Function(space)
    free.vector()[:] = 1.0
    for condition in conditions:
        dolfin.DirichletBC.apply(condition, values.vector())
        homogeneous = dolfin.DirichletBC(condition)
        homogeneous.homogenize()
        homogeneous.apply(free.vector())
    fixed = np.flatnonzero(free.vector().get_local() == 0.0).astype(np.int64)
    return fixed, np.array(values.vector().get_local()[fixed])
