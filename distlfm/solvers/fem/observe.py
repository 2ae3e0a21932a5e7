"""Values of a field at points anywhere in the domain: a sparse matrix from nodes to points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from distlfm.errors import UsageError
from distlfm.solvers.fem.collective import concatenated
from distlfm.solvers.fem.discretise import Discretisation
from distlfm.solvers.fem.spec import Csr, FloatArray, IntArray

# Of the domain's extent: a point this far outside counts as on the boundary.
OUTSIDE_TOLERANCE = 1e-8
# Weights smaller than this are what rounding left of zero: a point on a vertex has that vertex alone.
NEGLIGIBLE_WEIGHT = 1e-12


@dataclass(frozen=True)
class PointWeights:
    """The points that this rank owns, as triplets: point number, global number of the node, weight."""

    points: IntArray
    nodes: IntArray
    weights: FloatArray


def own_point_weights(d: Discretisation, points: FloatArray) -> PointWeights:
    """Weights of the points [O, d], given alike on every rank, that this rank owns. Collective.

    A point belongs to the lowest rank with a cell that contains it.
    """
    points = _checked(d, points)
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
    return _weights(d, points, cells, mine)


def interpolation(d: Discretisation, points: FloatArray) -> Csr:
    """The matrix [O, J] that takes a field in canonical order to the points [O, d], on every rank. Collective."""
    from scipy.sparse import coo_array

    own = own_point_weights(d, points)
    rows, nodes = concatenated(d.comm, own.points), concatenated(d.comm, own.nodes)
    weights = concatenated(d.comm, own.weights)
    shape = (len(points), d.num_nodes)
    found = coo_array((weights, (rows, d.canonical[nodes])), shape=shape).tocsr()
    found.sort_indices()
    return Csr(found.data, found.indices.astype(np.int64), found.indptr.astype(np.int64), shape)


def _checked(d: Discretisation, points: FloatArray) -> FloatArray:
    points = np.asarray(points, dtype=np.float64)
    if points.ndim != 2 or points.shape[1] != d.dims:
        raise UsageError(f"Points have the shape {points.shape}, not [O, {d.dims}].", "Give one coordinate an axis.")
    if not np.isfinite(points).all():
        raise UsageError("Some points are not finite.", "Leave them out.")
    return points


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


def _weights(d: Discretisation, points: FloatArray, cells: IntArray, mine: IntArray) -> PointWeights:
    import dolfin

    mesh, dofmap, element = d.domain.mesh, d.space.dofmap(), d.space.element()
    to_global = np.asarray(dofmap.tabulate_local_to_global_dofs(), dtype=np.int64)
    rows: list[Any] = [np.zeros(0, dtype=np.int64)]
    columns: list[Any] = [np.zeros(0, dtype=np.int64)]
    values: list[Any] = [np.zeros(0)]
    for i in mine:
        cell = dolfin.Cell(mesh, int(cells[i]))
        basis = np.array(element.evaluate_basis_all(points[i], cell.get_vertex_coordinates(), cell.orientation()))
        kept = np.flatnonzero(np.abs(basis) > NEGLIGIBLE_WEIGHT)
        rows.append(np.full(len(kept), i, dtype=np.int64))
        columns.append(to_global[dofmap.cell_dofs(cell.index())[kept]])
        values.append(basis[kept])
    return PointWeights(np.concatenate(rows), np.concatenate(columns), np.concatenate(values))
