"""Observations on the operator's grid: placed where they were made, interpolated between, with a mask of where that is.

Shapes: `B` instances, `P` outputs, `N` observation points.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.interpolate import LinearNDInterpolator, NearestNDInterpolator
from torch import Tensor

from distlfm.instance import BoolArray, FloatArray
from distlfm.lfo.schema import GridDim

ON_GRID = 1e-6
"""Of a step: an observation this close to a point of the grid is at it."""

NEAR = 0.75
"""Of a step: an observation between the points of the grid is told at those which are this near, in each dimension."""


def grid_points(dims: Sequence[GridDim]) -> FloatArray:
    """All points of the training grid, [n, d], the last dimension fastest."""
    axes = np.meshgrid(*(dim.points() for dim in dims), indexing="ij")
    return np.stack([axis.ravel() for axis in axes], -1)


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

    Where observations are not at points of the grid, each of them tells of the points near it.
    """
    count, exact = len(values), _exact(points, dims, shape)
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
    found = np.zeros((count, *shape), np.float32)
    seen = np.zeros((count, *shape), np.float32)
    for output in np.flatnonzero(mask.any(-1)):
        found[output] = _interpolated(points[mask[output]], values[output, mask[output]], axes)
        _mark_near(seen[output], exact[mask[output]])
    return found, seen


def _exact(points: FloatArray, dims: Sequence[GridDim], shape: Sequence[int]) -> FloatArray:
    """Observations [N, d] in steps of the grid from its start."""
    start = np.array([dim.start for dim in dims])
    step = np.array([(dim.stop - dim.start) / (size - 1) for dim, size in zip(dims, shape, strict=True)])
    found: FloatArray = (points - start) / step
    return found


def _mark_near(seen: NDArray[np.float32], exact: FloatArray) -> None:
    """Set 1 at all points of the grid that have an observation near them."""
    for corner in product((0, 1), repeat=seen.ndim):
        at = np.floor(exact).astype(np.intp) + corner
        near = (np.abs(exact - at) <= NEAR).all(-1) & (at >= 0).all(-1) & (at < np.array(seen.shape)).all(-1)
        seen[tuple(at[near].T)] = 1.0


def _interpolated(points: FloatArray, values: FloatArray, axes: Sequence[FloatArray]) -> FloatArray:
    """Linear between observations, and the nearest one's value outside of them."""
    if len(axes) == 1:
        found: FloatArray = np.interp(axes[0], points[:, 0], values)
        return found
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
