"""Fourier layers without complex numbers: truncated Fourier series of functions on a box, as products of matrices.

A function on [0, 1]^d is known at even points, ends included. Its Fourier coefficients over a period of 1 + padding
are integrals, taken with Gregory's end corrections, so that they converge as functions do, not as arrays do: the same
function at twice the points has the same coefficients to fourth order. Few modes make this cheaper than an FFT, and
what is outside the domain costs nothing. Weights are pairs of real numbers.

Shapes: `B` instances, `W` channels, `n` points and `m` modes of a dimension, `k` = 2m − 1 of its signed modes.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor, nn

GREGORY = (3 / 8, 7 / 6, 23 / 24)
"""Weights at the ends of an even grid, in units of the step; elsewhere they are 1 (fourth order)."""


@lru_cache(maxsize=64)
def quadrature(size: int) -> Tensor:
    """Weights [n] that integrate over [0, 1] from `size` even points, ends included."""
    weights = torch.ones(size, dtype=torch.float64)
    ends = GREGORY if size >= 2 * len(GREGORY) else (0.5,)
    for i, weight in enumerate(ends):
        weights[i] = weights[size - 1 - i] = weight
    return weights / (size - 1)


@lru_cache(maxsize=64)
def waves(size: int, modes: int, padding: float, signed: bool) -> tuple[Tensor, Tensor]:
    """cos and sin [k, n] of 2π k x / (1 + padding): k = 0 … m − 1, or −(m − 1) … m − 1 if signed."""
    x = torch.linspace(0, 1, size, dtype=torch.float64)
    k = torch.arange(1 - modes if signed else 0, modes, dtype=torch.float64)
    angle = 2 * math.pi / (1 + padding) * k.unsqueeze(-1) * x
    return torch.cos(angle), torch.sin(angle)


class SpectralConv(nn.Module):
    """u [B, *grid, W] → the same, each of its lowest Fourier modes mapped by a complex matrix of its own.

    The weight [modes, 2, W, W] holds real and imaginary parts. Only the last dimension's modes are non-negative, as
    the functions are real.
    """

    def __init__(self, width: int, modes: tuple[int, ...], padding: float) -> None:
        super().__init__()
        self.width, self.modes, self.padding = width, modes, padding
        count = math.prod([2 * m - 1 for m in modes[:-1]]) * modes[-1]
        self.weight = nn.Parameter(torch.randn(count, 2, width, width) / width)

    def forward(self, u: Tensor) -> Tensor:
        grid = u.shape[1:-1]
        c = self._analyse(u, grid)
        batch, spectrum = c.shape[0], c.shape[2:-1]
        # [B, 2, *spectrum, W] → [modes, B, 2W], where a complex product is one real one with a block matrix.
        rows = c.reshape(batch, 2, -1, self.width).permute(2, 0, 1, 3).reshape(-1, batch, 2 * self.width)
        real, imaginary = self.weight.unbind(1)
        block = torch.cat([torch.cat([real, imaginary], -1), torch.cat([-imaginary, real], -1)], -2)
        mixed = torch.bmm(rows, block).reshape(-1, batch, 2, self.width).permute(1, 2, 0, 3)
        return self._synthesise(mixed.reshape(batch, 2, *spectrum, self.width), grid)

    def _analyse(self, u: Tensor, grid: torch.Size) -> Tensor:
        """Coefficients [B, 2, *modes, W]."""
        last = len(grid) - 1
        cos, sin = (self._with_weights(table, grid[last]) for table in self._waves(grid[last], last))
        both = torch.stack([cos, -sin]).to(u)  # [2, m, n]
        c = torch.einsum("bxnw,cmn->bcxmw", u.reshape(u.shape[0], -1, grid[last], self.width), both)
        c = c.reshape(u.shape[0], 2, *grid[:last], -1, self.width)
        for dim in range(last):
            cos, sin = (self._with_weights(table, grid[dim]).to(u) for table in self._waves(grid[dim], dim))
            c = _turn(c, dim + 2, cos, -sin)
        return c

    def _synthesise(self, c: Tensor, grid: torch.Size) -> Tensor:
        last = len(grid) - 1
        for dim in range(last):
            cos, sin = (table.T.to(c) for table in self._waves(grid[dim], dim))
            c = _turn(c, dim + 2, cos, sin)
        cos, sin = self._waves(grid[last], last)
        # A real function: the negative modes are the conjugates of the positive ones.
        twice = torch.full((self.modes[last], 1), 2.0, dtype=cos.dtype)
        twice[0] = 1
        both = torch.stack([twice * cos, -twice * sin]).to(c)
        flat = c.reshape(c.shape[0], 2, -1, self.modes[last], self.width)
        return torch.einsum("bcxmw,cmn->bxnw", flat, both).reshape(c.shape[0], *grid, self.width)

    def _waves(self, size: int, dim: int) -> tuple[Tensor, Tensor]:
        return waves(size, self.modes[dim], self.padding, dim < len(self.modes) - 1)

    def _with_weights(self, table: Tensor, size: int) -> Tensor:
        return table * (quadrature(size) / (1 + self.padding))


def _turn(c: Tensor, dim: int, cos: Tensor, sin: Tensor) -> Tensor:
    """(cos + i sin) [k, n] times complex c [B, 2, …, n, …] along `dim`."""
    moved = c.movedim(dim, -1)
    real, imaginary = moved[:, 0], moved[:, 1]
    found = torch.stack([real @ cos.T - imaginary @ sin.T, real @ sin.T + imaginary @ cos.T], 1)
    return found.movedim(-1, dim)
