"""Fourier layers without complex numbers: truncated Fourier series of functions on a box, as products of matrices.

A function on [0, 1]^d is known at even points, ends included. Its Fourier coefficients over a period of 1 + padding are
integrals, taken with Gregory's end corrections, so that they converge as functions do, not as arrays do: the same
function at twice the points has the same coefficients to fourth order. Few modes make this cheaper than an FFT, and
what is outside the domain costs nothing. Weights are pairs of real numbers.

`local_fit` gives slopes and curvatures of noisy functions on an even grid by local quadratic regression with a Gaussian
window. The window is a fraction of the domain, not a number of points, and the regression an integral over it, of the
cubic spline through the values: it hardly depends on the grid. Near the ends the window is one-sided and the regression
still exact for quadratics, where Fourier series have their jump.

Tensors that follow from sizes alone are computed once, and kept (`table`).

Shapes: `B` instances, `W` channels, `n` points and `m` modes of a dimension, or `m` points at which something is
wanted, `k` = 2m − 1 of its signed modes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import ParamSpec, TypeVar, cast

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor, nn

from distlfm.errors import UsageError

MOST = 256
P = ParamSpec("P")
T = TypeVar("T")


def table(function: Callable[P, T]) -> Callable[P, T]:
    """Keep what the function gives for each of its arguments.

    It is always computed outside of inference mode, in which queries are answered: training takes the same tensors, and
    gradients do not pass those that were made there.
    """
    return cast(Callable[P, T], lru_cache(maxsize=MOST)(torch.inference_mode(False)(function)))


@table
def ridge(size: int, weight: float, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """What is added to a matrix [size, size] before it is inverted."""
    return weight * torch.eye(size, dtype=dtype, device=device)


GREGORY = (3 / 8, 7 / 6, 23 / 24)
"""Weights at the ends of an even grid, in units of the step; elsewhere they are 1 (fourth order)."""


@table
def quadrature(size: int, dtype: torch.dtype = torch.float64, device: torch.device | None = None) -> Tensor:
    """Weights [n] that integrate over [0, 1] from `size` even points, ends included."""
    weights = torch.ones(size, dtype=torch.float64)
    ends = GREGORY if size >= 2 * len(GREGORY) else (0.5,)
    for i, weight in enumerate(ends):
        weights[i] = weights[size - 1 - i] = weight
    return (weights / (size - 1)).to(device, dtype)


def waves(size: int, modes: int, padding: float, signed: bool) -> tuple[Tensor, Tensor]:
    """cos and sin [k, n] of 2π k x / (1 + padding): k = 0 … m − 1, or −(m − 1) … m − 1 if signed."""
    x = torch.linspace(0, 1, size, dtype=torch.float64)
    k = torch.arange(1 - modes if signed else 0, modes, dtype=torch.float64)
    angle = 2 * math.pi / (1 + padding) * k.unsqueeze(-1) * x
    return torch.cos(angle), torch.sin(angle)


@table
def analysis(
    size: int, modes: int, padding: float, signed: bool, dtype: torch.dtype, device: torch.device | None
) -> Tensor:
    """From values to coefficients: for the last dimension [2m, n], real to complex; for a signed one [2k, 2n]."""
    cos, sin = (table * (quadrature(size) / (1 + padding)) for table in waves(size, modes, padding, signed))
    table = torch.cat([cos, -sin]) if not signed else _complex(cos, -sin)
    return table.to(device, dtype)


@table
def synthesis(
    size: int, modes: int, padding: float, signed: bool, dtype: torch.dtype, device: torch.device | None
) -> Tensor:
    """From coefficients to values: for the last dimension [n, 2m], complex to real; for a signed one [2n, 2k]."""
    cos, sin = (table.T for table in waves(size, modes, padding, signed))
    if signed:
        return _complex(cos, sin).to(device, dtype)
    # A real function: the negative modes are the conjugates of the positive ones.
    twice = torch.full((modes,), 2.0, dtype=torch.float64)
    twice[0] = 1
    return torch.cat([twice * cos, -twice * sin], -1).to(device, dtype)


def _complex(real: Tensor, imaginary: Tensor) -> Tensor:
    """The real matrix [2a, 2b] that does to (real, imaginary) what a complex one [a, b] does."""
    return torch.cat([torch.cat([real, -imaginary], -1), torch.cat([imaginary, real], -1)], -2)


@table
def series_tables(
    size: int, modes: int, padding: float, dtype: torch.dtype, device: torch.device | None
) -> tuple[Tensor, Tensor]:
    """`analysis` [2 modes, size] and `synthesis` [size, 2 modes] of a function of one dimension, with the two parts of
    each mode side by side."""
    there = analysis(size, modes, padding, False, torch.float64, None).unflatten(0, (2, modes)).transpose(0, 1)
    back = synthesis(size, modes, padding, False, torch.float64, None).unflatten(1, (2, modes)).transpose(1, 2)
    return there.flatten(0, 1).to(device, dtype), back.flatten(1).to(device, dtype)


class SpectralConv(nn.Module):
    """u [B, *grid, W] → the same, each of its lowest Fourier modes mapped by a complex matrix of its own.

    The weight [modes, 2, W, W] holds real and imaginary parts. Only the last dimension's modes are non-negative, as
    the functions are real.
    """

    def __init__(self, width: int, modes: tuple[int, ...], padding: float) -> None:
        super().__init__()
        self.width, self.modes, self.padding = width, modes, padding
        count = math.prod([2 * m - 1 for m in modes[:-1]]) * modes[-1]
        self._settled: Tensor | None = None
        self.weight = nn.Parameter(torch.randn(count, 2, width, width) / width)

    def block(self) -> Tensor:
        """The weight as real matrices [modes, 2W, 2W]."""
        real, imaginary = self.weight.unbind(1)
        return torch.cat([torch.cat([real, imaginary], -1), torch.cat([-imaginary, real], -1)], -2)

    def settle(self) -> None:
        """The weight will not change any more: its real matrices are kept."""
        self._settled = self.block().detach()

    def forward(self, u: Tensor) -> Tensor:
        block = self.block() if self._settled is None else self._settled
        if len(self.modes) > 1:
            return self._several(u, block)
        there, back = series_tables(u.shape[1], self.modes[0], self.padding, u.dtype, u.device)
        c = (there @ u).reshape(u.shape[0], self.modes[0], 2 * self.width).transpose(0, 1)
        found: Tensor = back @ torch.bmm(c, block).transpose(0, 1).reshape(u.shape[0], 2 * self.modes[0], self.width)
        return found

    def _several(self, u: Tensor, block: Tensor) -> Tensor:
        """The same for a grid of several dimensions."""
        grid, batch, last = u.shape[1:-1], u.shape[0], len(self.modes) - 1
        where = (u.dtype, u.device)
        # The last dimension first: real to complex. [B·others, n, W] → [B, others…, 2, m, W]
        c = analysis(grid[last], self.modes[last], self.padding, False, *where) @ u.reshape(-1, grid[last], self.width)
        spectrum = [self.modes[last]]
        for dim in reversed(range(last)):
            # [B·others, n, 2, rest] → [B·others, 2, n, rest] → [B·others, 2, k, rest]: complex to complex.
            rest = math.prod(spectrum) * self.width
            c = c.reshape(-1, grid[dim], 2, rest).transpose(1, 2).reshape(-1, 2 * grid[dim], rest)
            c = analysis(grid[dim], self.modes[dim], self.padding, True, *where) @ c
            spectrum.insert(0, 2 * self.modes[dim] - 1)
        count = math.prod(spectrum)
        # [B, 2, modes, W] → [modes, B, 2W], where a complex product is one real one with a block matrix.
        rows = c.reshape(batch, 2, count, self.width).permute(2, 0, 1, 3).reshape(count, batch, 2 * self.width)
        c = torch.bmm(rows, block).reshape(count, batch, 2, self.width).permute(1, 2, 0, 3)
        for dim in range(last):
            spectrum.pop(0)
            rest = math.prod(spectrum) * self.width
            c = synthesis(grid[dim], self.modes[dim], self.padding, True, *where) @ c.reshape(
                -1, 2 * (2 * self.modes[dim] - 1), rest
            )
            c = c.reshape(-1, 2, grid[dim], rest).transpose(1, 2)
        c = c.reshape(-1, 2 * self.modes[last], self.width)
        found = synthesis(grid[last], self.modes[last], self.padding, False, *where) @ c
        return found.reshape(u.shape)


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
    weights: Tensor = (solved * scale.unsqueeze(-1)).transpose(0, 1)
    return weights.to(device, dtype).contiguous()


@table
def spline(size: int, at: int, dtype: torch.dtype = torch.float64, device: torch.device | None = None) -> Tensor:
    """The matrix [m, n] of the cubic spline through n even points, at m even points of the same domain."""
    if size > LARGEST:
        raise UsageError(
            f"A grid of {size} points is too fine for an operator, whose tables grow with their square.",
            f"Generate or fit with at most {LARGEST} times (and places per dimension).",
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
