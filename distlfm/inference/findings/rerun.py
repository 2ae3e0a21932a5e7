"""Whether the curve of a closed form is the one that its equation has, where coefficients change.

The equation is run once more with the force that was inferred, by a solver that finds jumps of coefficients by itself.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicSpline
from torch import Tensor

from distlfm.inference.collapsed import CollapsedPosterior
from distlfm.inference.result import FitResult
from distlfm.inference.series.changing import ChangingGaussian
from distlfm.instance import FloatArray
from distlfm.mechanisms.priors import Values

STEPS, FORCE_TIMES = 512, 257
"""Steps of the solver at least, and times at which the force between them is taken from the fit."""

EXACT = 1e-8, 1e-4
"""Tolerances of its steps: relative, and in deviations of the noise."""


@torch.no_grad()
def solver_gap(result: FitResult) -> float:
    """How far the curve of a closed form is from its equation's own, at the worst datum, in deviations of the noise.

    Zero where coefficients do not change.
    """
    posterior = result.posterior
    if not isinstance(posterior, CollapsedPosterior) or not posterior.model.linearity.changing:
        return 0.0
    return _apart(posterior, result)


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
    noise = model.noise_variance(values, posterior.observations.rows(row))[0, :, : len(observed)].sqrt()
    solved = _solved(posterior, values, force, observed, EXACT[1] * float(noise.min()))
    off = (closed - solved).abs() / noise.clamp_min(1e-300)
    return float(off.nan_to_num(torch.inf).amax())


def _solved(
    posterior: CollapsedPosterior, values: Values, force: CubicSpline, observed: Tensor, least: float
) -> Tensor:
    """Outputs [P, T] at the observed times; NaN after one that the solver does not reach."""
    mechanism, times = posterior.model.mechanism, observed.numpy()

    def slope(t: float, y: FloatArray) -> FloatArray:
        now, state = torch.from_numpy(force(t)).unsqueeze(0), torch.from_numpy(y).unsqueeze(0)
        rate = mechanism.vector_field(observed.new_tensor([t]), state, now, values)[0]
        return np.asarray(rate.expand(len(y)).numpy())

    start, span = mechanism.initial_state(values)[0].numpy(), (times[0], times[-1])
    longest = (times[-1] - times[0]) / STEPS
    found = solve_ivp(slope, span, start, "LSODA", times, max_step=longest, rtol=EXACT[0], atol=max(least, 1e-300))
    at = torch.full((len(times), len(start)), torch.nan, dtype=torch.float64)
    at[: len(found.t)] = torch.from_numpy(found.y).mT
    return mechanism.observe(at, {name: value.expand(len(at), -1) for name, value in values.items()}).mT
