"""Slopes and curvatures of noisy functions on an even grid: local quadratic regression with a Gaussian window.

The window is a fraction of the domain, not a number of points, and the regression an integral over it, of the cubic
spline through the values: it hardly depends on the grid. Near the ends the window is one-sided and the regression still
exact for quadratics, where Fourier series have their jump.

Shapes: `n` points of a dimension, `m` points at which something is wanted.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.lfo.spectral import quadrature
from distlfm.lfo.tables import table

UNIT = 0.1
"""Slopes are per this fraction of the domain, curvatures per its square: of the size of the values themselves."""

FINEST = 1.0
"""The window is at least this many steps of the grid: fewer points determine no quadratic."""


LARGEST = 4096
"""Points of a dimension that data may have: a table for as many takes half a gigabyte while it is made."""

DENSE = 8
"""Points of the integrals in a window."""


@table
def local_fit(
    size: int,
    window: float,
    at: int | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | None = None,
) -> Tensor:
    """Matrices [3, m, n] that give value, slope and curvature at m even points (the n themselves by default) from the

    values at n.
    """
    width = max(window, FINEST / (size - 1))
    parts = max(1, math.ceil(DENSE / (width * (size - 1))))
    fine = (size - 1) * parts + 1
    x = torch.linspace(0, 1, fine, dtype=torch.float64)
    wanted = torch.linspace(0, 1, at or size, dtype=torch.float64)
    offset = (x.unsqueeze(0) - wanted.unsqueeze(1)) / width  # [m, fine]
    weight = torch.exp(-0.5 * offset.square()) * quadrature(fine)
    basis = torch.stack([torch.ones_like(offset), offset, offset.square()], -1)  # [m, fine, 3]
    weighted = basis * weight.unsqueeze(-1)
    solved = torch.linalg.solve(weighted.mT @ basis, weighted.mT) @ spline(size, fine)  # [m, 3, n]
    scale = torch.tensor([1.0, UNIT / width, 2 * (UNIT / width) ** 2], dtype=torch.float64)
    found: Tensor = (solved * scale.unsqueeze(-1)).transpose(0, 1)
    return found.to(device, dtype).contiguous()


@table
def spline(size: int, at: int, dtype: torch.dtype = torch.float64, device: torch.device | None = None) -> Tensor:
    """The matrix [m, n] of the cubic spline through n even points, at m even points of the same domain."""
    if size > LARGEST:
        raise UsageError(
            f"A grid of {size} points is too fine for an operator, whose tables grow with their square.",
            f"Generate or fit with at most {LARGEST} times (and places a dimension).",
        )
    curve = CubicSpline(np.linspace(0, 1, size), np.eye(size))
    return torch.from_numpy(curve(np.linspace(0, 1, at))).to(device, dtype)


def scatter(v: Tensor, window: float) -> Tensor:
    """Squared deviations of v [B, P, T, *space] from a smooth curve of time, scaled to the variance of white noise.

    A regression takes part of the noise along, the more the fewer points its window has: that part is made up for.
    """
    rest, left = _rest(v.shape[2], window, v.dtype, v.device)
    return along(rest, v, 2).square() / left.view(-1, *(1,) * (v.dim() - 3))


@table
def _rest(size: int, window: float, dtype: torch.dtype, device: torch.device | None) -> tuple[Tensor, Tensor]:
    """What a smooth curve leaves of the values at n points, as a matrix [n, n], and of their noise's variance, [n]."""
    rest = torch.eye(size, dtype=torch.float64) - local_fit(size, window)[0]
    return rest.to(device, dtype), rest.square().sum(-1).to(device, dtype)


def along(matrix: Tensor, u: Tensor, dim: int) -> Tensor:
    """A matrix [m, n] applied to one dimension of u."""
    if dim == u.dim() - 1:
        return u @ matrix.T
    return torch.movedim(torch.movedim(u, dim, -1) @ matrix.T, -1, dim)
