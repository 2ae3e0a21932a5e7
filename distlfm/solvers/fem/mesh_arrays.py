"""A mesh as arrays, and what makes one unfit: no cells, loose vertices, cells without volume, or that meet amiss."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from distlfm.errors import UsageError
from distlfm.solvers.fem.spec import FloatArray, IntArray

# Of a cell's volume to that of the cube on its longest edge; below, the cell is flat.
SMALLEST_SHAPE = 1e-10
# Of the mesh's extent; vertices nearer than this are at one place.
SAME_PLACE = 1e-9


@dataclass(frozen=True)
class MeshArrays:
    """vertices: [N, d]; cells: [C, d + 1] of vertex numbers; parts: by name, [n, d] of the facets' vertex numbers."""

    vertices: FloatArray
    cells: IntArray
    parts: Mapping[str, IntArray] = field(default_factory=dict)


def check_mesh(mesh: MeshArrays, called: str) -> None:
    """Raise a UsageError if the equations of a field cannot be put on this mesh."""
    vertices, cells = mesh.vertices, mesh.cells
    dims = vertices.shape[1]
    if len(cells) == 0:
        raise UsageError(f"{called} is empty: it has no cells.", "Give a mesh with at least one cell.")
    if cells.min() < 0 or cells.max() >= len(vertices):
        raise UsageError(f"{called} names vertices that it does not have.", "Write the mesh again.")
    if not np.isfinite(vertices).all():
        raise UsageError(f"{called} has vertices that are not finite.", "Write the mesh again.")
    _check_vertices(mesh, called)
    corners = vertices[cells]  # [C, d + 1, d]
    edges = corners[:, 1:] - corners[:, :1]
    longest = np.max(np.linalg.norm(corners[:, :, None] - corners[:, None, :], axis=-1), axis=(1, 2))
    volume = np.abs(np.linalg.det(edges)) / math.factorial(dims)
    flat = np.flatnonzero(volume <= SMALLEST_SHAPE * longest**dims)
    if flat.size:
        place = _place(corners[flat[0]].mean(axis=0))
        raise UsageError(
            f"{called} has degenerate cells: {flat.size} without volume, the first at {place}.",
            "Remove them, or make the mesh anew.",
        )
    ordered = np.sort(cells, axis=1)
    if len(np.unique(ordered, axis=0)) < len(cells):
        raise UsageError(f"{called} is not a manifold: it has a cell twice.", "Remove the copies.")
    facets = np.concatenate([np.delete(ordered, i, axis=1) for i in range(dims + 1)])
    unique, counts = np.unique(facets, axis=0, return_counts=True)
    if counts.max() > 2:
        worst = unique[counts.argmax()]
        raise UsageError(
            f"{called} is not a manifold: the facet at {_place(vertices[worst].mean(axis=0))} "
            f"belongs to {counts.max()} cells.",
            "A facet may belong to two cells at most; remove the overlapping ones.",
        )
    for size in range(1, dims):
        _check_pinches(mesh, ordered, size, called)


def count_nodes(mesh: MeshArrays, degree: int) -> int:
    """Nodes of linear elements, which are the vertices, or of quadratic ones, which are the edges too."""
    if degree == 1:
        return len(mesh.vertices)
    pairs = np.concatenate([mesh.cells[:, pair] for pair in itertools.combinations(range(mesh.cells.shape[1]), 2)])
    return len(mesh.vertices) + len(np.unique(np.sort(pairs, axis=1), axis=0))


def _check_pinches(mesh: MeshArrays, ordered: IntArray, size: int, called: str) -> None:
    """Refuse corners (`size` 1) and edges (2) at which cells meet that are not joined by facets around them.

    ordered: the cells with their vertices in rising order.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    num_cells, width = ordered.shape
    corners = list(itertools.combinations(range(width), size))
    # The place of a corner among those of a cell, for the corners of each of its facets, in the order of the facet.
    of_facet = [[i for i, corner in enumerate(corners) if left_out not in corner] for left_out in range(width)]
    facets = np.concatenate([np.delete(ordered, left_out, axis=1) for left_out in range(width)])
    own = np.arange(num_cells)[:, None] * len(corners)
    places = np.concatenate([own + np.array(within) for within in of_facet])
    order = np.lexsort(facets.T[::-1])
    pairs = np.flatnonzero((facets[order[1:]] == facets[order[:-1]]).all(axis=1))
    one, other = places[order[pairs]].ravel(), places[order[pairs + 1]].ravel()
    count = num_cells * len(corners)
    joined = coo_array((np.ones(len(one), dtype=np.int8), (one, other)), shape=(count, count))
    _, fan = connected_components(joined, directed=False)
    met = ordered[:, corners].reshape(count, size)
    fans = np.unique(np.column_stack([met, fan]), axis=0)
    repeated = np.flatnonzero((fans[1:, :size] == fans[:-1, :size]).all(axis=1))
    if repeated.size:
        place = _place(mesh.vertices[fans[repeated[0], :size]].mean(axis=0))
        what = "a corner" if size == 1 else "an edge"
        raise UsageError(
            f"{called} is not a manifold: at {place} cells share {what} and no facet joins them.",
            "Join the parts by cells, or pull them apart.",
        )


def _check_vertices(mesh: MeshArrays, called: str) -> None:
    loose = np.setdiff1d(np.arange(len(mesh.vertices)), mesh.cells)
    if loose.size:
        raise UsageError(
            f"{called} is not a manifold: {loose.size} vertices belong to no cell, the first at "
            f"{_place(mesh.vertices[loose[0]])}.",
            "Remove them from the mesh.",
        )
    levels = coordinate_levels(mesh.vertices)
    unique, counts = np.unique(levels, axis=0, return_counts=True)
    if len(unique) < len(levels):
        twice = np.flatnonzero((levels == unique[counts.argmax()]).all(axis=1))[0]
        raise UsageError(
            f"{called} has two vertices at {_place(mesh.vertices[twice])}.", "Merge vertices at the same place."
        )


def coordinate_levels(points: FloatArray) -> IntArray:
    """The rank of each coordinate among those of its axis [n, d], counting as one what differs by rounding only."""
    extent = float(np.ptp(points, axis=0).max())
    levels = np.empty(points.shape, dtype=np.int64)
    for axis in range(points.shape[1]):
        order = np.argsort(points[:, axis], kind="stable")
        gaps = np.diff(points[order, axis]) > SAME_PLACE * extent
        levels[order, axis] = np.concatenate([[0], np.cumsum(gaps)])
    return levels


def _place(point: FloatArray) -> str:
    return "(" + ", ".join(f"{value:.6g}" for value in point) + ")"
