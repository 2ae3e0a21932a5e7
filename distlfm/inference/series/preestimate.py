"""Pre-estimation: match the slopes of curves through the data with the vector field, without solving the equation.

Curve and slope come from splines or Gaussian processes (`interpolant.py`); the unknowns w = (z, v) of `Forward` are
then those for which ẏ(t) ≈ h(t, y(t), f(t); Φ). It is a quick fit of its own, and the start of one through the solver.
Shapes: `B` instances, `A` of them, `P` outputs, `Q` matching points, `W` unknowns.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.inference.base import Fit
from distlfm.inference.collapsed import ONE_START, START_SPREAD, Starts, best_of_starts
from distlfm.inference.method import register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.optimise import OptimiserConfig
from distlfm.inference.posterior import PosteriorConfig, infer
from distlfm.inference.series.forward import Forward, SolvedMethod, SolvedPosterior
from distlfm.inference.series.interpolant import Interpolated, Smoothness, by_processes, by_splines
from distlfm.runtime.reporting import during

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

ACCURACY = 0.05
"""Error of a curve that its noise does not explain, as a part of the size of its slopes, or of its values."""

START = OptimiserConfig(iterations=40, rounds=1, gradient=1e-2, change=1e-4, distance=0.3)
"""A start need not be exact."""


class PreestimateConfig(Config):
    """enabled: whether a fit through the solver, or one of a nonlinear field, starts from here.

    interpolant: `spline`, natural and cubic, or `gp`, for noisy data; `smoothness` is the latter's kernel.
    points: even times at which slopes are matched; by default the observed times and the middles between them.
    draws, features: of the quick mode's answer, as those of the variational fit.
    All but `enabled` are of curves in time: a field has a surface, always of a Gaussian process.
    """

    enabled: bool = True
    interpolant: Literal["spline", "gp"] = "spline"
    smoothness: Smoothness = "matern52"
    points: int | None = Field(default=None, ge=2)
    draws: int = Field(default=128, ge=1)
    features: int = Field(default=64, ge=1)


def matched_start(
    forward: Forward, seeds: Sequence[int], options: PreestimateConfig, starts: Starts = ONE_START
) -> Tensor | None:
    """Where a search through the solver begins: [B, W], the best match, or the prior's middle where that explains the
    data better; None if the mechanism has states that are not observed.
    """
    if not all_observed(forward.model):
        return None
    with during("matching slopes"):
        matching = Matching(forward, options)
        best = best_of_starts(matching.objective, seeds, forward.size, START, starts)
    rows = torch.arange(len(best.z))
    middle = torch.zeros_like(best.z)
    if forward.model.likelihood.learns_noise:
        place = forward.model.space.slice_of("noise")
        middle[:, place] = best.z[:, place]
    with torch.no_grad():
        reached, without = forward.log_likelihood(torch.stack([best.z, middle]), rows)
    gain = reached - without - 0.5 * (best.z.square() - middle.square()).sum(-1)
    return torch.where((gain > 0).unsqueeze(-1), best.z, middle)


def first_guess(forward: Forward, seeds: Sequence[int], options: PreestimateConfig, random: bool) -> Tensor:
    """[B, W]: the match where all states are observed, else the prior's middle, or a random place around it."""
    if options.enabled:
        match = matched_start(forward, seeds, options, Starts(random=random))
        if match is not None:
            return match
    if not random:
        return torch.zeros(len(seeds), forward.size, dtype=torch.float64)
    streams = [torch.Generator().manual_seed(seed) for seed in seeds]
    return START_SPREAD * torch.stack(
        [torch.randn(forward.size, generator=one, dtype=torch.float64) for one in streams]
    )


def fit_preestimate(
    forward: Forward,
    seeds: Sequence[int],
    optimiser: OptimiserConfig,
    options: PreestimateConfig,
    starts: Starts = ONE_START,
) -> Fit:
    """Quick mode for B instances. Its bound is the log density of the slopes at the match: not one of the data."""
    if not all_observed(forward.model):
        mechanism = forward.model.mechanism
        raise UsageError(
            f"Pre-estimation needs every state to be observed, and {mechanism.options.kind!r} has hidden ones "
            f"({mechanism.num_states} states, {len(mechanism.outputs)} observed).",
            "Use inference.method=auto, which solves the equation.",
        )
    matching = Matching(forward, options)
    best = best_of_starts(matching.objective, seeds, forward.size, optimiser, starts)
    found = infer(matching.objective, best.z, seeds, PosteriorConfig(method="laplace", draws=options.draws))
    return Fit(
        posterior=SolvedPosterior("preestimate", forward, found.draws, seeds, options.features),
        bound=-best.value,
        status=best.status,
        iterations=best.iterations,
        effective=found.effective,
        trace=-best.trace,
    )


def all_observed(model: Model) -> bool:
    """Whether the outputs are the states themselves: found out by observing some."""
    mechanism = model.mechanism
    if mechanism.num_states != len(mechanism.outputs):
        return False
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(3, model.space.num_free, generator=generator, dtype=torch.float64)
    y = torch.rand(3, mechanism.num_states, generator=generator, dtype=torch.float64)
    return torch.equal(mechanism.observe(y, model.space.unpack(z)), y)


class Matching:
    """How badly slopes and vector field agree, as a function of w; smooth, cheap, and without a solver."""

    def __init__(self, forward: Forward, options: PreestimateConfig) -> None:
        self.forward = forward
        data = forward.observations
        self.points, counted = matching_points(data, options.points)
        known = data.variance if forward.model.likelihood.takes_variances else None
        if options.interpolant == "gp":
            curves = by_processes(data, self.points, known, options.smoothness)
        else:
            curves = by_splines(data, self.points, known)
        self.y, self.slope = curves.value.mT, curves.slope
        used = curves.within & counted.unsqueeze(-2)
        slope_size, value_size = _sizes(curves, used, data)
        self.scale = (curves.slope_sd.square() + (ACCURACY * slope_size.unsqueeze(-1)).square()).sqrt()
        # Points between the data know nothing that the data do not: together they weigh as much as the data.
        share = data.mask.sum(-1) / used.sum(-1).clamp_min(1)
        self.weight = torch.where(used, share.clamp_max(1).unsqueeze(-1), 0.0)
        self.first, self.first_used = curves.value[..., 0], curves.within[..., 0]
        self.first_scale = (curves.value_sd[..., 0].square() + (ACCURACY * value_size).square()).sqrt()
        self.noise, self.freedom = _noise_knowledge(forward.model, curves.noise, value_size, data)

    def objective(self, w: Tensor, rows: Tensor) -> Tensor:
        """Minus the log density of slopes, start and noise and of the prior, [A], at w [A, W]."""
        mechanism = self.forward.model.mechanism
        values, draw = self.forward.forces(w, rows)
        t, y = self.points[rows], self.y[rows]
        f = draw(mechanism.force_input(t, y))[0].mT
        rate = mechanism.vector_field(t, y, f, {name: value.unsqueeze(-2) for name, value in values.items()})
        slopes = self.weight[rows] * _surprise(self.slope[rows], rate.expand_as(y).mT, self.scale[rows])
        begin = _surprise(self.first[rows], mechanism.initial_state(values), self.first_scale[rows])
        total = slopes.sum((-2, -1)) + torch.where(self.first_used[rows], begin, 0.0).sum(-1)
        if self.freedom is not None:
            ratio = self.noise[rows] / values["noise"]
            total = total + (self.freedom[rows] * (0.5 * ratio.square() - ratio.log())).sum(-1)
        return total + 0.5 * w.square().sum(-1)


def matching_points(data: Observations, count: int | None) -> tuple[Tensor, Tensor]:
    """Times [B, Q] in order, the first observed one in front, and [B, Q] whether each counts (padding does not)."""
    times = data.times
    if count is not None:
        first, last = times[:, :1], times[:, -1:]
        even = first + (last - first) * torch.linspace(0, 1, count, dtype=times.dtype)
        return even, torch.ones_like(even, dtype=torch.bool)
    middles = 0.5 * (times[:, :-1] + times[:, 1:])
    points = torch.cat([torch.stack([times[:, :-1], middles], -1).flatten(-2), times[:, -1:]], -1)
    new = torch.ones_like(points, dtype=torch.bool)
    new[:, 1:] = points[:, 1:] > points[:, :-1]
    return points, new


def _surprise(seen: Tensor, expected: Tensor, scale: Tensor) -> Tensor:
    """Minus the logarithm of a normal density."""
    return 0.5 * ((seen - expected) / scale).square() + scale.log() + 0.5 * math.log(2 * math.pi)


def _sizes(curves: Interpolated, used: Tensor, data: Observations) -> tuple[Tensor, Tensor]:
    """Typical size of slopes and of values, both [B, P] and positive."""

    def mean_square(x: Tensor, where: Tensor) -> Tensor:
        return torch.where(where, x.square(), 0.0).sum(-1) / where.sum(-1).clamp_min(1)

    span = (data.times[:, -1:] - data.times[:, :1]).clamp_min(torch.finfo(data.times.dtype).tiny)
    value = mean_square(data.values, data.mask).sqrt()
    value = torch.where(value > 0, value, torch.ones_like(value))
    return torch.maximum(mean_square(curves.slope, used).sqrt(), value / span), value


def _noise_knowledge(
    model: Model, noise: Tensor, value_size: Tensor, data: Observations
) -> tuple[Tensor, Tensor | None]:
    """Noise [B, P] that the curves found, and how many values each such figure is worth; None if none is learned."""
    if not model.likelihood.learns_noise:
        return noise, None
    worth = 0.5 * (data.mask.sum(-1) - 2).clamp_min(0)
    found = torch.maximum(noise, 1e-6 * value_size).nan_to_num(1.0)
    return found, torch.where(noise.isnan(), 0.0, worth)


@register_method("preestimate")
class Preestimate(SolvedMethod):
    """By matched slopes, without solving the equation."""

    def infer(self, model: Model, observations: Observations, options: InferenceConfig, seeds: Sequence[int]) -> Fit:
        forward = self.forward(model, observations, options)
        starts = Starts(options.restarts, options.random_start)
        return fit_preestimate(forward, seeds, options.optimiser, options.preestimate, starts)
