"""Arrays of a store's grid on the operator's even grid: other times, other lattices, and meshes.

Shapes: `b` instances, `C` outputs or forces.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from scipy.spatial import Delaunay

from distlfm.instance import FloatArray
from distlfm.lfo.schema import GridDim
from distlfm.store import StoreSpec

SAME = 1e-9
"""Coordinates that differ less than this part of the domain are the same."""


class Resampler:
    """From the grid of a store to that of a schema; what is outside of the store's grid is NaN."""

    def __init__(self, spec: StoreSpec, dims: Sequence[GridDim]) -> None:
        self.dims = tuple(dims)
        self._time = None if spec.times is None else _line(np.array(spec.times), dims[0])
        self._own_times = spec.times is None
        self._nodes: FloatArray | None = None
        self._space: list[FloatArray | None] = []
        if spec.nodes is not None:
            self._nodes = _mesh(np.array(spec.nodes), dims[1:])
        elif spec.lattice is not None:
            self._space = [_line(np.array(points), dim) for points, dim in zip(spec.lattice, dims[1:], strict=True)]

    def __call__(self, array: NDArray[Any], times: NDArray[Any] | None) -> FloatArray:
        """[b, C, *store's grid] → [b, C, *grid]; times [b, steps] where instances have their own."""
        found = array
        if self._nodes is not None:
            found = (found @ self._nodes.T).reshape(*found.shape[:3], *(dim.size for dim in self.dims[1:]))
        for axis, matrix in enumerate(self._space):
            if matrix is not None:
                found = np.moveaxis(np.moveaxis(found, axis + 3, -1) @ matrix.T, -1, axis + 3)
        if self._own_times:
            assert times is not None
            return _at_own_times(found, times, self.dims[0])
        if self._time is not None:
            found = np.moveaxis(np.moveaxis(found, 2, -1) @ self._time.T, -1, 2)
        return found


def _line(points: FloatArray, dim: GridDim) -> FloatArray | None:
    """Matrix [size, points] of the cubic spline; None where the points are those of the grid."""
    wanted = dim.points()
    if len(points) == len(wanted) and np.abs(points - wanted).max() <= SAME * (dim.stop - dim.start):
        return None
    found: FloatArray = CubicSpline(points, np.eye(len(points)))(wanted)
    slack = SAME * (dim.stop - dim.start)
    found[(wanted < points.min() - slack) | (wanted > points.max() + slack)] = np.nan
    return found


def _mesh(nodes: FloatArray, dims: Sequence[GridDim]) -> FloatArray:
    """Matrix [lattice, nodes], linear on the triangles between nodes [N, d]; outside of them the nearest node's."""
    axes = np.meshgrid(*(dim.points() for dim in dims), indexing="ij")
    wanted = np.stack([axis.ravel() for axis in axes], -1)
    found = np.zeros((len(wanted), len(nodes)))
    if nodes.shape[1] == 1:
        order = np.argsort(nodes[:, 0])
        for column, node in enumerate(order):
            found[:, node] = np.interp(wanted[:, 0], nodes[order, 0], np.eye(len(nodes))[column])
        return found
    triangles = Delaunay(nodes)
    cell = triangles.find_simplex(wanted)
    inside = np.flatnonzero(cell >= 0)
    bend = triangles.transform[cell[inside]]
    shares = np.einsum("nij,nj->ni", bend[:, :-1], wanted[inside] - bend[:, -1])
    shares = np.concatenate([shares, 1 - shares.sum(-1, keepdims=True)], -1)
    np.put_along_axis(found_rows := found[inside], triangles.simplices[cell[inside]], shares, -1)
    found[inside] = found_rows
    for row in np.flatnonzero(cell < 0):
        found[row, np.square(nodes - wanted[row]).sum(-1).argmin()] = 1.0
    return found


def _at_own_times(array: FloatArray, times: FloatArray, dim: GridDim) -> FloatArray:
    """Linear in each instance's own times; NaN before the first and after the last, if by more than a step."""
    wanted = dim.points()
    flat = np.moveaxis(array, 2, -1)
    found = np.full((*flat.shape[:-1], dim.size), np.nan)
    for row, own in enumerate(times):
        there = np.isfinite(own)
        if there.sum() < 2:
            continue
        t = own[there]
        at = np.clip(np.searchsorted(t, wanted) - 1, 0, len(t) - 2)
        share = np.clip((wanted - t[at]) / (t[at + 1] - t[at]), 0, 1)
        here = flat[row][..., there]
        found[row] = here[..., at] * (1 - share) + here[..., at + 1] * share
        found[row][..., (wanted < t[0] - dim.step) | (wanted > t[-1] + dim.step)] = np.nan
    return np.moveaxis(found, -1, 2)
