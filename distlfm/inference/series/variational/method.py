"""Fit through the solver by a variational q of parameters and inducing values, corrected by importance.

A Gaussian of both climbs the ELBO (`ascent.py`), a structured q starts there and is improved (`structured.py`), and
draws of it are weighted against the true density, in stages that adapt. Several starts give several q, mixed by their
evidence.
Shapes: `S` draws, `B` instances, `W` unknowns, `K` starts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from distlfm.config import Config
from distlfm.gp.pathwise import instance_noise
from distlfm.gp.variational import WhitenedGaussian
from distlfm.inference.base import Fit
from distlfm.inference.method import register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.optimise import Status
from distlfm.inference.posterior import Coordinates, PosteriorConfig, infer_from, pareto_shape, systematic
from distlfm.inference.series.forward import (
    MAX_DOUBLINGS,
    Forward,
    SolvedMethod,
    SolvedPosterior,
    doubts_of,
    too_coarse,
)
from distlfm.inference.series.layers import with_forces
from distlfm.inference.series.preestimate import first_guess
from distlfm.inference.series.variational.adam import climb_by_adam
from distlfm.inference.series.variational.ascent import Ascent, Pace, ascend
from distlfm.inference.series.variational.chord import Chord
from distlfm.inference.series.variational.structured import structure
from distlfm.runtime.reporting import during, stepped
from distlfm.solvers.base import SolverConfig

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

WIDER = 1.2
"""Deviations of the first proposals over those of q, whose tails are lighter than the posterior's."""

TWIN = 10.0
"""A start with the sign of a force turned is tried where that loses less than this of the log-likelihood."""

HEAVY, FEW = 1.0, 10
"""Pareto k̂ of the weights, and independent draws, at which an answer is not to be trusted."""

COUNTS = 0.01
"""A start whose share of the evidence is less than this has no say about the weights."""

BOUND_DRAWS = 64
"""Draws of q over which the ELBO is averaged, in pairs of opposite noise."""


class VariationalConfig(Config):
    """num_inducing: points per force, by default from the data; `learn_inducing` moves them too (with `adam`).
    samples: draws an iteration. draws: of the answer, which are weighted in the stages of `inference.posterior`.

    gradient: `natural` with the curvature of Gauss–Newton (iterations 60, window 4, and a learning rate of its own), or
    `adam` on a mean and a Cholesky factor after it (300, 40, 0.03), which `learn_inducing` takes by itself.
    tolerance: q is done when its ELBO, averaged over `window` iterations, gains less than this many standard errors.
    """

    num_inducing: int | None = Field(default=None, ge=2)
    learn_inducing: bool = False
    samples: int = Field(default=8, ge=1)
    iterations: int | None = Field(default=None, ge=0)
    learning_rate: float | None = None
    gradient: Literal["natural", "adam"] | None = None
    window: int | None = Field(default=None, ge=2)
    tolerance: float = 1.0
    features: int = Field(default=128, ge=8)
    draws: int = Field(default=128, ge=2)
    solver: SolverConfig = SolverConfig()

    @property
    def by_adam(self) -> bool:
        """Whether Adam goes on from where natural steps end."""
        return self.learn_inducing if self.gradient is None else self.gradient == "adam"

    @property
    def pace(self) -> Pace:
        """Of natural steps, which go before Adam's too."""
        own = VariationalConfig() if self.by_adam else self
        iterations = 60 if own.iterations is None else own.iterations
        return Pace((self.samples + 1) // 2, iterations, own.window or 4, self.tolerance, own.learning_rate)

    @property
    def adams_pace(self) -> Pace:
        """Of Adam's steps."""
        iterations = 300 if self.iterations is None else self.iterations
        return Pace((self.samples + 1) // 2, iterations, self.window or 40, self.tolerance, self.learning_rate or 0.03)


@dataclass(frozen=True)
class _Part:
    """What one start gives for B instances. w: [S, B, W] of equal weight; mass: [B], log evidence; rest as in `Fit`."""

    w: Tensor
    mode: Tensor
    mass: Tensor
    bound: Tensor
    status: Tensor
    iterations: Tensor
    effective: Tensor
    tail: Tensor
    trace: Tensor


def _fine_enough(
    forward: Forward, climbs: list[Ascent], seeds: Sequence[int], options: VariationalConfig
) -> tuple[Forward, list[Ascent]]:
    """With shorter solver steps where those of a start are too long; q of others stays where it is."""
    for doubling in range(MAX_DOUBLINGS):
        coarse = torch.stack([too_coarse(forward, one.q.mean[:, 0]) for one in climbs])
        if not bool(coarse.any()):
            break
        forward = forward.with_steps(torch.where(coarse.any(0), 2, 1) * forward.steps)
        with during("shorter solver steps", doubling + 1, MAX_DOUBLINGS):
            climbs = [_again(forward, one, rows, seeds, options) for one, rows in zip(climbs, coarse, strict=True)]
    return forward, climbs


def _again(forward: Forward, climb: Ascent, coarse: Tensor, seeds: Sequence[int], options: VariationalConfig) -> Ascent:
    rows = torch.nonzero(coarse).squeeze(-1)
    if len(rows) == 0:
        return climb
    some = [seeds[int(i)] for i in rows]
    found = ascend(forward.of(rows), climb.q.mean[rows, 0], some, options.pace)
    q = WhitenedGaussian(
        climb.q.mean.index_copy(0, rows, found.q.mean), climb.q.scale.index_copy(0, rows, found.q.scale)
    )
    iterations = climb.iterations.index_add(0, rows, found.iterations)
    return Ascent(q, climb.status.index_copy(0, rows, found.status), climb.trace, iterations)


def _twins(
    forward: Forward, climb: Ascent, seeds: Sequence[int], options: VariationalConfig
) -> Iterator[tuple[Tensor, Ascent]]:
    """From q with the sign of a force turned, or of all: the instances [A] for which that is nearly as likely."""
    mean, size = climb.q.mean[:, 0], forward.model.space.num_free
    everyone, num_forces = torch.arange(len(mean)), len(forward.model.kernels)
    turns = [-1 + 2 * (torch.arange(num_forces) != i).to(mean) for i in range(num_forces)]
    if num_forces > 1:
        turns.append(-torch.ones(num_forces).to(mean))
    with torch.no_grad():
        here = forward.log_likelihood(mean[None], everyone)[0]
        for turn in turns:
            sign = torch.cat([torch.ones(size).to(mean), turn.repeat_interleave(forward.num_inducing)])
            there = forward.log_likelihood((sign * mean)[None], everyone)[0]
            rows = torch.nonzero(torch.isfinite(here) & (there > here - TWIN)).squeeze(-1)
            if len(rows):
                some = [seeds[int(i)] for i in rows]
                yield rows, ascend(forward.of(rows), (sign * mean)[rows], some, options.pace)


def _corrected(
    forward: Forward, climb: Ascent, seeds: Sequence[int], options: VariationalConfig, posterior: PosteriorConfig
) -> _Part:
    """Draws by importance, from a structured q that begins at a climb's."""
    found = structure(forward, climb.q.mean[:, 0], climb.q.scale[:, 0], seeds)
    coordinates = Coordinates(forward.model.space)
    wider = WIDER if posterior.method == "importance" else 1.0
    sampled = infer_from(found.corrected, found.z, wider * found.root, seeds, posterior, coordinates)
    stepped("draws of the force")
    z = sampled.draws
    if len(z) < options.draws:  # a point, or no parameters at all
        z = z.expand(options.draws, -1, -1)
    w, weight = with_forces(found, z, seeds)
    # The weights of the force's draws are the other half of those of z, and may be heavy where these are not.
    inner = (weight - torch.logsumexp(weight, 1, keepdim=True)).flatten(0, 1)
    bound = _bound(forward, found, seeds, options.features)
    return _Part(
        w,
        found.w,
        bound if sampled.log_mass is None else sampled.log_mass,
        bound,
        climb.status,
        climb.iterations,
        torch.full_like(bound, options.draws) if sampled.log_mass is None else sampled.effective,
        torch.maximum(sampled.tail, pareto_shape(inner)),
        climb.trace,
    )


@torch.no_grad()
def _bound(forward: Forward, chord: Chord, seeds: Sequence[int], features: int) -> Tensor:
    """The ELBO [B] of the structured q, what the inducing values leave open included."""
    count, size = chord.z.shape
    rows = torch.arange(count)
    half = instance_noise([seed + 1 for seed in seeds], BOUND_DRAWS // 2, forward.size).transpose(0, 1)
    shape = (BOUND_DRAWS // 2, len(forward.model.kernels), 2, features)
    other = instance_noise([seed + 5 for seed in seeds], *shape).transpose(0, 1)
    noise, rest = torch.cat([half, -half]), torch.cat([other, -other])
    x, e = noise[..., :size], noise[..., size:]
    z = chord.z + torch.einsum("bij,sbj->sbi", chord.root, x)
    given = chord.given(z.flatten(0, 1), rows.repeat(BOUND_DRAWS))
    v = given.draw(e.flatten(0, 1)[None])[0].unflatten(0, (BOUND_DRAWS, count))
    w = torch.cat([z, v], -1)
    volume = torch.log(torch.diagonal(chord.root, dim1=-2, dim2=-1)).sum(-1)
    volume = volume + given.log_volume.unflatten(0, (BOUND_DRAWS, count))
    density = forward.log_likelihood(w, rows, rest) + 0.5 * (noise.square().sum(-1) - w.square().sum(-1)) + volume
    ok = torch.isfinite(density)
    mean = torch.where(ok, density, 0.0).sum(0) / ok.sum(0).clamp_min(1)
    return torch.where(ok.any(0), mean, -torch.inf)


def _widened(part: _Part, rows: Tensor, whole: _Part) -> _Part:
    """The part of the instances `rows` [A] as one of all, in which the others have no share."""
    spread = {name: getattr(whole, name).clone() for name in vars(whole)}
    for name in ("mode", "bound", "status", "iterations", "effective", "tail"):
        spread[name][rows] = getattr(part, name)
    spread["w"][:, rows] = part.w
    spread["mass"] = torch.full_like(whole.mass, -torch.inf).index_copy(0, rows, part.mass)
    length = max(len(part.trace), len(whole.trace))
    spread["trace"] = _lengthened(whole.trace, length)
    spread["trace"][:, rows] = _lengthened(part.trace, length)
    return _Part(**spread)


def _lengthened(trace: Tensor, length: int) -> Tensor:
    return torch.cat([trace, trace[-1:].expand(length - len(trace), -1)]) if len(trace) else trace


def _mixed(parts: list[_Part], seeds: Sequence[int]) -> _Part:
    """Draws of all parts, as many of each as is its share of the evidence; the rest is that of the largest part."""
    if len(parts) == 1:
        return parts[0]
    mass = torch.stack([part.mass for part in parts])
    lost = torch.stack([part.status == Status.DIVERGED for part in parts])
    mass = torch.where(torch.isfinite(mass) & ~lost, mass, -torch.inf)
    mass[0] = torch.where(torch.isfinite(mass).any(0), mass[0], 0.0)
    share = torch.softmax(mass, 0)
    count, best, everyone = len(parts[0].w), share.argmax(0), torch.arange(len(seeds))
    streams = [torch.Generator().manual_seed(seed + 6) for seed in seeds]
    offset = torch.stack([torch.rand((), generator=one, dtype=share.dtype) for one in streams])
    chosen = systematic(share.repeat_interleave(count, 0) / count, offset, count)
    length = max(len(part.trace) for part in parts)

    def of_best(name: str) -> Tensor:
        found: Tensor = torch.stack([getattr(part, name) for part in parts])[best, everyone]
        return found

    effective, tail = (torch.stack([getattr(part, name) for part in parts]) for name in ("effective", "tail"))
    return _Part(
        torch.cat([part.w for part in parts])[chosen, everyone],
        of_best("mode"),
        mass.logsumexp(0),
        of_best("bound"),
        of_best("status"),
        of_best("iterations"),
        1 / (share.square() / effective.clamp_min(1.0)).sum(0),
        torch.where(share > COUNTS, tail, -torch.inf).amax(0),
        torch.stack([_lengthened(part.trace, length) for part in parts])[best, :, everyone].T,
    )


def _doubts(whole: _Part) -> Iterator[str]:
    for tail, effective in zip(whole.tail.tolist(), whole.effective.tolist(), strict=True):
        yield (
            f"The weights of q's draws have a heavy tail (Pareto k {tail:.2f}) and are worth {effective:.0f} "
            "independent ones: bands may be far too narrow. Set inference.restarts=4, narrow the priors, "
            "or raise inference.posterior.stages."
            if tail > HEAVY or effective < FEW
            else ""
        )


@register_method("variational")
class Variational(SolvedMethod):
    """Through the solver, by a variational q of force and parameters, corrected by importance."""

    def infer(self, model: Model, observations: Observations, options: InferenceConfig, seeds: Sequence[int]) -> Fit:
        """Fit B instances at once. Each start finds a q of its own, and their answers are mixed by their evidence."""
        forward, own = self.forward(model, observations, options), options.variational
        climbs = []
        for attempt in range(options.restarts):
            with during("start", attempt + 1, options.restarts):
                random = options.random_start or attempt > 0
                w = first_guess(forward, [seed + attempt for seed in seeds], options.preestimate, random)
                found = ascend(forward, w, seeds, own.pace)
                if own.by_adam:
                    learn = own.learn_inducing and attempt == 0
                    forward, found = climb_by_adam(forward, found, seeds, own.adams_pace, own.features, learn)
                climbs.append(found)
        forward, climbs = _fine_enough(forward, climbs, seeds, own)
        posterior = options.posterior.model_copy(update={"draws": own.draws})
        parts = [_corrected(forward, climb, seeds, own, posterior) for climb in climbs]
        parts += [
            _widened(_corrected(forward.of(rows), climb, [seeds[int(i)] for i in rows], own, posterior), rows, parts[0])
            for one in climbs
            for rows, climb in _twins(forward, one, seeds, own)
        ]
        whole = _mixed(parts, seeds)
        answer = SolvedPosterior(self.name, forward, whole.w, seeds, own.features)
        doubts = [
            " ".join(filter(None, both)) for both in zip(doubts_of(answer, whole.mode), _doubts(whole), strict=True)
        ]
        return Fit(
            posterior=answer,
            bound=whole.bound,
            status=whole.status,
            iterations=whole.iterations,
            effective=whole.effective,
            trace=whole.trace,
            tail=whole.tail,
            doubts=tuple(doubts),
        )
