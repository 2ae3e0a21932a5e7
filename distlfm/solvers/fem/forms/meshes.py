"""From a config to a mesh, whole on one rank or spread over several, and the named parts of its boundary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from distlfm.equations.base import MeshConfig
from distlfm.errors import UsageError
from distlfm.solvers.fem.forms.adjoint import import_adjoint
from distlfm.solvers.fem.forms.collective import on_root
from distlfm.solvers.fem.forms.mesh_files import SAME_PLACE, MeshArrays, check_mesh, read_mesh
from distlfm.solvers.fem.spec import FloatArray, IntArray

KIND_DIMS = {"interval": 1, "rectangle": 2, "box": 3}
# Cells along the longest side where a config names no size.
DEFAULT_DIVISIONS = {1: 64, 2: 32, 3: 12}
MAX_CELLS = 50_000_000
# With fewer, a rank may be left without cells, and dolfin's collective calls then wait for it for ever.
MIN_CELLS_A_RANK = 8
WHOLE = "all"
# Names of a bounding box's sides: lower and upper, axis by axis.
SIDES = (("left", "right"), ("bottom", "top"), ("back", "front"))


@dataclass(frozen=True)
class MeshDomain:
    """A mesh and where it is.

    boundaries: numbers of this rank's facets on each named part, `all` among them. Every rank has every name.
    lower, upper: [d], the bounds of the whole mesh; num_cells: of the whole mesh.
    """

    mesh: Any
    boundaries: Mapping[str, IntArray]
    lower: FloatArray
    upper: FloatArray
    num_cells: int

    @property
    def dims(self) -> int:
        return len(self.lower)

    @property
    def extent(self) -> float:
        return float((self.upper - self.lower).max())


@dataclass(frozen=True)
class _Plan:
    """What all ranks must know before dolfin partitions: how many cells, and where the named parts are."""

    lower: FloatArray
    upper: FloatArray
    num_cells: int
    divisions: tuple[int, ...] = ()
    midpoints: Mapping[str, FloatArray] | None = None


def build_domain(config: MeshConfig, comm: Any) -> MeshDomain:
    """The mesh of a config on the ranks of `comm`. Collective; a UsageError is raised on all ranks or on none.

    `size` is the largest length of an interval, and the largest step of the grid whose squares (cubes) are cut into
    triangles (tetrahedra). Without it an interval with given vertices has just these, and the longest side of another
    mesh is cut into 64, 32 or 12 in 1, 2 or 3 dimensions.

    Boundary names: `left`, `right`; in the plane also `bottom`, `top`; in space also `back`, `front`; these are the
    facets on the sides of the bounding box; and what a mesh file names. `all` is the whole boundary.
    """
    held: list[MeshArrays] = []  # on rank 0 only

    def plan() -> _Plan:
        if config.kind in ("rectangle", "box"):
            return _grid(config)
        if config.kind == "interval":
            arrays = _line(config)
        else:
            assert config.path is not None
            arrays = read_mesh(config.path)
            check_mesh(arrays, f"The mesh {config.path}")
        held.append(arrays)
        vertices = arrays.vertices
        midpoints = {name: vertices[facets].mean(axis=1) for name, facets in arrays.parts.items()}
        return _Plan(vertices.min(axis=0), vertices.max(axis=0), len(arrays.cells), midpoints=midpoints)

    planned = on_root(comm, plan)
    if comm.size > 1 and planned.num_cells < MIN_CELLS_A_RANK * comm.size:
        raise UsageError(
            f"The mesh is too small for {comm.size} ranks: it has {planned.num_cells} cells, and each rank needs "
            f"{MIN_CELLS_A_RANK}.",
            "Use fewer ranks, or a finer mesh.",
        )
    mesh = _native(planned, comm) if planned.divisions else _distributed(held[0] if held else None, comm)
    found = _boundaries(mesh, planned)
    counts = np.sum(comm.allgather([len(facets) for facets in found.values()]), axis=0)
    boundaries = {name: facets for (name, facets), count in zip(found.items(), counts, strict=True) if count}
    return MeshDomain(mesh, boundaries, planned.lower, planned.upper, planned.num_cells)


def _bounds(config: MeshConfig, dims: int) -> tuple[FloatArray, FloatArray]:
    lower, upper = np.array(config.lower, dtype=np.float64), np.array(config.upper, dtype=np.float64)
    for name, bound in (("lower", lower), ("upper", upper)):
        if len(bound) != dims:
            raise UsageError(
                f"mesh.{name} has {len(bound)} numbers, and the mesh is {'an' if dims == 1 else 'a'} {config.kind}.",
                f"Give {dims}, one per axis.",
            )
        if not np.isfinite(bound).all():
            raise UsageError(f"mesh.{name} is not finite: {bound.tolist()}.", "Give finite numbers.")
    if not (lower < upper).all():
        raise UsageError(
            f"mesh.lower {lower.tolist()} is not below mesh.upper {upper.tolist()}.", "Swap or widen the bounds."
        )
    return lower, upper


def _grid(config: MeshConfig) -> _Plan:
    dims = KIND_DIMS[config.kind]
    lower, upper = _bounds(config, dims)
    size = config.size or float((upper - lower).max()) / DEFAULT_DIVISIONS[dims]
    divisions = tuple(_pieces(side, size) for side in upper - lower)
    num_cells = math.prod(divisions) * math.factorial(dims)
    _check_count(num_cells, size)
    return _Plan(lower, upper, num_cells, divisions)


def _line(config: MeshConfig) -> MeshArrays:
    """All given vertices, and as many between them as `size` asks for."""
    given = np.unique(np.array(config.vertices, dtype=np.float64))
    if not np.isfinite(given).all():
        raise UsageError("mesh.vertices are not all finite.", "Remove those that are not.")
    if given.size:
        config = config.model_copy(
            update={"lower": config.lower or (float(given[0]),), "upper": config.upper or (float(given[-1]),)}
        )
    lower, upper = _bounds(config, 1)
    extent = float(upper[0] - lower[0])
    outside = given[(given < lower[0] - SAME_PLACE * extent) | (given > upper[0] + SAME_PLACE * extent)]
    if outside.size:
        raise UsageError(
            f"The vertex {outside[0]:.6g} is outside the domain, {lower[0]:.6g} to {upper[0]:.6g}.",
            "Widen mesh.lower and mesh.upper.",
        )
    corners = np.sort(np.concatenate([lower, given, upper]))
    corners = corners[np.concatenate([[True], np.diff(corners) > SAME_PLACE * extent])]
    size = config.size or (math.inf if given.size else extent / DEFAULT_DIVISIONS[1])
    pieces = [_pieces(gap, size) for gap in np.diff(corners)]
    _check_count(sum(pieces), size)
    between = zip(corners[:-1], corners[1:], pieces, strict=True)
    inner = [np.linspace(left, right, count, endpoint=False) for left, right, count in between]
    vertices = np.concatenate([*inner, corners[-1:]])[:, None]
    first = np.arange(len(vertices) - 1, dtype=np.int64)
    return MeshArrays(vertices, np.stack([first, first + 1], axis=1))


def _pieces(length: float, size: float) -> int:
    return max(1, math.ceil(min(length / size, 1e12) - 1e-9))


def _check_count(num_cells: int, size: float) -> None:
    if num_cells > MAX_CELLS:
        raise UsageError(
            f"A mesh of size {size:.3g} would have {num_cells:.3g} cells.",
            f"Choose a larger mesh.size; at most {MAX_CELLS} cells are made.",
        )


def _native(plan: _Plan, comm: Any) -> Any:
    adjoint = import_adjoint()
    import dolfin

    make = adjoint.RectangleMesh if len(plan.divisions) == 2 else adjoint.BoxMesh
    return make(comm, dolfin.Point(*plan.lower), dolfin.Point(*plan.upper), *plan.divisions)


def _distributed(arrays: MeshArrays | None, comm: Any) -> Any:
    """The mesh of rank 0's arrays, spread over the ranks."""
    adjoint = import_adjoint()
    import dolfin

    mesh = adjoint.Mesh(comm)
    if arrays is not None:
        dims = arrays.vertices.shape[1]
        editor = dolfin.MeshEditor()
        editor.open(mesh, ("interval", "triangle", "tetrahedron")[dims - 1], dims, dims)
        editor.init_vertices(len(arrays.vertices))
        editor.init_cells(len(arrays.cells))
        for i, vertex in enumerate(arrays.vertices):
            editor.add_vertex(i, vertex)
        for i, cell in enumerate(arrays.cells.astype(np.uintp)):
            editor.add_cell(i, cell)
        editor.close()
    if comm.size > 1:
        dolfin.MeshPartitioning.build_distributed_mesh(mesh)
    return mesh


def _boundaries(mesh: Any, plan: _Plan) -> dict[str, IntArray]:
    import dolfin
    from scipy.spatial import cKDTree

    dims = mesh.topology().dim()
    on_boundary = dolfin.MeshFunction("bool", mesh, dims - 1, False)
    dolfin.DomainBoundary().mark(on_boundary, True)
    exterior = np.flatnonzero(on_boundary.array()).astype(np.int64)
    corners = _corners(mesh, dims, exterior)
    tolerance = SAME_PLACE * float((plan.upper - plan.lower).max())
    parts = {WHOLE: exterior}
    for axis in range(dims):
        for name, bound in zip(SIDES[axis], (plan.lower, plan.upper), strict=True):
            on_side = (np.abs(corners[:, :, axis] - bound[axis]) <= tolerance).all(axis=1)
            parts[name] = exterior[on_side]
    for name, midpoints in (plan.midpoints or {}).items():
        distance, _ = cKDTree(midpoints).query(corners.mean(axis=1))
        parts[name] = exterior[distance <= tolerance]
    return parts


def _corners(mesh: Any, dims: int, facets: IntArray) -> FloatArray:
    """Coordinates of the vertices of some facets: [E, d, d]."""
    import dolfin

    mesh.init(dims - 1, 0)
    # One by one, for they are few: dolfin gives the table of all facets only as a list of Python's integers.
    vertices = facets[:, None] if dims == 1 else [dolfin.Facet(mesh, int(facet)).entities(0) for facet in facets]
    return np.array(mesh.coordinates()[np.asarray(vertices, dtype=np.int64).reshape(-1, dims)])
