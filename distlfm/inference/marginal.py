"""Linear mechanisms: given the unknowns z, outputs and force are jointly Gaussian, and the force is integrated out.

A way of computing the joint prior covariance is a subclass; the marginal likelihood of z and the posterior of force and
outputs given z follow from it here, without sampling noise and without inducing points.

Shapes: `B` instances, `N = P·T` observations, `L` forces, `Q` query times.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.gaussian import log_normal
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.mechanisms.priors import Values

CACHED = 8_000_000
"""Bytes of the largest matrices of one call: what outgrows the cache is four times slower, and is mapped anew."""


@dataclass(frozen=True)
class QueryPrior:
    """The prior at query times, and its covariance with the outputs at the observed times.

    offset: [B, P·Q], cross: [B, P·Q, N], variance: [B, P·Q] of the outputs;
    force_cross: [B, L, Q, N], force_variance: [B, L, Q] of the force.
    """

    offset: Tensor
    cross: Tensor
    variance: Tensor
    force_cross: Tensor
    force_variance: Tensor


@dataclass(frozen=True)
class Moments:
    """Posterior at query times given z. force_mean, force_var: [B, L, Q]; output_mean, output_var: [B, P, Q]."""

    force_mean: Tensor
    force_var: Tensor
    output_mean: Tensor
    output_var: Tensor


class Marginal(ABC):
    """What is left when the force is integrated out: a density of z, and force and outputs given z.

    at_once: whether many query times cost less together than in parts.
    call_bytes: how much memory one call of `posterior` should take, about.
    further: stages of importance sampling that instances may take beyond those of the options.
    """

    at_once = False
    draws_together = False
    call_bytes = 200_000_000
    further = 3

    def __init__(self, model: Model, observations: Observations) -> None:
        self.model, self.observations = model, observations

    @abstractmethod
    def log_marginal(self, z: Tensor, rows: Tensor) -> Tensor:
        """log p(y | z) of the instances `rows` [A] at z [A, n]; −∞ where it cannot be computed."""

    @abstractmethod
    def posterior(self, z: Tensor, rows: Tensor, query: Tensor) -> Moments:
        """Force and outputs at times `query` [A, Q] (sorted, none before the first observation) given z [A, n]."""

    @abstractmethod
    def draw(self, z: Tensor, rows: Tensor, query: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One joint draw for each z [A, n] at times `query` [A, Q]: forces [A, L, Q] and outputs [A, P, Q]."""

    @abstractmethod
    def row_bytes(self, num_query: int) -> int:
        """About how much memory `posterior` takes for one instance at `num_query` times."""

    @property
    def rows_at_once(self) -> int | None:
        """Rows of z whose densities are best computed in one call; None if all of them are."""
        return None

    def innovations(self, z: Tensor, rows: Tensor) -> Tensor | None:
        """What each datum adds to those before it, in its deviations, [A, P, T]: white noise if the model is right.

        None where it is not computed, which no marginal may do that takes a drift.
        """
        del z, rows
        return None

    def state(self) -> dict[str, Tensor]:
        """Tensors with a leading instance dimension that a saved fit needs besides the data."""
        return {}

    def log_joint(self, z: Tensor, rows: Tensor) -> Tensor:
        """log p(y | z) + log p(z) of the instances `rows` [A] at z [A, n], up to a constant."""
        size = self.rows_at_once or max(1, len(z))
        parts = [self.log_marginal(some, own) for some, own in zip(z.split(size), rows.split(size), strict=True)]
        return torch.cat(parts) - 0.5 * z.square().sum(-1)

    def negative(self, z: Tensor, rows: Tensor) -> Tensor:
        """Minus `log_joint`, which searches minimise."""
        return -self.log_joint(z, rows)


class GaussianMarginal(Marginal):
    """The marginal likelihood and the posterior of a linear mechanism, by dense covariance matrices."""

    call_bytes = 4 * CACHED

    @property
    def matrix_size(self) -> int:
        """Rows of the largest matrix of an instance."""
        return len(self.model.mechanism.outputs) * self.observations.times.shape[-1]

    @property
    def rows_at_once(self) -> int:
        return max(1, CACHED // (8 * self.matrix_size**2))

    def row_bytes(self, num_query: int) -> int:
        return 32 * (4 * (num_query + self.observations.times.shape[-1])) ** 2

    @abstractmethod
    def observed_prior(self, values: Values, times: Tensor) -> tuple[Tensor, Tensor]:
        """Mean [B, N] and covariance [B, N, N] of the outputs at times [B, T], without noise."""

    @abstractmethod
    def query_prior(self, values: Values, times: Tensor, query: Tensor) -> tuple[tuple[Tensor, Tensor], QueryPrior]:
        """`observed_prior` at times [B, T], and the prior at query times [B, Q]."""

    def log_marginal(self, z: Tensor, rows: Tensor) -> Tensor:
        data = self.observations.rows(rows)
        values = self.model.space.unpack(z)
        covariance, residual = self._noisy(values, data, *self.observed_prior(values, data.times))
        return log_normal(covariance, residual) - 0.5 * data.mask.flatten(-2).sum(-1) * math.log(2 * math.pi)

    def posterior(self, z: Tensor, rows: Tensor, query: Tensor) -> Moments:
        data = self.observations.rows(rows)
        values = self.model.space.unpack(z)
        observed, prior = self.query_prior(values, data.times, query)
        covariance, residual = self._noisy(values, data, *observed)
        factor, _ = safe_cholesky(covariance)
        solved = torch.cholesky_solve(residual.unsqueeze(-1), factor)
        mask = data.mask.flatten(-2).unsqueeze(-2)

        def condition(cross: Tensor, variance: Tensor) -> tuple[Tensor, Tensor]:
            explained = torch.linalg.solve_triangular(factor, (cross * mask).mT, upper=False).square().sum(-2)
            return ((cross * mask) @ solved).squeeze(-1), (variance - explained).clamp_min(0)

        force = [
            condition(prior.force_cross[:, i], prior.force_variance[:, i]) for i in range(prior.force_cross.shape[1])
        ]
        mean, variance = condition(prior.cross, prior.variance)
        shape = (len(rows), len(self.model.mechanism.outputs), query.shape[-1])
        return Moments(
            torch.stack([part[0] for part in force], 1),
            torch.stack([part[1] for part in force], 1),
            (prior.offset + mean).reshape(shape),
            variance.reshape(shape),
        )

    def innovations(self, z: Tensor, rows: Tensor) -> Tensor:
        data = self.observations.rows(rows)
        values = self.model.space.unpack(z)
        covariance, residual = self._noisy(values, data, *self.observed_prior(values, data.times))
        factor, _ = safe_cholesky(covariance)
        white: Tensor = torch.linalg.solve_triangular(factor, residual.unsqueeze(-1), upper=False)
        found: Tensor = white.squeeze(-1).unflatten(-1, data.values.shape[-2:])
        return found

    def _noisy(self, values: Values, data: Observations, offset: Tensor, covariance: Tensor) -> tuple[Tensor, Tensor]:
        """Covariance with noise [B, N, N] and residual [B, N] of what was observed.

        An unobserved value becomes an independent one that equals its mean, so that shapes stay common.
        """
        mask = data.mask.flatten(-2)
        noise = self.model.noise_variance(values, data).flatten(-2)
        residual = data.values.flatten(-2) - offset
        drift = self.model.likelihood.drift_covariance(values, data)
        if drift is not None:
            covariance = covariance + _blocks(drift)
        if not bool(mask.all()):
            covariance = covariance * (mask.unsqueeze(-1) & mask.unsqueeze(-2))
            noise = torch.where(mask, noise, torch.ones_like(noise))
            residual = torch.where(mask, residual, torch.zeros_like(residual))
        return covariance + torch.diag_embed(noise), residual


def _blocks(each: Tensor) -> Tensor:
    """[B, P·T, P·T] with the matrices [B, P, T, T] along its diagonal."""
    size = each.shape[-3]
    return torch.einsum("bpst,pq->bpsqt", each, torch.eye(size, dtype=each.dtype)).reshape(
        len(each), size * each.shape[-2], -1
    )
