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

LONGEST = 1.5
"""The longest lengthscale that circles are made for, in spans."""

HELD, ATTEMPTS = 1.5, 4
"""Deviations on both sides of the mode that a circle has to hold, and how many circles are tried."""

SHORTEST, IN_GAPS = 20.0, 2.0
"""The shortest one is at least this part of the span, or of a gap between observations where that is less."""

CUT_OFF, RARELY = 1.5, 0.05
"""How much shorter a lengthscale may be than the shortest one that waves are made for until a hundredth of the force's
variance is lost, and the share of draws of which that may be so."""

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
            density, modes = _circled(density, modes)
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
        return FreeWaves.suited(model, first, last)
    middle = torch.zeros(len(first), model.space.num_free, dtype=torch.float64)
    low, high = lengthscales(model, middle, torch.full_like(middle, PRIOR_WINDOW))
    low = torch.minimum(torch.maximum(low, span / 10), span)
    return Circle.around(model, first, last, low, torch.maximum(torch.minimum(high, span / 2), low))


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


def _circled(density: Density, modes: Modes) -> tuple[Density, Modes]:
    """Circles made for the lengthscales at the best modes, and the modes there, which may ask for others again."""
    model, rows = density.model, torch.arange(len(density.data))
    first, last = density.data.times[:, 0], density.data.times[:, -1]
    low, high = torch.full_like(first, torch.inf), torch.zeros_like(first)
    for _ in range(ATTEMPTS):
        best = modes.evidence.argmax(0)
        z = modes.w[best, rows, : density.num_free].clamp(-3, 3)
        spread = modes.root[best, rows, : density.num_free].square().sum(-1).sqrt().clamp(LEAST_WINDOW, 1.0)
        inner, outer = _window(density, z, HELD * spread), _window(density, z, WINDOW * spread)
        other = torch.nonzero((inner[0] < low) | (inner[1] > high)).squeeze(-1)
        if len(other) == 0:
            break
        # Circles only grow, so that they do not change to and fro; those of the others stay, as do their modes.
        low[other], high[other] = torch.minimum(low, outer[0])[other], torch.maximum(high, outer[1])[other]
        finer = replace(density, waves=Circle.around(model, first, last, low, high))
        w = _carried(density.rows(other), finer.rows(other), modes.w[:, other])
        modes = modes.resized(density.num_free, 2 * len(model.kernels), finer.size)
        density = finer
        modes.put(other, climb(density.rows(other), w, FINE))
    return density, modes


def _window(density: Density, z: Tensor, around: Tensor) -> tuple[Tensor, Tensor]:
    """The shortest and the longest lengthscale [B] between z − around and z + around [B, n], as far as data tell."""
    data = density.data
    span, count = data.times[:, -1] - data.times[:, 0], data.mask.any(-2).sum(-1)
    low, high = lengthscales(density.model, z, around)
    low = torch.minimum(torch.maximum(low, span / (IN_GAPS * (count - 1)).clamp_min(SHORTEST)), LONGEST * span)
    return low, torch.maximum(torch.minimum(high, LONGEST * span), low)


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
            modes.put(coarse, finer)
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
    z = sampled.draws[..., : density.num_free]
    drawn, held = lengthscales(density.model, z, torch.zeros_like(z))[0], density.waves.shortest
    rough = (drawn * CUT_OFF < held).double().mean(0)
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
        if float(rough[b]) > RARELY:
            words.append(
                f"The force may be rougher than its waves show: {float(rough[b]):.0%} of the draws have a lengthscale "
                f"below {float(held[b]) / CUT_OFF:.2g}. Narrow its prior, or set inference.method=nested."
            )
        found.append(" ".join(words))
    return tuple(found)
