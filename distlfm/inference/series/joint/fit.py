"""The fit: circles and modes together, steps short enough for each instance, then chains from the modes found.

Shapes: `K` starts, `B` instances, `n` parameters, `W` unknowns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.base import Fit
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.optimise import Status
from distlfm.inference.series.joint.density import Density
from distlfm.inference.series.joint.grid import Grid
from distlfm.inference.series.joint.modes import Modes, climb
from distlfm.inference.series.joint.posterior import JointPosterior
from distlfm.inference.series.joint.sampler import Sampled, SamplerConfig, Streams, sample
from distlfm.inference.series.joint.waves import Circle, FreeWaves, Waves, lengthscales, on_circle
from distlfm.runtime.reporting import during

STARTS, TRIALS, SPREAD = 3, 24, 0.7
"""Searches of an instance, at least; draws of the prior of which the likeliest start those after the first; and their
deviation in units of the prior's."""

ROUGH, FINE = 14, 30
"""Steps of a search on the prior's circle, and on one made for the mode."""

PRIOR_WINDOW, WINDOW, LEAST_WINDOW = 2.0, 2.5, 0.5
"""Deviations of a lengthscale, on both sides, that circles are made for: of the prior, and of the posterior at the
mode, which counts as at least this share of the prior's."""

SHORTEST, LONGEST, MOST_WAVES = 20.0, 1.5, 64
"""Lengthscales that circles are made for: at least this part of the span, at most so many spans."""

COARSE, MAX_DOUBLINGS = 0.1, 3
"""Largest change of the log likelihood at the mode that halving the steps may bring, and how often they are halved."""

FEW, BARELY = 60.0, 1.5
"""Effective draws below which an answer is not to be trusted, and those of the worst parameter for each chain: chains
that never left where they began give one."""


def fit_joint(
    model: Model,
    data: Observations,
    seeds: Sequence[int],
    options: SamplerConfig,
    restarts: int,
    random: bool,
    steps: int | None,
) -> Fit:
    """Fit B instances. restarts: searches more than usual. steps: of the span, by default as the data ask for."""
    count = len(data)
    grid = Grid.chosen(data) if steps is None else Grid.of(data.times, torch.full((count,), steps))
    density = Density.of(model, data, grid, _first_waves(model, data))
    streams = Streams.seeded([seed + 5 for seed in seeds], density.active)
    with during("modes"):
        modes = climb(density, _starts(density, streams, max(STARTS, restarts), random), ROUGH)
        if isinstance(density.waves, Circle):
            finer = _circle_at(density, modes)
            w = _carried(density, finer, modes.w)
            density = finer
            modes = climb(density, w, FINE)
        density, modes = _short_enough(density, modes, fixed=steps is not None)
    streams.active = density.active
    sampled = sample(density, modes, streams, options)
    posterior = JointPosterior(density, sampled.draws, tuple(seeds))
    best = modes.evidence.max(0)
    lost = ~torch.isfinite(best.values) | (sampled.accepted < 1e-3)
    status = torch.where(lost, int(Status.DIVERGED), int(Status.CONVERGED))
    return Fit(
        posterior=posterior,
        bound=best.values,
        status=status,
        iterations=modes.iterations.gather(0, best.indices[None])[0],
        effective=sampled.effective,
        trace=best.values[None],
        doubts=_doubts(density, modes, sampled, options.chains),
    )


def _first_waves(model: Model, data: Observations) -> Waves:
    first, last = data.times[:, 0], data.times[:, -1]
    span = last - first
    if not on_circle(model):
        return FreeWaves(model, first, span)
    middle = torch.zeros(len(first), model.space.num_free, dtype=torch.float64)
    low, high = lengthscales(model, middle, torch.full_like(middle, PRIOR_WINDOW))
    low = torch.minimum(torch.maximum(low, span / 10), span)
    return Circle.around(model, first, last, low, torch.maximum(torch.minimum(high, span / 2), low), MOST_WAVES)


def _starts(density: Density, streams: Streams, count: int, random: bool) -> Tensor:
    """[K, B, W]: the prior's middle, unless all are random, and the likeliest of some draws of the prior."""
    rows = torch.arange(len(density.data))
    w = SPREAD * streams.normal(rows, TRIALS)
    with torch.no_grad():
        order = density.log_density(w).nan_to_num(-torch.inf).argsort(0, descending=True)
    chosen = w.gather(0, order[:count].unsqueeze(-1).expand(-1, -1, w.shape[-1]))
    if not random:
        chosen = torch.cat([torch.zeros_like(chosen[:1]), chosen[:-1]])
    return chosen


def _circle_at(density: Density, modes: Modes) -> Density:
    """The same with circles made for the lengthscales at the best modes."""
    model, n = density.model, density.num_free
    best = modes.evidence.argmax(0)
    rows = torch.arange(len(best))
    z = modes.w[best, rows, :n].clamp(-3, 3)
    spread = modes.root[best, rows, :n].square().sum(-1).sqrt().clamp(LEAST_WINDOW, 1.0)
    low, high = lengthscales(model, z, WINDOW * spread)
    first, last = density.data.times[:, 0], density.data.times[:, -1]
    span = last - first
    low = torch.minimum(torch.maximum(low, span / SHORTEST), LONGEST * span)
    high = torch.maximum(torch.minimum(high, LONGEST * span), low)
    waves = Circle.around(model, first, last, low, high, MOST_WAVES)
    return Density(model, density.data, density.grid, waves, density.shape)


@torch.no_grad()
def _carried(old: Density, new: Density, w: Tensor) -> Tensor:
    """w [K, B, W'] on the new waves, whose forces are close to those of w [K, B, W] on the old ones."""
    z, amplitudes = old.split(w)
    values = old.model.space.unpack(z)
    times = new.grid.nodes
    force = old.waves.force(values, amplitudes, times)  # [Q, K, B, L]
    columns = new.waves.columns(values, times).permute(1, 2, 3, 0, 4)  # [K, B, L, Q, M]
    size = force.square().mean(0).clamp_min(1e-12)[..., None, None]
    normal = columns.mT @ columns + 1e-3 * size * torch.eye(columns.shape[-1], dtype=w.dtype)
    factor, _ = safe_cholesky(normal)
    found = torch.cholesky_solve(columns.mT @ force.permute(1, 2, 3, 0).unsqueeze(-1), factor).squeeze(-1)
    return torch.cat([z, found.flatten(-2)], -1) * new.active


def _short_enough(density: Density, modes: Modes, *, fixed: bool) -> tuple[Density, Modes]:
    """Shorten the steps of the instances that need it, and go on to their modes with them."""
    for doubling in range(0 if fixed else MAX_DOUBLINGS):
        coarse = torch.nonzero(_change(density, modes) > COARSE).squeeze(-1)
        if len(coarse) == 0:
            break
        with during("shorter solver steps", doubling + 1, MAX_DOUBLINGS):
            steps = density.grid.steps.clone()
            steps[coarse] *= 2
            density = replace(density, grid=Grid.of(density.data.times, steps))
            finer = climb(density.rows(coarse), modes.w[:, coarse], FINE)
            for name in ("w", "root", "evidence", "settled", "iterations"):
                getattr(modes, name)[:, coarse] = getattr(finer, name)
    return density, modes


@torch.no_grad()
def _change(density: Density, modes: Modes) -> Tensor:
    """How much halving the steps changes the log density at the best modes, [B]; infinite where that has no value."""
    best = modes.evidence.argmax(0)
    w = modes.w[best, torch.arange(len(best))][None]
    finer = replace(density, grid=Grid.of(density.data.times, 2 * density.grid.steps))
    return (finer.log_density(w) - density.log_density(w))[0].abs().nan_to_num(torch.inf)


def _doubts(density: Density, modes: Modes, sampled: Sampled, chains: int) -> tuple[str, ...]:
    coarse, found = _change(density, modes), []
    for b in range(len(density.data)):
        words = []
        if float(coarse[b]) > 2 * COARSE:
            words.append(
                f"{int(density.grid.steps[b])} solver steps are too few, and no more were tried: the answer is off by "
                "more than the tolerance. Set inference.variational.solver.steps, or inference.method=nested."
            )
        if float(sampled.effective[b]) < FEW or float(sampled.worst[b]) < BARELY * chains:
            worth = min(float(sampled.effective[b]), float(sampled.worst[b]))
            words.append(
                f"The chains have not mixed: their draws are worth {worth:.0f} independent ones. "
                "Narrow the priors, or raise inference.joint.kept."
            )
        found.append(" ".join(words))
    return tuple(found)
