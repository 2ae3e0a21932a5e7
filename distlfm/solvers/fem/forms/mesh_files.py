"""Meshes from files, as arrays: FEniCS XML and XDMF by dolfin, all others (Gmsh, VTK, …) by meshio.

A mesh is refused if it has no cells, loose vertices, cells without volume, or cells that meet amiss. Call these on one
rank only: they communicate with nobody.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.errors import UsageError
from distlfm.optional import require
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


EMPTY = MeshArrays(np.zeros((0, 1)), np.zeros((0, 2), dtype=np.int64))


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


# By how many dimensions their cells have, in meshio's words.
SIMPLICES = ("vertex", "line", "triangle", "tetra")
# Where meshio leaves the numbers of groups: of Gmsh, of Medit.
FACET_GROUPS = ("gmsh:physical", "medit:ref")
DOLFIN_CELLS = {"interval": 1, "triangle": 2, "tetrahedron": 3}


def read_mesh(path: Path) -> MeshArrays:
    """Vertices, cells and named boundary parts in a file.

    Facet groups of a Gmsh file have their physical names, or their numbers, as those of Medit do. Markers of FEniCS are
    parts named by their numbers: those inside of an XML file, and those of `name_facet_region.xml` or
    `name_facet_region.xdmf` beside `name.xml` or `name.xdmf`.
    """
    if not path.is_file():
        raise UsageError(f"There is no mesh file {path}.", "Check mesh.path; it is read where the helper group runs.")
    try:
        if path.name.endswith((".xml", ".xml.gz")):
            return _read_xml(path)
        if path.suffix == ".xdmf":
            return _read_xdmf(path)
        return _read_meshio(path)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:  # meshio leaves the program when it cannot read a file
        raise UsageError(
            f"The mesh file {path} cannot be read: {_reason(error)}.",
            "FEniCS XML, XDMF, and what meshio reads (Gmsh .msh, .vtk, …) are understood.",
        ) from error


def _reason(error: BaseException) -> str:
    """What matters of a message: dolfin boxes its own in asterisks, and the reason is one of the lines."""
    if isinstance(error, SystemExit):
        return "meshio does not understand it"
    lines = [line.strip("* -") for line in str(error).splitlines()]
    reasons = [line.split("Reason:", 1)[1] for line in lines if "Reason:" in line] or [line for line in lines if line]
    return (reasons[0] if reasons else type(error).__name__).strip().rstrip(".")


def _read_xml(path: Path) -> MeshArrays:
    import dolfin

    mesh = dolfin.Mesh(dolfin.MPI.comm_self, str(path))
    arrays = _from_dolfin(mesh, path)
    if len(arrays.cells) == 0:
        return arrays
    companion = path.with_name(path.name.split(".xml")[0] + "_facet_region" + path.name[path.name.index(".xml") :])
    source = [str(companion)] if companion.is_file() else [mesh.topology().dim() - 1, mesh.domains()]
    return _with_markers(arrays, mesh, dolfin.MeshFunction("size_t", mesh, *source))


def _with_markers(arrays: MeshArrays, mesh: Any, markers: Any) -> MeshArrays:
    """The mesh with a part for each number that its facets are marked by."""
    dims = mesh.topology().dim()
    mesh.init(dims - 1, 0)
    if dims == 1:
        facets = np.arange(mesh.num_vertices())[:, None]
    else:
        facets = np.array(mesh.topology()(dims - 1, 0)(), dtype=np.int64).reshape(-1, dims)
    marks = np.asarray(markers.array(), dtype=np.int64)
    # dolfin-convert writes 0, and dolfin the largest integer, for facets that no group has.
    used = [mark for mark in np.unique(marks) if 0 < mark < 2**31]
    return MeshArrays(arrays.vertices, arrays.cells, {str(mark): facets[marks == mark] for mark in used})


def _read_xdmf(path: Path) -> MeshArrays:
    import dolfin

    mesh = dolfin.Mesh(dolfin.MPI.comm_self)
    with dolfin.XDMFFile(dolfin.MPI.comm_self, str(path)) as file:
        file.read(mesh)
    arrays = _from_dolfin(mesh, path)
    companion = path.with_name(f"{path.stem}_facet_region.xdmf")
    if not companion.is_file() or len(arrays.cells) == 0:
        return arrays
    values = dolfin.MeshValueCollection("size_t", mesh, mesh.topology().dim() - 1)
    with dolfin.XDMFFile(dolfin.MPI.comm_self, str(companion)) as file:
        file.read(values)
    return _with_markers(arrays, mesh, dolfin.MeshFunction("size_t", mesh, values))


def _from_dolfin(mesh: Any, path: Path) -> MeshArrays:
    if mesh.num_cells() == 0:
        return EMPTY
    kind = mesh.type().description(False)
    if kind not in DOLFIN_CELLS:
        raise UsageError(f"The mesh {path} is made of {kind} cells.", "Use intervals, triangles or tetrahedra.")
    cells = np.array(mesh.cells(), dtype=np.int64)
    return MeshArrays(_flattened(np.array(mesh.coordinates()), mesh.topology().dim(), path), cells)


def _read_meshio(path: Path) -> MeshArrays:
    mesh = require("meshio", "fem").read(path)
    kinds = {block.type for block in mesh.cells}
    dims = max((SIMPLICES.index(kind) for kind in kinds if kind in SIMPLICES), default=0)
    other = sorted(kind for kind in kinds if kind not in SIMPLICES)
    if other:
        raise UsageError(
            f"The mesh {path} is made of {', '.join(other)} cells.",
            "Use straight intervals, triangles or tetrahedra (in Gmsh: element order 1, no recombination).",
        )
    if dims == 0:
        return EMPTY
    cells = np.concatenate([block.data for block in mesh.cells if block.type == SIMPLICES[dims]]).astype(np.int64)
    parts = _named_facets(mesh, dims)
    vertices = _flattened(np.asarray(mesh.points, dtype=np.float64), dims, path)
    # Points of the geometry, such as the centre of a circle, come as cells of one vertex: not part of the mesh.
    points = [block.data.ravel() for block in mesh.cells if block.type == "vertex"]
    of_geometry = np.concatenate([np.zeros(0, dtype=np.int64), *points])
    kept = np.setdiff1d(np.arange(len(vertices)), np.setdiff1d(of_geometry, cells))
    number = np.full(len(vertices), -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    numbered = {name: number[facets] for name, facets in parts.items()}
    inside = {name: facets[(facets >= 0).all(axis=1)] for name, facets in numbered.items()}
    return MeshArrays(vertices[kept], number[cells], {name: facets for name, facets in inside.items() if len(facets)})


def _named_facets(mesh: Any, dims: int) -> Mapping[str, IntArray]:
    """Facets by group, from the groups of Gmsh and Medit or from meshio's cell sets."""
    kind = SIMPLICES[dims - 1]
    facets: dict[str, list[IntArray]] = {}
    for column in FACET_GROUPS:
        if column not in mesh.cell_data:
            continue
        names = {int(tag): name for name, (tag, of_dims) in mesh.field_data.items() if int(of_dims) == dims - 1}
        for block, block_tags in zip(mesh.cells, mesh.cell_data[column], strict=True):
            if block.type == kind and block_tags is not None:
                for tag in np.unique(block_tags):
                    if tag:
                        facets.setdefault(names.get(int(tag), str(tag)), []).append(block.data[block_tags == tag])
    for name, members in mesh.cell_sets.items():
        if name.startswith("gmsh:") or name in facets:
            continue
        for block, inside in zip(mesh.cells, members, strict=True):
            if block.type == kind and inside is not None and len(inside):
                facets.setdefault(name, []).append(block.data[inside])
    return {name: np.concatenate(blocks).astype(np.int64) for name, blocks in facets.items()}


def _flattened(points: FloatArray, dims: int, path: Path) -> FloatArray:
    """Coordinates without those that a planar or straight mesh does not use."""
    beyond = points[:, dims:]
    if beyond.size and np.ptp(beyond, axis=0).max() > 1e-9 * max(float(np.ptp(points, axis=0).max()), 1e-300):
        shape = "plane" if dims == 2 else "line"
        raise UsageError(
            f"The mesh {path} has cells of {dims} dimensions that bend out of the {shape} of its first axes.",
            "Only meshes that fill their space are understood; turn it into the first axes.",
        )
    return np.ascontiguousarray(points[:, :dims])
