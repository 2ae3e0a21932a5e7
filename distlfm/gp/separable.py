"""Kernels over (t, x) that are products of one over time and one over space: found by probing, used as factors.

Shapes: `A` rows of hyperparameters, `d` space dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.gp.kernels import FunctionalKernel, Hyper

PROBES = 24
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Separable:
    """k((t, x), (t', x')) = variance · time(t, t') · space(x, x'), for a kernel of constant variance."""

    kernel: FunctionalKernel

    def variance(self, hyper: Hyper) -> Tensor:
        """[A]."""
        return self.kernel.diagonal(hyper, _like(hyper).new_zeros(1, self.kernel.num_dims)).squeeze(-1)

    def time(self, hyper: Hyper, first: Tensor, second: Tensor) -> Tensor:
        """Correlation [A, n, m] of times [n] and [m]."""
        return self._correlation(hyper, self._at_time(first), self._at_time(second))

    def space(self, hyper: Hyper, first: Tensor, second: Tensor) -> Tensor:
        """Correlation [A, n, m] of places [n, d] and [m, d]."""
        return self._correlation(hyper, self._at_place(first), self._at_place(second))

    def _at_time(self, times: Tensor) -> Tensor:
        return torch.nn.functional.pad(times.unsqueeze(-1), (0, self.kernel.num_dims - 1))

    def _at_place(self, places: Tensor) -> Tensor:
        return torch.nn.functional.pad(places, (1, 0))

    def _correlation(self, hyper: Hyper, first: Tensor, second: Tensor) -> Tensor:
        return self.kernel.covariance(hyper, first, second) / self.variance(hyper)[..., None, None]


def _like(hyper: Hyper) -> Tensor:
    return next(iter(hyper.values()))


def separate(kernel: FunctionalKernel) -> Separable | None:
    """The two factors of a kernel, or None where it has no such factors."""
    stream = torch.Generator().manual_seed(0)
    hyper = {
        name: 0.5 + torch.rand(1, *kernel.shapes[name], generator=stream, dtype=torch.float64)
        for name in kernel.parameter_names
    }
    points = torch.rand(2, PROBES, kernel.num_dims, generator=stream, dtype=torch.float64)
    parts = Separable(kernel)
    variance = parts.variance(hyper)
    spread = kernel.diagonal(hyper, points[0])
    if not torch.allclose(spread, variance[..., None].expand_as(spread), rtol=TOLERANCE, atol=0.0):
        return None
    whole = kernel.covariance(hyper, points[0], points[1])
    time = parts.time(hyper, points[0, :, 0], points[1, :, 0])
    space = parts.space(hyper, points[0, :, 1:], points[1, :, 1:])
    product = variance[..., None, None] * time * space
    return parts if torch.allclose(whole, product, rtol=0.0, atol=TOLERANCE * float(variance.max())) else None
