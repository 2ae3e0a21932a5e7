"""Observations and stored arrays on the operator's even grid.

Observations are placed where they were made and interpolated between, with a mask of where that is. `Resampler` brings
arrays of a store's grid to it: other times, other lattices, and meshes. `GriddedData` holds observations whose force
nobody knows: examples without labels.

Shapes: `B` instances, `b` of a block, `P` outputs, `C` outputs or forces, `L` forces, `K` learned parameters, `N`
observation points.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline, LinearNDInterpolator, NearestNDInterpolator
from scipy.spatial import Delaunay
from torch import Tensor

from distlfm.instance import BoolArray, FloatArray
from distlfm.lfo.schema import GridDim, OperatorSchema
from distlfm.store import StoreSpec

ON_GRID = 1e-6
"""In steps: an observation this close to a point of the grid is at it."""

NEAR = 0.75
"""In steps: an observation between the points of the grid counts at those which are this near, in each dimension."""


def grid_points(dims: Sequence[GridDim]) -> FloatArray:
    """All points of the training grid, [n, d], the last dimension fastest."""
    return lattice([dim.points() for dim in dims])


def lattice(axes: Sequence[FloatArray]) -> FloatArray:
    """All points [n, d] of a lattice with these coordinates of each dimension, the last one fastest."""
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], -1)


def joined_points(times: FloatArray, positions: FloatArray | None) -> FloatArray:
    """Times [N] and positions [N, d − 1], if there are any, as points [N, d]."""
    return times[:, None] if positions is None else np.concatenate([times[:, None], positions], -1)


def fill(values: Tensor, mask: Tensor, first: int) -> Tensor:
    """Values [..., *grid] with those not in the mask interpolated along the grid's dimensions, which begin at `first`.

    Time goes first, then what no time of a place tells along the others. Ends are continued; nothing at all is 0.
    """
    known = mask.bool()
    if bool(known.all()):
        return values
    values = torch.where(known, values, torch.zeros_like(values))
    for dim in range(first, values.dim()):
        values, known = _along(values.movedim(dim, -1), known.movedim(dim, -1))
        values, known = values.movedim(-1, dim), known.movedim(-1, dim)
    return values


def _along(values: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    size = values.shape[-1]
    at = torch.arange(size, device=values.device).expand(known.shape)
    before = torch.where(known, at, torch.full_like(at, -1)).cummax(-1).values
    after = size - 1 - torch.where(known.flip(-1), at, torch.full_like(at, -1)).cummax(-1).values.flip(-1)
    any_known = known.any(-1, keepdim=True).expand_as(known)
    left = torch.where(before < 0, after, before).clamp(0, size - 1)
    right = torch.where(after > size - 1, before, after).clamp(0, size - 1)
    share = ((at - left) / (right - left).clamp_min(1)).clamp(0, 1).to(values)
    low, high = values.gather(-1, left), values.gather(-1, right)
    return torch.where(any_known, low + share * (high - low), torch.zeros_like(values)), any_known


def to_grid(
    points: FloatArray, values: FloatArray, mask: BoolArray, dims: Sequence[GridDim], shape: Sequence[int]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Values and mask [P, *shape] of one instance's observations [P, N] at points [N, d], time first.

    Where observations are not at points of the grid, each of them counts for the points near it.
    """
    count, start = len(values), np.array([dim.start for dim in dims])
    step = np.array([(dim.stop - dim.start) / (size - 1) for dim, size in zip(dims, shape, strict=True)])
    exact = (points - start) / step  # [N, d], in steps of the grid from its start
    nearest = np.rint(exact).astype(np.intp)
    if bool((np.abs(exact - nearest) <= ON_GRID).all()):
        placed, number = np.zeros((count, *shape)), np.zeros((count, *shape))
        inside = (nearest >= 0).all(-1) & (nearest < np.array(shape)).all(-1)
        for output in range(count):
            here = mask[output] & inside
            np.add.at(number[output], tuple(nearest[here].T), 1.0)
            np.add.at(placed[output], tuple(nearest[here].T), values[output, here])
        placed, seen = placed / np.maximum(number, 1), (number > 0).astype(np.float32)
        return fill(torch.from_numpy(placed), torch.from_numpy(seen), 1).numpy().astype(np.float32), seen
    axes = [dim.points(size) for dim, size in zip(dims, shape, strict=True)]
    found, seen = np.zeros((count, *shape), np.float32), np.zeros((count, *shape), np.float32)
    for output in np.flatnonzero(mask.any(-1)):
        found[output] = _interpolated(points[mask[output]], values[output, mask[output]], axes)
        _mark_near(seen[output], exact[mask[output]])
    return found, seen


def _mark_near(seen: NDArray[np.float32], exact: FloatArray) -> None:
    """Set 1 at all points of the grid that have an observation near them."""
    for corner in product((0, 1), repeat=seen.ndim):
        at = np.floor(exact).astype(np.intp) + corner
        near = (np.abs(exact - at) <= NEAR).all(-1) & (at >= 0).all(-1) & (at < np.array(seen.shape)).all(-1)
        seen[tuple(at[near].T)] = 1.0


def _interpolated(points: FloatArray, values: FloatArray, axes: Sequence[FloatArray]) -> FloatArray:
    """Linear between observations, and the nearest one's value outside of them."""
    if len(axes) == 1:
        interpolated: FloatArray = np.interp(axes[0], points[:, 0], values)
        return interpolated
    scale = np.array([axis[-1] - axis[0] for axis in axes])
    wanted = np.stack(np.meshgrid(*axes, indexing="ij"), -1) / scale
    near: FloatArray = NearestNDInterpolator(points / scale, values)(wanted)
    if len(points) <= len(axes) + 1:
        return near
    linear: FloatArray = LinearNDInterpolator(points / scale, values)(wanted)
    return np.where(np.isfinite(linear), linear, near)


def own_shape(points: FloatArray, dims: Sequence[GridDim]) -> tuple[int, ...] | None:
    """The shape of the even grid over the whole domain that the points make up, if they do, time first."""
    shape = []
    for i, dim in enumerate(dims):
        axis = np.unique(points[:, i])
        even = dim.points(len(axis)) if len(axis) > 1 else axis
        if len(axis) < 2 or np.abs(axis - even).max() > ON_GRID * (dim.stop - dim.start):
            return None
        shape.append(len(axis))
    return tuple(shape) if int(np.prod(shape)) == len(points) else None


SAME = 1e-9
"""Coordinates that differ less than this part of the domain are the same."""


class Resampler:
    """From the grid of a store to that of a schema; what is outside of the store's grid is NaN."""

    def __init__(self, spec: StoreSpec, dims: Sequence[GridDim]) -> None:
        self.dims = tuple(dims)
        self._nodes = None if spec.nodes is None else _mesh(np.array(spec.nodes), dims[1:])
        lines = [] if spec.lattice is None or spec.nodes is not None else list(zip(spec.lattice, dims[1:], strict=True))
        matrices = {axis: _line(np.array(points), dim) for axis, (points, dim) in enumerate(lines, 3)}
        if spec.times is not None:
            matrices[2] = _line(np.array(spec.times), dims[0])
        self._lines = {axis: matrix for axis, matrix in matrices.items() if matrix is not None}

    def __call__(self, array: NDArray[Any], times: NDArray[Any] | None) -> FloatArray:
        """[b, C, *store's grid] → [b, C, *grid]; times [b, steps] where instances have their own."""
        resampled = array
        if self._nodes is not None:
            resampled = (resampled @ self._nodes.T).reshape(*resampled.shape[:3], *(dim.size for dim in self.dims[1:]))
        for axis, matrix in self._lines.items():
            resampled = np.moveaxis(np.moveaxis(resampled, axis, -1) @ matrix.T, -1, axis)
        return resampled if times is None else _at_own_times(resampled, times, self.dims[0])


def _line(points: FloatArray, dim: GridDim) -> FloatArray | None:
    """Matrix [size, points] of the cubic spline; None where the points are those of the grid."""
    wanted = dim.points()
    if len(points) == len(wanted) and np.abs(points - wanted).max() <= SAME * (dim.stop - dim.start):
        return None
    weights: FloatArray = CubicSpline(points, np.eye(len(points)))(wanted)
    slack = SAME * (dim.stop - dim.start)
    weights[(wanted < points.min() - slack) | (wanted > points.max() + slack)] = np.nan
    return weights


def _mesh(nodes: FloatArray, dims: Sequence[GridDim]) -> FloatArray:
    """Matrix [lattice, nodes], linear on the triangles between nodes [N, d]; outside of them the nearest node's."""
    wanted = grid_points(dims)
    weights = np.zeros((len(wanted), len(nodes)))
    if nodes.shape[1] == 1:
        order = np.argsort(nodes[:, 0])
        for column, node in enumerate(order):
            weights[:, node] = np.interp(wanted[:, 0], nodes[order, 0], np.eye(len(nodes))[column])
        return weights
    triangles = Delaunay(nodes)
    cell = triangles.find_simplex(wanted)
    inside = np.flatnonzero(cell >= 0)
    bend = triangles.transform[cell[inside]]
    shares = np.einsum("nij,nj->ni", bend[:, :-1], wanted[inside] - bend[:, -1])
    shares = np.concatenate([shares, 1 - shares.sum(-1, keepdims=True)], -1)
    np.put_along_axis(found_rows := weights[inside], triangles.simplices[cell[inside]], shares, -1)
    weights[inside] = found_rows
    for row in np.flatnonzero(cell < 0):
        weights[row, np.square(nodes - wanted[row]).sum(-1).argmin()] = 1.0
    return weights


def _at_own_times(array: FloatArray, times: FloatArray, dim: GridDim) -> FloatArray:
    """Linear in each instance's own times; NaN before the first and after the last, if by more than a step."""
    wanted = dim.points()
    flat = np.moveaxis(array, 2, -1)
    resampled = np.full((*flat.shape[:-1], dim.size), np.nan)
    for row, own in enumerate(times):
        there = np.isfinite(own)
        if there.sum() < 2:
            continue
        t = own[there]
        at = np.clip(np.searchsorted(t, wanted) - 1, 0, len(t) - 2)
        share = np.clip((wanted - t[at]) / (t[at + 1] - t[at]), 0, 1)
        here = flat[row][..., there]
        resampled[row] = here[..., at] * (1 - share) + here[..., at + 1] * share
        resampled[row][..., (wanted < t[0] - dim.step) | (wanted > t[-1] + dim.step)] = np.nan
    return np.moveaxis(resampled, -1, 2)


BLOCK = 64
"""Instances that are read as one shard."""


@dataclass(frozen=True)
class GriddedData:
    """values, mask: [N, P, *grid], as `Operator.arrays` makes them; ids: a name each. source: a hash of the data."""

    ids: Sequence[str]
    values: NDArray[np.float32]
    mask: NDArray[np.float32]
    source: str = ""

    def __len__(self) -> int:
        return len(self.ids)

    @cached_property
    def fingerprint(self) -> str:
        """A hash that tells whether two are the same observations."""
        digest = hashlib.sha256("\n".join(self.ids).encode())
        for array in (self.values, self.mask):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]

    def block(self, block: int, schema: OperatorSchema) -> dict[str, NDArray[np.float32]]:
        """The arrays of a `Batch` for the instances of a block; all that would be a label is NaN."""
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        values, mask = self.values[rows], self.mask[rows]
        force, params = (len(schema.forces), *schema.shape), (len(schema.parameters),)
        unknown = {"force": force, "force_var": force, "params": params, "params_var": params}
        unknown |= {"clean": values.shape[1:], "noise": values.shape[1:2]}
        nothing = {name: np.full((len(values), *shape), np.nan, np.float32) for name, shape in unknown.items()}
        return {"values": values, "mask": mask, **nothing}
