"""Stationary kernels as sums of cosines: k(x, x') ≈ Σ_r a_r² cos(ω_r · (x − x')), smooth in the hyperparameters.

Nothing here is random: randomness is in the weights that a draw gives to the cosines (`pathwise.py`).

- RBF and Matérn in one or two dimensions: the midpoint rule on the spectral density. It repeats itself after a period
  that is chosen to lie beyond the span of the inputs, and converges exponentially for the RBF kernel.
- In more dimensions: scrambled Sobol points pushed through the inverse of the density's distribution (Gaussian for
  RBF, multivariate Student-t for Matérn; Rahimi and Recht 2007).
- Periodic: its Fourier series, by a discrete transform over one period.
- Sums concatenate, products add and subtract frequencies, as cos α cos β = ½ cos(α + β) + ½ cos(α − β).
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from distlfm.gp.expression import MATERN_ORDER, Node, Periodic, Product, Scaled, Stationary, Sum, Values
from distlfm.gp.kernels import FunctionalKernel, Hyper

REACH = {"rbf": 8.0, "matern12": 6.0, "matern32": 8.0, "matern52": 9.0}
"""Lengthscales after which a kernel counts as zero: the cosines may start to repeat beyond the span plus this."""

GRID_DIMS = {"rbf": 2, "matern12": 1, "matern32": 2, "matern52": 2}
"""Dimensions up to which the grid of frequencies has a smaller error than Sobol points (256 to 1024 features)."""

SERIES_OVERSAMPLING = 4
"""Points of the discrete transform for each harmonic that is kept."""

COEFFICIENT_FLOOR = 1e-16
"""Fourier coefficients below are rounding errors, which may be negative and have no square root."""

SOBOL_SEED = 20070


class Spectrum(NamedTuple):
    """frequencies: [..., R, d]; amplitudes: [..., R], with Σ_r a_r² the kernel's variance."""

    frequencies: Tensor
    amplitudes: Tensor


def spectrum(kernel: FunctionalKernel, hyper: Hyper, span: Tensor, num_features: int) -> Spectrum | None:
    """At most `num_features` cosines for `kernel`, or None if it has no known spectrum.

    span: [..., d], the greatest distance in each dimension between two inputs that will be asked for.
    """
    return _of_node(kernel.expression, kernel.values(hyper, span), span, num_features)


def _of_node(node: Node, values: Values, span: Tensor, num_features: int) -> Spectrum | None:
    if isinstance(node, Scaled):
        part = _of_node(node.part, values, span, num_features)
        if part is None:
            return None
        return Spectrum(part.frequencies, part.amplitudes * values[node.scale.name][..., None].sqrt())
    if isinstance(node, Stationary):
        num_dims = len(_dims(node.dims, span))
        build = _on_a_grid if num_dims <= GRID_DIMS[node.shape] else _by_quasirandom_points
        return build(node, values, span, num_features)
    if isinstance(node, Periodic):
        return _multiply(_harmonics(node, values, span, num_features), num_features)
    if isinstance(node, Sum):
        return _concatenate([_of_node(part, values, span, num_features // len(node.parts)) for part in node.parts])
    if isinstance(node, Product):
        return _of_product(node, values, span, num_features)
    return None


def _on_a_grid(node: Stationary, values: Values, span: Tensor, num_features: int) -> Spectrum:
    """Midpoints of a regular grid over half of the frequency space, weighed by the density; the other half is ±."""
    dims = _dims(node.dims, span)
    num_dims = len(dims)
    count = max(int((2 * num_features) ** (1 / num_dims) / 2 + 1e-9), 1)
    lengthscale = node.lengthscale.against_rows(values)[..., 0, :]
    half_period = 0.5 * (span[..., list(dims)] + REACH[node.shape] * lengthscale)
    positive = torch.arange(count, dtype=span.dtype, device=span.device) + 0.5
    axes = torch.meshgrid(positive, *[torch.cat([-positive, positive])] * (num_dims - 1), indexing="ij")
    midpoints = torch.stack([axis.flatten() for axis in axes], dim=-1)
    frequencies = midpoints * (math.pi / half_period)[..., None, :]
    squared = (frequencies * lengthscale[..., None, :]).square().sum(-1)
    if node.shape == "rbf":
        log_density = -0.5 * squared
    else:
        nu = MATERN_ORDER[node.shape] + 0.5
        log_density = -(nu + 0.5 * num_dims) * torch.log1p(squared / (2 * nu))
    # Normalised to one: the tail that was cut off is given back in proportion.
    amplitudes = (0.5 * log_density.log_softmax(-1)).exp()
    return Spectrum(_embed(frequencies, dims, span), amplitudes)


def _by_quasirandom_points(node: Stationary, values: Values, span: Tensor, num_features: int) -> Spectrum:
    dims = _dims(node.dims, span)
    base = torch.from_numpy(_base_points(node.shape, len(dims), num_features)).to(span)
    lengthscale = node.lengthscale.against_rows(values)
    frequencies = _embed(base / lengthscale, dims, span)
    return Spectrum(frequencies, torch.full_like(frequencies[..., 0], num_features**-0.5))


@lru_cache(maxsize=64)
def _base_points(shape: str, num_dims: int, num_features: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """[R, d] frequencies of the kernel with unit lengthscale."""
    import scipy.stats  # takes most of a second, and few methods draw features

    sobol = scipy.stats.qmc.Sobol(num_dims + 1, rng=np.random.default_rng(SOBOL_SEED))
    uniform = sobol.random_base2(math.ceil(math.log2(max(num_features, 2))))[:num_features]
    gaussian = scipy.stats.norm.ppf(uniform[:, :num_dims])
    if shape == "rbf":
        return np.asarray(gaussian)
    freedom = 2 * MATERN_ORDER[shape] + 1
    return np.asarray(gaussian * np.sqrt(freedom / scipy.stats.chi2.ppf(uniform[:, num_dims:], freedom)))


def _harmonics(node: Periodic, values: Values, span: Tensor, num_features: int) -> list[Spectrum]:
    """The Fourier series of each dimension's factor; harmonics 0, 1, 2, …"""
    dims = _dims(node.dims, span)
    num_harmonics = num_features if len(dims) == 1 else _share(num_features, len(dims))
    num_points = SERIES_OVERSAMPLING * num_harmonics
    angle = 2 * math.pi * torch.arange(num_points, dtype=span.dtype, device=span.device) / num_points
    order = torch.arange(num_harmonics, dtype=span.dtype, device=span.device)
    series = []
    for place, dim in enumerate(dims):
        lengthscale = _component(values[node.lengthscale.name], node.lengthscale.is_vector, place)
        period = _component(values[node.period.name], node.period.is_vector, place)
        profile = torch.exp(-2 * torch.sin(angle / 2).square() / lengthscale[..., None])
        coefficients = torch.fft.rfft(profile).real[..., :num_harmonics] / num_points
        coefficients = torch.where(order == 0, coefficients, 2 * coefficients)
        floored = torch.where(coefficients > COEFFICIENT_FLOOR, coefficients, COEFFICIENT_FLOOR)
        amplitudes = (floored / floored.sum(-1, keepdim=True)).sqrt()
        frequency = order * (2 * math.pi / period)[..., None]
        series.append(Spectrum(_embed(frequency[..., None], (dim,), span), amplitudes))
    return series


def _of_product(node: Product, values: Values, span: Tensor, num_features: int) -> Spectrum | None:
    # Periodic parts need few harmonics; what they leave goes to the others.
    factors: list[Spectrum] = []
    remaining, left = num_features, len(node.parts)
    for part in sorted(node.parts, key=lambda part: not isinstance(part, Periodic)):
        share = remaining if left == 1 else _share(remaining, left)
        factor = _of_node(part, values, span, share)
        if factor is None:
            return None
        factors.append(factor)
        remaining = max(remaining // _two_sided(factor).amplitudes.shape[-1], 1)
        left -= 1
    return _multiply(factors, num_features)


def _share(num_features: int, num_factors: int) -> int:
    """One-sided features of a factor, such that the product of two-sided ones stays within `num_features`."""
    return max(int(num_features ** (1 / num_factors) / 2), 1)


def _multiply(factors: list[Spectrum], num_features: int) -> Spectrum:
    *others, result = factors
    for factor in others:
        other = _two_sided(factor)
        frequencies = result.frequencies[..., :, None, :] + other.frequencies[..., None, :, :]
        amplitudes = result.amplitudes[..., :, None] * other.amplitudes[..., None, :]
        result = Spectrum(frequencies.flatten(-3, -2), amplitudes.flatten(-2))
    return Spectrum(result.frequencies[..., :num_features, :], result.amplitudes[..., :num_features])


def _two_sided(factor: Spectrum) -> Spectrum:
    """±ω, each with half the variance: what a product needs of all factors but one."""
    frequencies = torch.cat([factor.frequencies, -factor.frequencies], dim=-2)
    return Spectrum(frequencies, torch.cat([factor.amplitudes, factor.amplitudes], dim=-1) * math.sqrt(0.5))


def _concatenate(parts: list[Spectrum | None]) -> Spectrum | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    batch = torch.broadcast_shapes(*(part.amplitudes.shape[:-1] for part in known))
    frequencies = [part.frequencies.expand(*batch, *part.frequencies.shape[-2:]) for part in known]
    amplitudes = [part.amplitudes.expand(*batch, part.amplitudes.shape[-1]) for part in known]
    return Spectrum(torch.cat(frequencies, dim=-2), torch.cat(amplitudes, dim=-1))


def _embed(frequencies: Tensor, dims: tuple[int, ...], span: Tensor) -> Tensor:
    """Frequencies [..., R, len(dims)] of some dimensions as frequencies [..., R, d] of all."""
    if dims == tuple(range(span.shape[-1])):
        return frequencies
    columns = [torch.zeros_like(frequencies[..., 0])] * span.shape[-1]
    for place, dim in enumerate(dims):
        columns[dim] = frequencies[..., place]
    return torch.stack(columns, dim=-1)


def _dims(dims: tuple[int, ...] | None, span: Tensor) -> tuple[int, ...]:
    return tuple(range(span.shape[-1])) if dims is None else dims


def _component(value: Tensor, is_vector: bool, place: int) -> Tensor:
    return value[..., place] if is_vector else value
