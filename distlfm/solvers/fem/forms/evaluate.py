"""A weak form and its first derivatives at given states, and values of a field at points anywhere in the domain.

A step of any form by a scheme (`solvers/field/scheme.py`) has no other derivatives than these. So they are assembled
once at each time, and whoever asked does all sweeps forward and backward by linear algebra: a linearised trajectory, or
matched slopes. A field is read at points by a sparse matrix from nodes to points.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from distlfm.errors import UsageError
from distlfm.solvers.fem.forms.adjoint import import_adjoint
from distlfm.solvers.fem.forms.collective import concatenated
from distlfm.solvers.fem.forms.discretise import Discretisation
from distlfm.solvers.fem.spec import Csr, FloatArray, IntArray

# Of the domain's extent: a point this far outside counts as on the boundary.
OUTSIDE_TOLERANCE = 1e-8
# Weights smaller than this are what rounding left of zero: a point on a vertex has that vertex alone.
NEGLIGIBLE_WEIGHT = 1e-12


def interpolation(d: Discretisation, points: FloatArray) -> Csr:
    """The matrix [O, J] that takes a field in canonical order to the points [O, d], on every rank. Collective.

    A point, given alike on every rank, belongs to the lowest rank with a cell that contains it.
    """
    from scipy.sparse import coo_array

    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != d.dims:
        raise UsageError(f"Points have the shape {points.shape}, not [O, {d.dims}].", "Give one coordinate per axis.")
    if not np.isfinite(points).all():
        raise UsageError("Some points are not finite.", "Leave them out.")
    cells, distances = _locate(d, points)
    all_distances = np.array(d.comm.allgather(distances)).reshape(d.comm.size, len(points))
    outside = np.flatnonzero(all_distances.min(axis=0) > OUTSIDE_TOLERANCE * d.domain.extent)
    if outside.size:
        place = ", ".join(f"{value:.6g}" for value in points[outside[0]])
        bounds = " × ".join(
            f"[{low:.6g}, {high:.6g}]" for low, high in zip(d.domain.lower, d.domain.upper, strict=True)
        )
        raise UsageError(
            f"Point {outside[0]} at ({place}) is outside the domain, which lies in {bounds}; "
            f"{outside.size} of {len(points)} are.",
            "Forces and observations must be in the domain: enlarge the mesh, or leave them out.",
        )
    mine = np.flatnonzero(all_distances.argmin(axis=0) == d.comm.rank)
    rows, nodes, weights = (concatenated(d.comm, part) for part in _weights(d, points, cells, mine))
    matrix: Csr = coo_array((weights, (rows, d.canonical[nodes])), shape=(len(points), d.num_nodes)).tocsr()
    matrix.sort_indices()
    return matrix


def _locate(d: Discretisation, points: FloatArray) -> tuple[IntArray, FloatArray]:
    """The nearest of this rank's cells to each point, and the distance to it, zero inside."""
    import dolfin

    mesh = d.domain.mesh
    tree = mesh.bounding_box_tree()
    cells, distances = np.zeros(len(points), dtype=np.int64), np.zeros(len(points))
    num_cells = mesh.num_cells()
    for i, place in enumerate(points):
        point = dolfin.Point(*place)
        cell = tree.compute_first_entity_collision(point)
        if cell < num_cells:
            cells[i] = cell
        else:
            cells[i], distances[i] = tree.compute_closest_entity(point)
    return cells, distances


def _weights(d: Discretisation, points: FloatArray, cells: IntArray, mine: IntArray) -> tuple[Any, ...]:
    """The points that this rank owns, as triplets: point number, global number of the node, weight."""
    import dolfin

    mesh, dofmap, element = d.domain.mesh, d.space.dofmap(), d.space.element()
    to_global = np.asarray(dofmap.tabulate_local_to_global_dofs(), dtype=np.int64)
    rows, columns = ([np.zeros(0, dtype=np.int64)] for _ in range(2))
    values = [np.zeros(0)]
    for i in mine:
        cell = dolfin.Cell(mesh, int(cells[i]))
        basis = np.array(element.evaluate_basis_all(points[i], cell.get_vertex_coordinates(), cell.orientation()))
        kept = np.flatnonzero(np.abs(basis) > NEGLIGIBLE_WEIGHT)
        rows.append(np.full(len(kept), i, dtype=np.int64))
        columns.append(to_global[dofmap.cell_dofs(cell.index())[kept]])
        values.append(basis[kept])
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(values)


class FormDerivatives:
    """The derivatives of one problem's form, derived and compiled once. Collective."""

    def __init__(self, d: Discretisation) -> None:
        import dolfin

        self.d = d
        with import_adjoint().stop_annotating():
            trial = dolfin.TrialFunction(d.space)
            self._value = dolfin.Form(d.form)
            self._forms = tuple(dolfin.Form(dolfin.derivative(d.form, of, trial)) for of in (d.state, d.force))
            self._by_theta = [
                dolfin.Form(dolfin.derivative(d.form, constant, dolfin.Constant(1.0)))
                for constant in d.coefficients.values()
            ]
            self._mass = dolfin.as_backend_type(dolfin.assemble(trial * d.test * dolfin.dx)).mat()
            # Forms over interior facets have wider patterns than others: one tensor for each.
            self._tensors = tuple(dolfin.PETScMatrix(d.comm) for _ in range(2))

    def at(self, theta: FloatArray, states: FloatArray, force: FloatArray) -> dict[str, Any]:
        """F(y, f; θ) in canonical order: theta [k] in the problem's order; states, force: [n, J].

        value: [n, J]; by_theta: [n, k, J]; mass: [E], by_state, by_force: [n, E], the entries of matrices [J, J] with
        one pattern: indices [E], indptr [J + 1]. Dirichlet conditions are not applied.
        """
        import dolfin

        d = self.d
        with import_adjoint().stop_annotating():
            for constant, value in zip(d.coefficients.values(), theta, strict=True):
                constant.assign(float(value))
            keys, count = self._keys, len(states)
            value, by_theta = np.empty((count, d.num_nodes)), np.empty((count, len(theta), d.num_nodes))
            by_state, by_force = np.empty((count, len(keys))), np.empty((count, len(keys)))
            for n in range(count):
                d.scatter(d.state.vector(), states[n])
                d.scatter(d.force.vector(), force[n])
                value[n] = d.gather(dolfin.assemble(self._value))
                for k, form in enumerate(self._by_theta):
                    by_theta[n, k] = d.gather(dolfin.assemble(form))
                for form, tensor, found in zip(self._forms, self._tensors, (by_state, by_force), strict=True):
                    dolfin.assemble(form, tensor=tensor)
                    found[n] = self._on(keys, tensor.mat())
        rows, indices = np.divmod(keys, d.num_nodes)
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=d.num_nodes))]).astype(np.int64)
        along = {"value": value, "by_theta": by_theta, "by_state": by_state, "by_force": by_force}
        return along | {"mass": self._on(keys, self._mass), "indices": indices, "indptr": indptr}

    @functools.cached_property
    def _keys(self) -> IntArray:
        """Canonical places of all entries that mass and derivatives have, in order."""
        import dolfin

        for form, tensor in zip(self._forms, self._tensors, strict=True):
            dolfin.assemble(form, tensor=tensor)
        parts = [self._ordered(matrix)[0] for matrix in (self._mass, *(tensor.mat() for tensor in self._tensors))]
        return np.unique(np.concatenate(parts))

    def _on(self, keys: IntArray, matrix: Any) -> FloatArray:
        """The entries of a matrix at places `keys`, zero where it has none."""
        own, entries = self._ordered(matrix)
        if len(own) == len(keys):
            return entries
        values = np.zeros(len(keys))
        values[np.searchsorted(keys, own)] = entries
        return values

    def _ordered(self, matrix: Any) -> tuple[IntArray, FloatArray]:
        """Canonical places row · J + column of the entries, in order, and the entries, on every rank."""
        values, rows, columns = self.d.entries(matrix)
        keys = rows * self.d.num_nodes + columns
        order = np.argsort(keys)
        return keys[order], values[order]
