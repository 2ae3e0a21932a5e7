"""Linear fields: the marginal likelihood of the unknowns with the force integrated out, and what follows from it.

Shapes: `A` rows of unknowns, `T` observed points, `R` whitened numbers, `Q` query points, `d` space dimensions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.config import Config
from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.field_map import Columns, FieldMap
from distlfm.inference.gaussian import log_normal
from distlfm.inference.marginal import Marginal, Moments
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.mechanisms.parameters import Values
from distlfm.solvers.field.engine import TimeGrid


@dataclass(frozen=True)
class _Whitened:
    """Posterior of w: mean [A, R] and the factor [A, R, R] of its precision."""

    mean: Tensor
    factor: Tensor


class FieldGaussian(Marginal):
    """y = offset + columns · w + noise, so w is Gaussian given the data, and everything else is linear in w.

    The marginal likelihood is the collapsed bound: what the inducing points leave open costs ½ slack / noise.
    """

    def __init__(
        self, model: Model, observations: Observations, field_map: FieldMap, settings: Config | None = None
    ) -> None:
        """settings: what the map was made from, kept with a saved fit."""
        assert observations.positions is not None
        super().__init__(model, observations)
        self.map, self.settings = field_map, settings
        self.places = field_map.places(observations.points)

    def row_bytes(self, num_query: int) -> int:
        times, places = self.map.inducing.counts
        steps, spots = self.map.grid.steps + 1, min(num_query, len(self.map.nodes))
        return 8 * (3 * num_query * times * places + 4 * steps * places * (spots + len(self.map.nodes)))

    def log_marginal(self, z: Tensor, rows: Tensor) -> Tensor:
        values, data = self.model.space.unpack(z), self.observations.rows(rows)
        found = self.map.columns(values, rows, self.places)
        mask, noise = data.mask[:, 0], self._noise(values, data)
        columns, residual = self._scaled(found, data, noise)
        bound = log_low_rank(columns, residual) - 0.5 * torch.where(mask, noise.log(), 0.0).sum(-1)
        lost = 0.5 * torch.where(mask, found.slack / noise, 0.0).sum(-1)
        return bound - lost - 0.5 * mask.sum(-1) * math.log(2 * math.pi)

    def lost_share(self, z: Tensor, rows: Tensor) -> Tensor:
        """How much variance the inducing points leave open at most, relative to the noise, at the worst point [A]."""
        values, data = self.model.space.unpack(z), self.observations.rows(rows)
        found = self.map.columns(values, rows, self.places)
        return torch.where(data.mask[:, 0], found.slack / self._noise(values, data), 0.0).amax(-1)

    def fitted(self, z: Tensor, rows: Tensor) -> Tensor:
        """Outputs at the observed points given z [A, n], [A, T]."""
        values = self.model.space.unpack(z)
        found = self.map.columns(values, rows, self.places)
        return found.offset + (found.columns @ self._whitened(values, rows, found).mean.unsqueeze(-1)).squeeze(-1)

    def posterior(self, z: Tensor, rows: Tensor, query: Tensor) -> Moments:
        _, w, columns, force, left = self._known(z, rows, query)
        identity = torch.eye(w.factor.shape[-1], dtype=w.factor.dtype).expand_as(w.factor)
        whitening = torch.linalg.solve_triangular(w.factor, identity, upper=False)

        def moments(linear: Tensor) -> tuple[Tensor, Tensor]:
            return (linear @ w.mean.unsqueeze(-1)).squeeze(-1), (linear @ whitening.mT).square().sum(-1)

        mean, variance = moments(columns.columns)
        force_mean, force_var = moments(force)
        return Moments(
            force_mean.unsqueeze(1),
            (force_var + left).unsqueeze(1),
            (columns.offset + mean).unsqueeze(1),
            (variance + columns.slack).unsqueeze(1),
        )

    def draw(self, z: Tensor, rows: Tensor, query: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """One joint draw at query points [A, Q, 1 + d]: force [A, 1, Q] and outputs [A, 1, Q]."""
        _, w, columns, force, _ = self._known(z, rows, query)
        noise = torch.randn(*w.mean.shape, 1, generator=generator, dtype=torch.float64)
        drawn = w.mean.unsqueeze(-1) + torch.linalg.solve_triangular(w.factor.mT, noise, upper=True)
        outputs = columns.offset + (columns.columns @ drawn).squeeze(-1)
        return (force @ drawn).squeeze(-1).unsqueeze(1), outputs.unsqueeze(1)

    def _known(self, z: Tensor, rows: Tensor, query: Tensor) -> tuple[Values, _Whitened, Columns, Tensor, Tensor]:
        """Values, posterior of w, and the columns of outputs and force at the query points."""
        values = self.model.space.unpack(z)
        longer = self.map.with_grid(_reaching(self.map.grid, float(query[..., 0].max())))
        shared = len(query) > 1 and bool((query == query[:1]).all())
        places = longer.places(query[:1] if shared else query)
        which = torch.zeros_like(rows) if shared else torch.arange(len(rows))
        columns = longer.columns(values, which, places)
        force, left = longer.force_columns(values, query)
        found = self.map.columns(values, rows, self.places)
        return values, self._whitened(values, rows, found), columns, force, left

    def _whitened(self, values: Values, rows: Tensor, found: Columns) -> _Whitened:
        data = self.observations.rows(rows)
        columns, residual = self._scaled(found, data, self._noise(values, data))
        precision = columns.mT @ columns + torch.eye(columns.shape[-1], dtype=columns.dtype)
        factor, _ = safe_cholesky(precision)
        mean = torch.cholesky_solve((columns.mT @ residual.unsqueeze(-1)), factor).squeeze(-1)
        return _Whitened(mean, factor)

    def _noise(self, values: Values, data: Observations) -> Tensor:
        """Noise variance of each point [A, T]; one where nothing was observed."""
        noise = self.model.noise_variance(values, data)[:, 0]
        return torch.where(data.mask[:, 0], noise, torch.ones_like(noise))

    def _scaled(self, found: Columns, data: Observations, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Columns and residual in units of the noise, zero where nothing was observed."""
        weight = data.mask[:, 0] / noise.sqrt()
        return found.columns * weight.unsqueeze(-1), (data.values[:, 0] - found.offset) * weight


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


def _reaching(grid: TimeGrid, until: float) -> TimeGrid:
    """The grid, longer if need be, so that it reaches `until`."""
    needed = math.ceil((until - grid.start) / grid.dt - 1e-9)
    return grid if needed <= grid.steps else TimeGrid(grid.start, grid.dt, needed)
