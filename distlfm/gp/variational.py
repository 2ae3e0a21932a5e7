"""The Gaussian q of the whitened inducing values v, where u = chol(K_ZZ) v and the prior of v is N(0, I).

Two ways to hold it: a mean and a Cholesky factor, for any optimiser; natural parameters, for natural-gradient steps.
Everything is a value: steps take a state and return the next.

Shapes: `S` samples, `B` instances, `L` forces, `M` inducing points.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from distlfm.gp.linalg import Cholesky, multiply_samples, safe_cholesky


@dataclass(frozen=True)
class WhitenedGaussian:
    """q(v) = ∏_l N(mean, scale scaleᵀ). mean: [B, L, M]; scale: [B, L, M, M] lower triangular."""

    mean: Tensor
    scale: Tensor

    @property
    def covariance(self) -> Tensor:
        """[B, L, M, M]."""
        return self.scale @ self.scale.mT

    def sample_whitened(self, noise: Tensor) -> Tensor:
        """v [S, B, L, M] from standard normal `noise` [S, B, L, M]."""
        return self.mean + multiply_samples(self.scale, noise)

    def kl(self) -> Tensor:
        """KL(q ‖ N(0, I)) summed over forces, [B]."""
        log_determinant = 2 * self.scale.diagonal(dim1=-2, dim2=-1).abs().log().sum(-1)
        trace = self.scale.square().sum((-2, -1))
        return 0.5 * (trace + self.mean.square().sum(-1) - self.mean.shape[-1] - log_determinant).sum(-1)


def gaussian_from_unconstrained(mean: Tensor, raw_scale: Tensor) -> WhitenedGaussian:
    """mean: [B, L, M]; raw_scale: [B, L, M, M], of which the lower triangle counts; its diagonal is a logarithm.

    Zeros give the prior.
    """
    return WhitenedGaussian(mean, raw_scale.tril(-1) + torch.diag_embed(raw_scale.diagonal(dim1=-2, dim2=-1).exp()))


class NaturalState(NamedTuple):
    """θ₁ = Σ⁻¹ m [B, L, M] and θ₂ = −½ Σ⁻¹ [B, L, M, M] of q(v)."""

    first: Tensor
    second: Tensor


class ExpectationGradient(NamedTuple):
    """Gradient of a loss in the expectation parameters η₁ = m [B, L, M] and η₂ = Σ + m mᵀ [B, L, M, M]."""

    first: Tensor
    second: Tensor


class NaturalStep(NamedTuple):
    """The next state, and [B] whether the step was taken; where it was not, the state is the old one."""

    state: NaturalState
    ok: Tensor


def gaussian_from_natural(state: NaturalState) -> WhitenedGaussian:
    """The Gaussian with these natural parameters; every state that a step returns has one."""
    factor = _precision_factor(state).factor
    covariance = torch.cholesky_inverse(factor)
    mean = torch.cholesky_solve(state.first[..., None], factor)[..., 0]
    return WhitenedGaussian(mean, safe_cholesky(covariance, jitter=0.0).factor)


def natural_step(state: NaturalState, gradient: ExpectationGradient, learning_rate: float | Tensor) -> NaturalStep:
    """θ ← θ − learning_rate · dL/dη; the rate is one number, or [B].

    A step after which the precision is not positive definite, or not finite, is not taken: try a smaller rate.
    """
    rate = torch.as_tensor(learning_rate, dtype=state.first.dtype, device=state.first.device)
    first = state.first - rate[..., None, None] * gradient.first
    second = state.second - rate[..., None, None, None] * gradient.second
    factored = _precision_factor(NaturalState(first, second)).ok
    ok = factored.all(-1) & first.isfinite().all(-1).all(-1)
    kept = NaturalState(
        torch.where(ok[:, None, None], first, state.first), torch.where(ok[:, None, None, None], second, state.second)
    )
    return NaturalStep(kept, ok)


def _precision_factor(state: NaturalState) -> Cholesky:
    return safe_cholesky(-2 * state.second, jitter=0.0)
