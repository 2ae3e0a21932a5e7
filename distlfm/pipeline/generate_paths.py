"""Forces of time on an even grid, drawn in O(n log n) by circulant embedding (Dietrich and Newsam 1997).

A stationary covariance on an even grid is a Toeplitz matrix, a corner of a circulant one, whose square root is two
Fourier transforms. The circle is long enough for the covariance to die out on the way around, so the corner is exact
up to `TAIL`. Kernels that do not die out, or are not stationary, are drawn by Cholesky.

Shapes: `B` instances, `L` forces, `N` grid points, `n` points of the circle.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from distlfm.gp.expression import Node, Periodic, Product, Scaled, Stationary, Sum
from distlfm.gp.kernels import FunctionalKernel, Hyper
from distlfm.gp.linalg import Cholesky, safe_cholesky
from distlfm.mechanisms.parameters import ParameterSpace

TAIL = 1e-10
"""Covariance around the circle, in units of the variance, that counts as none; as small as a Cholesky's jitter."""

LARGEST = 16384
"""Points of the longest circle; what needs more is drawn by Cholesky."""

LANES = 16
"""Numbers that a processor may take at once."""

SOFT = 1e-10
"""Eigenvalues below this part of the variance fade out. A root near zero would make 1e-8 of a rounding of 1e-16."""


def draw_paths(
    kernels: Sequence[FunctionalKernel],
    hyper: Sequence[Hyper],
    times: Tensor,
    generators: Sequence[np.random.Generator],
) -> tuple[Tensor, Tensor]:
    """Forces [B, L, N] at even times [N], and whether [B] they could be drawn. hyper: L dicts of values [B, ...].

    An instance's numbers come from its own generator, as many as its own hyperparameters ask for.
    """
    found = [_draw(kernel, one, times, generators) for kernel, one in zip(kernels, hyper, strict=True)]
    return torch.stack([path for path, _ in found], 1), torch.stack([ok for _, ok in found]).all(0)


def normals(generators: Sequence[np.random.Generator], *shape: int) -> Tensor:
    """Standard normal numbers [B, *shape], those of each instance from its own generator."""
    # Copied into torch's memory: where an array begins, to a few bytes, may change the last digit of its products.
    return torch.tensor(np.stack([generator.standard_normal(shape) for generator in generators]))


def draw_values(space: ParameterSpace, generators: Sequence[np.random.Generator]) -> dict[str, Tensor]:
    """Parameters from their priors, each [B, K]."""
    z = normals(generators, space.num_free)
    # What is left over at the end of an array is computed by other instructions than whole vectors are, and an
    # ill-conditioned covariance makes much of a lengthscale's last digit. So there is nothing left over.
    whole = torch.nn.functional.pad(z, (0, 0, 0, -len(z) % LANES))
    return {name: value[: len(z)] for name, value in space.unpack(whole).items()}


def steady_factor(evaluate: Callable[[Hyper], Tensor], hyper: Hyper) -> Cholesky:
    """The factor of evaluate(hyper) [B, n, n], the same to the last digit whatever else is in the batch.

    For that there is a row more, which takes what is left over, and every matrix begins at a multiple of `LANES`.
    """
    covariance = evaluate({name: torch.cat([value, value[-1:]]) for name, value in hyper.items()})[:-1]
    size = covariance.shape[-1]
    more = -size % LANES
    padded = torch.nn.functional.pad(covariance, (0, more, 0, more))
    torch.diagonal(padded, dim1=-2, dim2=-1)[:, size:] = covariance[:, :1, 0]
    factor, ok = safe_cholesky(padded)
    return Cholesky(factor[:, :size, :size], ok)


def circle_root(kernel: FunctionalKernel, hyper: Hyper, step: float, count: int, size: int) -> tuple[Tensor, Tensor]:
    """Roots of the eigenvalues [B, n // 2 + 1] of a circle of n = `size` points, a power of two, and [B] whether it is

    long enough for `count` of them. A covariance that goes around both ways is a positive one (Poisson's sum), but for
    what is below `TAIL`.
    """
    lags = step * torch.arange(size, dtype=torch.float64)
    covariance = _at_lags(kernel, hyper, lags)
    around = torch.cat([covariance[:, :1], covariance[:, 1:] + covariance[:, 1:].flip(-1)], -1)
    eigenvalues = torch.fft.rfft(around).real
    root = eigenvalues / (eigenvalues.clamp_min(0.0) + SOFT * covariance[:, :1]).sqrt()
    return root, _dies_out(covariance, count)


def _draw(
    kernel: FunctionalKernel, hyper: Hyper, times: Tensor, generators: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    count, step = len(times), float(times[-1] - times[0]) / (len(times) - 1)
    found = torch.zeros(len(generators), count, dtype=torch.float64)
    ok = torch.ones(len(generators), dtype=torch.bool)
    on_circle = torch.zeros_like(ok)
    if _is_stationary(kernel.expression):
        last = step * torch.cat([torch.zeros(1), torch.arange(LARGEST - count + 1, LARGEST)]).double()
        on_circle = _dies_out(_at_lags(kernel, hyper, last), count)
    waiting, size = torch.nonzero(on_circle).flatten(), 2 ** (count + count // 4).bit_length()
    while len(waiting):
        root, fits = circle_root(kernel, _rows(hyper, waiting), step, count, size)
        chosen = waiting[fits]
        if len(chosen):
            noise = normals([generators[int(row)] for row in chosen], size)
            found[chosen] = torch.fft.irfft(root[fits] * torch.fft.rfft(noise), size)[:, :count]
        waiting, size = waiting[~fits], 2 * size
    others = torch.nonzero(~on_circle).flatten()
    if len(others):
        place = times.unsqueeze(-1)
        factor, ok[others] = steady_factor(lambda own: kernel.covariance(own, place, place), _rows(hyper, others))
        noise = normals([generators[int(row)] for row in others], count)
        found[others] = (factor @ noise.unsqueeze(-1)).squeeze(-1)
    return found, ok


def _at_lags(kernel: FunctionalKernel, hyper: Hyper, lags: Tensor) -> Tensor:
    """Covariance [B, n] of the first of the lags [n] with each."""
    return kernel.covariance(hyper, lags[:1, None], lags[:, None]).squeeze(-2)


def _dies_out(covariance: Tensor, count: int) -> Tensor:
    """Whether [B] the last count − 1 of the lags [B, n] are as good as uncorrelated with the first."""
    return covariance[:, 1 - count :].abs().amax(-1) <= TAIL * covariance[:, 0]


def _rows(hyper: Hyper, rows: Tensor) -> dict[str, Tensor]:
    return {name: value[rows] for name, value in hyper.items()}


def _is_stationary(node: Node) -> bool:
    if isinstance(node, Scaled):
        return _is_stationary(node.part)
    if isinstance(node, Sum | Product):
        return all(_is_stationary(part) for part in node.parts)
    return isinstance(node, Stationary | Periodic)
