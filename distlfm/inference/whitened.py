"""Marginals whose force is a sum of columns times whitened numbers w: what they compare is linear in w.

w is standard normal a priori and Gaussian given the data, so that everything that is linear in it follows in closed
form. Shapes: `A` rows of unknowns, `T` values compared, `R` whitened numbers, `Q` query points.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.gaussian import log_normal
from distlfm.inference.marginal import Marginal, Moments
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.mechanisms.priors import Values

ROWS = 8
"""Rows of unknowns that are evaluated at once where no gradient is asked for."""


@dataclass(frozen=True)
class Compared:
    """residual = columns · w + what is left out + noise.

    residual, slack (the most variance left out), noise (its variance), mask: [A, T]; columns: [A, T, R]. apart: [A],
    the log density of data that w has no part in.
    """

    residual: Tensor
    columns: Tensor
    slack: Tensor
    noise: Tensor
    mask: Tensor
    apart: Tensor | None = None

    def scaled(self) -> tuple[Tensor, Tensor]:
        """Columns and residual in units of the noise, zero where nothing was observed."""
        weight = self.mask / self.noise.sqrt()
        return self.columns * weight.unsqueeze(-1), self.residual * weight


@dataclass(frozen=True)
class QueryMap:
    """At query points: outputs = offset [A, Q] + columns [A, Q, R] · w, with slack [A, Q]; force = force [A, Q, R] · w,

    with the variance left [A, Q]. Without columns outputs do not depend on w.
    """

    offset: Tensor
    columns: Tensor | None
    slack: Tensor
    force: Tensor
    left: Tensor


@dataclass(frozen=True)
class Whitened:
    """Posterior of w: mean [A, R] and the factor [A, R, R] of its precision."""

    mean: Tensor
    factor: Tensor


class WhitenedMarginal(Marginal):
    """The marginal likelihood is the collapsed bound: what the columns leave open costs ½ slack / noise."""

    further = 0

    @abstractmethod
    def compared(self, values: Values, rows: Tensor) -> Compared:
        """What the instances `rows` [A] compare at `values`."""

    @abstractmethod
    def query_map(self, values: Values, rows: Tensor, query: Tensor) -> QueryMap:
        """Outputs and force at query points [A, Q, 1 + d]."""

    @abstractmethod
    def left_over(
        self, values: Values, rows: Tensor, query: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """A draw of what no column of w can give: of the force [A, Q], and of the outputs [A, Q] that it drives."""

    def log_marginal(self, z: Tensor, rows: Tensor) -> Tensor:
        # Few rows at a time stay in the processor's caches: many take half as long again each.
        if len(rows) > ROWS and not torch.is_grad_enabled():
            parts = zip(z.split(ROWS), rows.split(ROWS), strict=True)
            return torch.cat([self._log_marginal(*part) for part in parts])
        return self._log_marginal(z, rows)

    def _log_marginal(self, z: Tensor, rows: Tensor) -> Tensor:
        found = self.compared(self.model.space.unpack(z), rows)
        mask = found.mask
        bound = log_low_rank(*found.scaled()) - 0.5 * torch.where(mask, found.noise.log(), 0.0).sum(-1)
        lost = 0.5 * torch.where(mask, found.slack / found.noise, 0.0).sum(-1)
        bound = bound - lost - 0.5 * mask.sum(-1) * math.log(2 * math.pi)
        return bound if found.apart is None else bound + found.apart

    def lost_share(self, z: Tensor, rows: Tensor) -> Tensor:
        """How much variance the inducing points leave open at most, relative to the noise, at the worst point [A]."""
        found = self.compared(self.model.space.unpack(z), rows)
        return torch.where(found.mask, found.slack / found.noise, 0.0).amax(-1)

    def whitened(self, z: Tensor, rows: Tensor) -> Whitened:
        """The posterior of w given z [A, n]."""
        return _posterior(self.compared(self.model.space.unpack(z), rows))

    def posterior(self, z: Tensor, rows: Tensor, query: Tensor) -> Moments:
        values = self.model.space.unpack(z)
        mapped, w = self.query_map(values, rows, query), self.whitened(z, rows)
        identity = torch.eye(w.factor.shape[-1], dtype=w.factor.dtype).expand_as(w.factor)
        whitening = torch.linalg.solve_triangular(w.factor, identity, upper=False)

        def moments(linear: Tensor) -> tuple[Tensor, Tensor]:
            return (linear @ w.mean.unsqueeze(-1)).squeeze(-1), (linear @ whitening.mT).square().sum(-1)

        outputs, variance = mapped.offset, mapped.slack
        if mapped.columns is not None:
            mean, spread = moments(mapped.columns)
            outputs, variance = outputs + mean, variance + spread
        force_mean, force_var = moments(mapped.force)
        return Moments(
            force_mean.unsqueeze(1), (force_var + mapped.left).unsqueeze(1), outputs.unsqueeze(1), variance.unsqueeze(1)
        )

    def draw(self, z: Tensor, rows: Tensor, query: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One joint draw at query points [A, Q, 1 + d]: force [A, 1, Q] and outputs [A, 1, Q]."""
        values = self.model.space.unpack(z)
        mapped, w = self.query_map(values, rows, query), self.whitened(z, rows)
        noise = torch.randn(*w.mean.shape, 1, generator=generator, dtype=torch.float64)
        drawn = w.mean.unsqueeze(-1) + torch.linalg.solve_triangular(w.factor.mT, noise, upper=True)
        force, outputs = self.left_over(values, rows, query, generator)
        force, outputs = force + (mapped.force @ drawn).squeeze(-1), outputs + mapped.offset
        if mapped.columns is not None:
            outputs = outputs + (mapped.columns @ drawn).squeeze(-1)
        return force.unsqueeze(1), outputs.unsqueeze(1)


def noise_of(model: Model, values: Values, data: Observations) -> Tensor:
    """Noise variance of each point [A, T] of a field; one where nothing was observed."""
    noise = model.noise_variance(values, data)[:, 0]
    return torch.where(data.mask[:, 0], noise, torch.ones_like(noise))


def _posterior(found: Compared) -> Whitened:
    columns, residual = found.scaled()
    precision = columns.mT @ columns + torch.eye(columns.shape[-1], dtype=columns.dtype)
    factor, _ = safe_cholesky(precision)
    mean = torch.cholesky_solve((columns.mT @ residual.unsqueeze(-1)), factor).squeeze(-1)
    return Whitened(mean, factor)


def log_low_rank(columns: Tensor, residual: Tensor) -> Tensor:
    """log N(residual | 0, I + columns columnsᵀ) without its constant, by the smaller of the two matrices.

    columns: [A, T, R], residual: [A, T]; −∞ where it cannot be computed.
    """
    count, size = columns.shape[-2:]
    if size >= count:
        covariance = columns @ columns.mT + torch.eye(count, dtype=columns.dtype)
        return log_normal(covariance, residual)
    precision = columns.mT @ columns + torch.eye(size, dtype=columns.dtype)
    projected = (columns.mT @ residual.unsqueeze(-1)).squeeze(-1)
    factor, ok = safe_cholesky(precision)
    half = torch.linalg.solve_triangular(factor, projected.unsqueeze(-1), upper=False).squeeze(-1)
    volume = torch.log(torch.diagonal(factor, dim1=-2, dim2=-1)).sum(-1)
    density = 0.5 * (half.square().sum(-1) - residual.square().sum(-1)) - volume
    return torch.where(ok & torch.isfinite(density), density, -torch.inf)
