"""Draws of the latent forces as functions of time and place (Matheron's rule; Wilson et al. 2020).

A draw is a weighted sum of fixed features: cosines and sines of the prior's spectrum (or a Nyström basis, for kernels
without one), and, for a posterior, the covariance with the inducing points. The weights are found once; after that
every evaluation, anywhere and any number of times, is one product of features and weights.

Shapes: `S` samples, `B` instances, `L` forces, `M` inducing points, `R` features, `d` input dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.gp.inducing import place_on_box
from distlfm.gp.kernels import FunctionalKernel, Hyper
from distlfm.gp.linalg import Cholesky, safe_cholesky, solve_samples
from distlfm.gp.spectral import Spectrum, spectrum

NUM_BASIS = 128
"""Points of the Nyström basis of a kernel without a spectrum."""


class Domain(NamedTuple):
    """Where draws will be asked for: `lower` and `upper` [B, d] of each instance."""

    lower: Tensor
    upper: Tensor


def instance_noise(seeds: Sequence[int], *shape: int) -> Tensor:
    """Standard normal numbers [B, *shape], each instance's from its own seed, so that neighbours play no part."""
    streams = [torch.Generator().manual_seed(int(seed)) for seed in seeds]
    return torch.stack([torch.randn(shape, generator=stream, dtype=torch.float64) for stream in streams])


def make_base_noise(seeds: Sequence[int], num_samples: int, num_forces: int, num_features: int) -> Tensor:
    """The randomness of prior draws [S, B, L, 2, R]: weights of cosines and of sines.

    On a line an RBF kernel needs about 8 + span/lengthscale features; products and rough kernels need more.
    """
    return instance_noise(seeds, num_samples, num_forces, 2, num_features).transpose(0, 1)


@dataclass(frozen=True)
class ForcePrior:
    """Independent Gaussian processes, one per force. Hyperparameters are a list of `L` dicts of values [B, ...]."""

    kernels: tuple[FunctionalKernel, ...]

    def covariance(self, hyper: Sequence[Hyper], x1: Tensor, x2: Tensor) -> Tensor:
        """[B, L, n, m] for inputs [B, n, d] and [B, m, d]."""
        parts = [kernel.covariance(one, x1, x2) for kernel, one in zip(self.kernels, hyper, strict=True)]
        return torch.stack(parts, dim=-3)

    def factor(self, hyper: Sequence[Hyper], inducing: Tensor) -> Cholesky:
        """Lower factor [B, L, M, M] of the covariance at `inducing` [B, M, d], and [B] whether all of it went well."""
        factor, ok = safe_cholesky(self.covariance(hyper, inducing, inducing))
        return Cholesky(factor, ok.all(-1))


@dataclass(frozen=True)
class _SpectralBasis:
    spectrum: Spectrum

    def __call__(self, x: Tensor) -> Tensor:
        """Cosines, then sines, of inputs [..., n, d]: [..., n, 2R]."""
        phase = x @ self.spectrum.frequencies.mT
        return torch.cat([phase.cos(), phase.sin()], dim=-1)


@dataclass(frozen=True)
class _KernelBasis:
    kernel: FunctionalKernel
    hyper: Hyper
    points: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Covariance of inputs [..., n, d] with the points [B, M, d]: [..., n, M]."""
        return self.kernel.covariance(self.hyper, x, self.points)


@dataclass(frozen=True)
class _WeightedBasis:
    """weights: [S, B, K] for a basis of K functions."""

    basis: _SpectralBasis | _KernelBasis
    weights: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[S, B, n] at inputs [B, n, d] shared by the samples, or [S, B, n, d]."""
        features = self.basis(x)
        if x.dim() == 4:
            return (features @ self.weights[..., None]).squeeze(-1)
        return (features @ self.weights.permute(1, 2, 0)).permute(2, 0, 1)


@dataclass(frozen=True)
class Draw:
    """Samples of all forces, as a function.

    ok: [B], False where a covariance could not be factored; the values of that instance mean nothing.
    """

    forces: tuple[tuple[_WeightedBasis, ...], ...]
    ok: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Values [S, B, L, n] at `x`: [n, d] for all, [B, n, d] for each instance, or [S, B, n, d] for each sample."""
        inputs = x[None] if x.dim() == 2 else x
        values = [sum((part(inputs) for part in parts[1:]), start=parts[0](inputs)) for parts in self.forces]
        return torch.stack(values, dim=-2)


def draw_prior(prior: ForcePrior, hyper: Sequence[Hyper], domain: Domain, base_noise: Tensor) -> Draw:
    """Samples of the prior from `base_noise` [S, B, L, 2, R], good within `domain`."""
    parts, oks = [], []
    for index, (kernel, one) in enumerate(zip(prior.kernels, hyper, strict=True)):
        part, ok = _prior_part(kernel, one, domain, base_noise[:, :, index])
        parts.append((part,))
        oks.append(ok)
    return Draw(tuple(parts), torch.stack(oks).all(0))


def draw_posterior(
    prior: ForcePrior, hyper: Sequence[Hyper], domain: Domain, base_noise: Tensor, inducing: Tensor, whitened: Tensor
) -> Draw:
    """Samples that pass through the values u = chol(K_ZZ) v at `inducing` [B, M, d], of `whitened` v [S, B, L, M].

    f(x) + k(x, Z) K_ZZ⁻¹ (u − f(Z)), with f a sample of the prior.
    """
    factor = prior.factor(hyper, inducing)
    draw = draw_prior(prior, hyper, domain, base_noise)
    missing = whitened - solve_samples(factor.factor, draw(inducing))
    weights = solve_samples(factor.factor, missing, transposed=True)
    forces = tuple(
        (*parts, _WeightedBasis(_KernelBasis(kernel, one, inducing), weights[:, :, index]))
        for index, (parts, kernel, one) in enumerate(zip(draw.forces, prior.kernels, hyper, strict=True))
    )
    return Draw(forces, draw.ok & factor.ok)


def _prior_part(kernel: FunctionalKernel, hyper: Hyper, domain: Domain, noise: Tensor) -> tuple[_WeightedBasis, Tensor]:
    """noise: [S, B, 2, R]."""
    waves = spectrum(kernel, hyper, domain.upper - domain.lower, noise.shape[-1])
    if waves is not None:
        weights = noise[..., : waves.amplitudes.shape[-1]] * waves.amplitudes[..., None, :]
        ok = waves.amplitudes.detach().isfinite().all(-1).expand(noise.shape[1])
        return _WeightedBasis(_SpectralBasis(waves), weights.flatten(-2)), ok
    available = noise.flatten(-2)
    num_dims = domain.lower.shape[-1]
    count = int(min(NUM_BASIS, available.shape[-1]) ** (1 / num_dims) + 1e-9)
    if count < 2:
        raise UsageError(f"{noise.shape[-1]} features are too few for {num_dims} dimensions.", "Give more features.")
    points = place_on_box(domain.lower, domain.upper, [count] * num_dims)
    factor, ok = safe_cholesky(kernel.covariance(hyper, points, points))
    weights = solve_samples(factor, available[..., : points.shape[-2]], transposed=True)
    return _WeightedBasis(_KernelBasis(kernel, hyper, points), weights), ok.expand(noise.shape[1])
