"""Whether the curve of a closed form is the one that its equation has: proven, or compared with a solver's.

An equation that does not read the time is looked at again at all times of a fit. One whose coefficients change is run
once more with the force that was inferred, by steps that know nothing of where coefficients jump.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from distlfm.inference.collapsed import CollapsedPosterior
from distlfm.inference.result import FitResult
from distlfm.inference.series.changing import ChangingGaussian
from distlfm.mechanisms.priors import Values
from distlfm.solvers.linear import extract, is_affine
from distlfm.solvers.ode import CLASSICAL, march

STEPS, FORCE_TIMES = 512, 257
"""Steps of the coarser of two runs, and times at which the force between them is taken from the fit."""

LOOKED_AT = 4
"""Draws of the unknowns at which an equation that does not read the time is looked at."""


@torch.no_grad()
def solver_gap(result: FitResult) -> float:
    """How far the curve of a closed form is from its equation's own, at the worst datum, in deviations of the noise.

    Nothing where the equation is found linear with the same coefficients at all times of the data and of the grid;
    infinite where it is not, though it was taken for that. What halving the steps changes is not counted.
    """
    posterior = result.posterior
    if not isinstance(posterior, CollapsedPosterior) or posterior.model.is_field:
        return 0.0
    if posterior.model.linearity.changing:
        return _apart(posterior, result)
    mechanism, space = posterior.model.mechanism, posterior.model.space
    times = torch.from_numpy(np.union1d(result.instance.times, result.grid.times))
    values = {name: one.unsqueeze(1) for name, one in space.unpack(posterior.draws[:LOOKED_AT, result.row]).items()}
    stream = torch.Generator().manual_seed(0)
    t = times.expand(min(LOOKED_AT, len(posterior.draws)), -1)
    y, f = (
        torch.randn(*t.shape, size, generator=stream, dtype=torch.float64)
        for size in (mechanism.num_states, len(mechanism.force_names))
    )
    return 0.0 if is_affine(mechanism, values, t, y, f, extract(mechanism, values)) else float("inf")


def _apart(posterior: CollapsedPosterior, result: FitResult) -> float:
    """Of one draw of the unknowns and the mean force that goes with it."""
    model, row, marginal = posterior.model, torch.tensor([result.row]), posterior.marginal
    assert isinstance(marginal, ChangingGaussian)
    z, observed = posterior.draws[:1, result.row], torch.from_numpy(result.instance.times)
    even = torch.linspace(float(observed[0]), float(observed[-1]), FORCE_TIMES, dtype=torch.float64)
    mean = marginal.posterior(z, row, even.unsqueeze(0)).force_mean[0]
    force = CubicSpline(even.numpy(), mean.numpy(), axis=1)
    closed = marginal.curve(z, row, lambda t: torch.from_numpy(force(t[0].numpy())).unsqueeze(0))[0, :, : len(observed)]
    values = model.space.unpack(z)
    coarse, fine = (_run(posterior, values, force, observed, steps) for steps in (STEPS, 2 * STEPS))
    data = posterior.observations.rows(row)
    noise = model.noise_variance(values, data)[0, :, : len(observed)].sqrt()
    off = ((closed - fine).abs() - (fine - coarse).abs()) / noise.clamp_min(1e-300)
    return float(off.clamp_min(0).nan_to_num(torch.inf).amax())


def _run(posterior: CollapsedPosterior, values: Values, force: CubicSpline, observed: Tensor, steps: int) -> Tensor:
    """Outputs [P, T] at the observed times."""
    mechanism = posterior.model.mechanism
    first, span = observed[0], observed[-1] - observed[0]
    table = torch.from_numpy(force((first + span * torch.linspace(0, 1, 2 * steps + 1, dtype=torch.float64)).numpy()))

    def slope(tau: float, y: Tensor) -> Tensor:
        now = table[:, round(2 * steps * tau)].unsqueeze(0)
        return span * mechanism.vector_field((first + span * tau).unsqueeze(0), y, now, values)

    states = march(slope, mechanism.initial_state(values), steps, CLASSICAL)[0]
    grid = (first + span * torch.linspace(0, 1, steps + 1, dtype=torch.float64)).numpy()
    at = torch.from_numpy(CubicSpline(grid, states.numpy(), axis=0)(observed.numpy()))
    return mechanism.observe(at, {name: value.expand(len(at), -1) for name, value in values.items()}).T
