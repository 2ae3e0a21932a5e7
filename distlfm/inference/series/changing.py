"""The joint prior of force and outputs of a linear mechanism whose coefficients change in time.

As in `linear`, by the quadrature of `solvers.changing`, with panels that end where coefficients jump too. How fine they
are cut is found by halving, judged by the outputs' prior deviations and by the curve while no force acts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from distlfm.inference.marginal import GaussianMarginal, Moments
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.series.linear import (
    MAX_NODES,
    MAX_SUBSTEPS,
    TOLERANCE,
    TRIAL_DRAWS,
    LinearGaussian,
    Quadrature,
    breaks_beyond,
)
from distlfm.mechanisms.priors import Values
from distlfm.solvers.changing import changing_response, jumps
from distlfm.solvers.linear import Linearity, Panels, panels


class ChangingGaussian(LinearGaussian):
    """Outputs are sums over quadrature nodes of the force, whose weights follow the coefficients through time."""

    def __init__(self, model: Model, observations: Observations, linearity: Linearity, quadrature: Quadrature) -> None:
        assert linearity.changing
        GaussianMarginal.__init__(self, model, observations)
        self.linearity, self.quadrature = linearity, quadrature

    def observed_prior(self, values: Values, times: Tensor) -> tuple[Tensor, Tensor]:
        grid = self._query_grid(times, times[:, :0])
        offset, weight = self._map(values, times, grid)
        return offset, self._between(values, weight, weight, grid)

    def curve(self, z: Tensor, rows: Tensor, force: Callable[[Tensor], Tensor]) -> Tensor:
        """Outputs [A, P, T] at the data given z [A, n] for a force that maps times [A, G] to [A, L, G]."""
        times, values = self.observations.times[rows], self.model.space.unpack(z)
        grid = self._query_grid(times, times[:, :0])
        offset, weight = changing_response(self.model.mechanism, values, times, grid)
        return offset + torch.einsum("alptg,alg->apt", weight, force(grid.nodes))

    def posterior(self, z: Tensor, rows: Tensor, query: Tensor) -> Moments:
        return GaussianMarginal.posterior(self, z, rows, query)

    def _query_grid(self, times: Tensor, query: Tensor) -> Panels:
        asked = torch.cat([times, query], -1)
        if query.shape[-1]:
            asked = torch.cat([asked, breaks_beyond(times, query)], -1)
        jumping = torch.tensor(self.quadrature.breaks, dtype=times.dtype).expand(len(times), -1)
        # Panels outside of the times are empty.
        jumping = torch.minimum(torch.maximum(jumping, times[:, :1]), asked.amax(-1, keepdim=True))
        breaks, parts = torch.cat([asked, jumping], -1).sort(-1).values, self.quadrature.substeps
        share = torch.arange(parts, dtype=times.dtype) / parts
        inner = breaks[:, :-1, None] + torch.diff(breaks, dim=-1).unsqueeze(-1) * share
        return panels(torch.cat([inner.flatten(1), breaks[:, -1:]], -1), 1, self.quadrature.order)

    def _map(self, values: Values, times: Tensor, grid: Panels) -> tuple[Tensor, Tensor]:
        offset, weight = changing_response(self.model.mechanism, values, times, grid)
        return offset.flatten(-2), weight.flatten(-3, -2)


@torch.no_grad()
def changing_quadrature(model: Model, observations: Observations, until: float | None) -> Quadrature | None:
    """The coarsest rule for one instance that halving does not change visibly; None where there is none.

    Jumps of the coefficients are looked for as far beyond the last time, or `until`, as that is from the first.
    """
    first, last = float(observations.times[0, 0]), float(observations.times[0, -1])
    last = last if until is None else max(last, until)
    found = jumps(model.mechanism, model.space, first, last + (last - first))
    if found is None:
        return None
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(TRIAL_DRAWS, model.space.num_free, generator=generator, dtype=torch.float64)
    times, values = observations.times.expand(TRIAL_DRAWS, -1), model.space.unpack(z)

    def prior(quadrature: Quadrature) -> tuple[Tensor, Tensor]:
        marginal = ChangingGaussian(model, observations, model.linearity, quadrature)
        mean, covariance = marginal.observed_prior(values, times)
        return mean, torch.diagonal(covariance, dim1=-2, dim2=-1).clamp_min(0).sqrt()

    quadrature = Quadrature(breaks=found)
    size = len(observations.times[0]) + len(found)
    coarse = prior(quadrature)
    while quadrature.substeps < MAX_SUBSTEPS and quadrature.num_nodes(size) <= MAX_NODES:
        finer = replace(quadrature, substeps=2 * quadrature.substeps)
        fine = prior(finer)
        scale = fine[1].amax(-1, keepdim=True).clamp_min(1e-300)
        change = torch.cat([(one - other).abs() for one, other in zip(fine, coarse, strict=True)], -1) / scale
        if float(change.amax(-1).median()) <= TOLERANCE:
            return quadrature
        quadrature, coarse = finer, fine
    return None
