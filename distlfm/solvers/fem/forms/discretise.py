"""A problem on its mesh: function space, weak form with boundary terms, fixed nodes, and the numbers of its nodes.

Boundary conditions add terms to the weak form, or fix degrees of freedom. These have three numbers. The *local* one of
a rank, its own first. The *global* one of dolfin and PETSc, contiguous by rank. The *canonical* one, lexicographic by
coordinates (the first axis counts most), which does not depend on mesh order or ranks: all arrays that cross to the
client are in it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlfm.config import nearest
from distlfm.equations import Equation
from distlfm.equations.base import BoundaryConfig, ProblemSpec
from distlfm.errors import UsageError
from distlfm.solvers.fem.forms.adjoint import import_adjoint
from distlfm.solvers.fem.forms.collective import concatenated, together
from distlfm.solvers.fem.forms.mesh_files import coordinate_levels
from distlfm.solvers.fem.forms.meshes import WHOLE, MeshDomain, build_domain
from distlfm.solvers.fem.forms.weak_form import blame, load_equation, nonlinear_in, nonlinear_in_coefficients, weak_form
from distlfm.solvers.fem.spec import FloatArray, IntArray


class Boundary:
    """The conditions of a problem on its mesh. Collective to make.

    A condition on a named part goes before one on `all`, which then holds on the rest. Where no condition is given, no
    flux crosses the boundary.
    """

    def __init__(self, conditions: Mapping[str, BoundaryConfig], domain: MeshDomain) -> None:
        import dolfin

        for name in conditions:
            if name not in domain.boundaries:
                raise UsageError(f"The mesh has no boundary named {name!r}.", nearest(name, sorted(domain.boundaries)))
        self._conditions = {name: conditions[name] for name in sorted(conditions, key=lambda name: name != WHOLE)}
        self._markers = dolfin.MeshFunction("size_t", domain.mesh, domain.dims - 1, 0)
        self._markers.set_values(together(domain.mesh.mpi_comm(), lambda: self._marks(domain)))

    def _marks(self, domain: MeshDomain) -> Any:
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

    def natural(self, mesh: Any, y: Any, v: Any) -> list[Any]:
        """The terms of Neumann and Robin conditions in the weak form."""
        adjoint = import_adjoint()
        import dolfin

        ds = dolfin.Measure("ds", domain=mesh, subdomain_data=self._markers)
        terms = []
        for mark, condition in enumerate(self._conditions.values(), start=1):
            value, rate = adjoint.Constant(condition.value), adjoint.Constant(condition.rate)
            if condition.kind == "neumann" and condition.value:
                terms.append(value * v * ds(mark))
            elif condition.kind == "robin":
                terms.append(rate * (value - y) * v * ds(mark))
        return terms

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


@dataclass(frozen=True)
class Discretisation:
    """∫ v ∂_t y dx = form(y, v, f, p) on one mesh.

    linear: affine in state and force together. affine: in the coefficients too, so that operators exist; otherwise
    `reason` says why not.
    state, force: dolfin-adjoint Functions; test: the form's test function; coefficients: Constants by name.
    conditions: the Dirichlet conditions. nodes: [J, d] in canonical order, on every rank.
    canonical: [J], the canonical number of each global one, on every rank.
    fixed, fixed_values: [F_r], this rank's own local numbers with a Dirichlet condition, and the values there.
    """

    spec: ProblemSpec
    comm: Any
    equation: Equation
    domain: MeshDomain
    space: Any
    state: Any
    force: Any
    test: Any
    coefficients: Mapping[str, Any]
    form: Any
    conditions: list[Any]
    linear: bool
    affine: bool
    reason: str
    nodes: FloatArray
    canonical: IntArray
    fixed: IntArray
    fixed_values: FloatArray

    @property
    def dims(self) -> int:
        return self.domain.dims

    @property
    def num_nodes(self) -> int:
        return len(self.nodes)

    @property
    def owned_range(self) -> tuple[int, int]:
        """First and one past the last global number of this rank's own degrees of freedom."""
        first, last = self.space.dofmap().ownership_range()
        return int(first), int(last)

    @property
    def owned(self) -> IntArray:
        """[J_r]: the canonical numbers of this rank's own degrees of freedom, by local number."""
        numbers: IntArray = self.canonical[slice(*self.owned_range)]
        return numbers

    def scatter(self, vector: Any, values: FloatArray) -> None:
        """Set a distributed dolfin vector from an array [J] in canonical order that every rank has."""
        vector.set_local(np.ascontiguousarray(values[self.owned]))
        vector.apply("insert")

    def gather(self, vector: Any) -> FloatArray:
        """The values [J] of a distributed dolfin vector in canonical order, on every rank. Collective."""
        values = np.empty(self.num_nodes)
        values[self.canonical] = concatenated(self.comm, vector.get_local())
        return values

    def entries(self, matrix: Any) -> tuple[FloatArray, IntArray, IntArray]:
        """Entries of a petsc4py matrix with their canonical rows and columns, on every rank. Collective."""
        indptr, indices, data = matrix.getValuesCSR()
        rows = self.owned_range[0] + np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        values, rows, columns = (concatenated(self.comm, part) for part in (data, rows, indices))
        return values, self.canonical[rows], self.canonical[columns]

    def own_cells(self) -> IntArray:
        """[C_r, d + 1]: canonical numbers of the vertices of this rank's cells."""
        mesh, dofmap = self.domain.mesh, self.space.dofmap()
        of_vertex = np.asarray(dofmap.entity_dofs(mesh, 0))
        to_global = np.asarray(dofmap.tabulate_local_to_global_dofs())
        cells: IntArray = self.canonical[to_global[of_vertex[np.array(mesh.cells(), dtype=np.int64)]]]
        return cells


def discretise(spec: ProblemSpec, comm: Any) -> Discretisation:
    """Put a problem on its mesh, on the ranks of the mpi4py communicator `comm`. Collective.

    Raises UsageError, on all ranks alike, for a mesh, boundary or form that cannot be used.
    """
    adjoint = import_adjoint()
    import dolfin

    _quieten(dolfin)
    with adjoint.stop_annotating():
        equation = load_equation(spec.equation)
        domain = build_domain(spec.mesh, comm)
        space = dolfin.FunctionSpace(domain.mesh, "P", spec.degree)
        state, force, test = adjoint.Function(space), adjoint.Function(space), dolfin.TestFunction(space)
        unnamed = f"{type(equation).__name__} cannot name its coefficients in {domain.dims} dimensions"
        with blame(unnamed, "Mend its method `named`."):
            names = list(equation.named(domain.dims))
        coefficients = {name: adjoint.Constant(1.0) for name in names}
        form = weak_form(equation, state, test, force, coefficients)
        reason = nonlinear_in(form, state, force)
        linear = not reason
        if linear:
            reason = nonlinear_in_coefficients(equation, domain.dims, spec.degree, names)
        boundary = Boundary(spec.boundary, domain)
        conditions = boundary.essential(space)
        fixed, fixed_values = fixed_dofs(space, conditions)
        nodes, canonical = _canonical_order(space, comm)
        return Discretisation(
            spec=spec,
            comm=comm,
            equation=equation,
            domain=domain,
            space=space,
            state=state,
            force=force,
            test=test,
            coefficients=coefficients,
            form=sum(boundary.natural(domain.mesh, state, test), form),
            conditions=conditions,
            linear=linear,
            affine=not reason,
            reason=reason,
            nodes=nodes,
            canonical=canonical,
            fixed=fixed,
            fixed_values=fixed_values,
        )


def _canonical_order(space: Any, comm: Any) -> tuple[FloatArray, IntArray]:
    """Coordinates of the nodes in canonical order [J, d], and the canonical number of each global one [J]."""
    coordinates = concatenated(comm, np.array(space.tabulate_dof_coordinates()))
    levels = coordinate_levels(coordinates)
    order = np.lexsort(levels.T[::-1])
    canonical = np.empty(len(order), dtype=np.int64)
    canonical[order] = np.arange(len(order))
    return coordinates[order], canonical


def _quieten(dolfin: Any) -> None:
    dolfin.set_log_level(dolfin.LogLevel.ERROR)
    for name in ("FFC", "UFL", "UFL_LEGACY", "dijitso"):
        logging.getLogger(name).setLevel(logging.ERROR)
