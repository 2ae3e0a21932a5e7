"""The posterior of the unknowns z: Laplace's Gaussian at the mode, corrected by adaptive importance sampling.

The mode of a skewed posterior lies beside its mass, so the Gaussian is only where sampling begins. Each stage draws
from a Student-t with the weighted moments found so far, in coordinates that walls of priors do not bend, and all draws
of all stages share one set of weights (deterministic mixture, Cornuet et al. 2012). Their largest ones say whether they
can be trusted (Vehtari et al. 2024).
Shapes: `B` instances, `n` unknowns, `S` draws, `J` weighted proposals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from distlfm.config import Config
from distlfm.inference.curvature import ROWS, hessian, root_of_inverse
from distlfm.inference.optimise import Objective
from distlfm.mechanisms.priors import HalfNormal, ParameterSpace, Uniform
from distlfm.runtime.reporting import during, stepped

LEAST = 60
"""Proposals of a stage, however few the unknowns."""

FREEDOM = 8
"""Degrees of freedom of the Student-t proposals: heavier tails than the target's, at a small loss of efficiency."""


OPEN = 1.3
"""Curvature of the objective up to which the data say nothing of an unknown: the prior alone has one."""

TRUSTED, ENOUGH, SHARE = 0.5, 200.0, 1 / 3
"""Shape of the weights' tail up to which their averages have a variance, and effective draws, or their share of all,
that end the stages."""

EDGE = 1e-13
"""Nearer to a wall than this, in units of the range, is beyond it."""


class Coordinates:
    """Coordinates x of the whitened unknowns z, both [..., n], in which the posterior is nearly straight.

    A prior with walls bends what the data say in z, which is infinite at a wall: a ridge between two parameters that is
    a line in natural values is a hook in z, and a Gaussian around its mode misses most of it. Such unknowns have as
    coordinates their natural values, in units of the prior's range; others have z, and so has, in each instance, an
    unknown that the data say nothing of: it stays standard normal. Without a space, x is z.
    """

    def __init__(self, space: ParameterSpace | None = None) -> None:
        priors = [one.prior_of(one.labels[i]) for one in (() if space is None else space.parameters) for i in one.free]
        self._between = torch.tensor([isinstance(one, Uniform) for one in priors], dtype=torch.bool)
        self._above = torch.tensor([isinstance(one, HalfNormal) for one in priors], dtype=torch.bool)
        self._walls = bool((self._between | self._above).any())

    def without(self, free: Tensor) -> Coordinates:
        """The same, but that each instance's unknowns that `free` [B, n] marks stay whitened."""
        if not self._walls:
            return self
        found = Coordinates()
        found._between, found._above = self._between & ~free, self._above & ~free
        found._walls = bool((found._between | found._above).any())
        return found

    def rows(self, index: Tensor) -> Coordinates:
        """Those of the instances at `index`, where instances differ."""
        found = Coordinates()
        found._between, found._above = (one[index] if one.dim() > 1 else one for one in (self._between, self._above))
        found._walls = self._walls
        return found

    def straight(self, z: Tensor) -> Tensor:
        """x of z."""
        if not self._walls:
            return z
        half = -torch.special.ndtri(0.5 * torch.special.ndtr(-z))
        return torch.where(self._between, torch.special.ndtr(z), torch.where(self._above, half, z))

    def whitened(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """z of x, and whether [...] x is within all walls."""
        if not self._walls:
            return x, torch.ones(x.shape[:-1], dtype=torch.bool)
        within = torch.where(self._between, (x > EDGE) & (x < 1 - EDGE), ~self._above | (x > EDGE)).all(-1)
        share = torch.special.ndtri(torch.where(self._between, x, 0.5).clamp(EDGE, 1 - EDGE))
        # The smaller of both tails is computed: the other is one, to rounding.
        upper = 2 * torch.special.ndtr(-torch.where(self._above, x, 1.0).clamp_min(EDGE))
        z = torch.where(self._between, share, torch.where(self._above, -torch.special.ndtri(upper), x))
        return z, within

    def log_slope(self, z: Tensor) -> Tensor:
        """log dx/dz of each unknown, [..., n]."""
        if not self._walls:
            return torch.zeros_like(z)
        normal = -0.5 * z.square() - 0.5 * math.log(2 * math.pi)
        half = 0.5 * self.straight(z).square() - 0.5 * z.square() - math.log(2)
        return torch.where(self._between, normal, torch.where(self._above, half, 0.0))


WHITENED = Coordinates()


class PosteriorConfig(Config):
    """How the uncertainty of the parameters is taken into account.

    method: `importance` (Laplace, corrected by weights), `laplace`, or `point` (none: intervals are too narrow).
    stages: proposals of each stage of importance sampling, for every unknown of the model.
    draws: how many force and outputs are integrated over.
    """

    method: Literal["importance", "laplace", "point"] = "importance"
    stages: tuple[PositiveInt, ...] = Field(default=(10, 20, 50), min_length=1)
    draws: int = Field(default=96, ge=2)


@dataclass(frozen=True)
class ParameterPosterior:
    """What is known of z after seeing the data.

    mode: [B, n]; proposals: [J, B, n] with weights [J, B] that sum to one; draws: [S, B, n] of equal weight;
    effective: [B], the number of independent draws that the weighted ones are worth; tail: [B], the shape k̂ of the
    largest weights' Pareto tail, above 0.7 of which averages are not to be trusted. log_mass: [B], the logarithm of the
    integral of the density, up to a constant that all of as many unknowns and the same stages share; None if not known.
    """

    mode: Tensor
    proposals: Tensor
    weights: Tensor
    draws: Tensor
    effective: Tensor
    tail: Tensor
    log_mass: Tensor | None = None

    @property
    def mean(self) -> Tensor:
        return (self.weights.unsqueeze(-1) * self.proposals).sum(0)

    @property
    def covariance(self) -> Tensor:
        """[B, n, n]."""
        centred = self.proposals - self.mean
        return torch.einsum("jb,jbi,jbk->bik", self.weights, centred, centred)


def infer(
    objective: Objective,
    mode: Tensor,
    seeds: Sequence[int],
    options: PosteriorConfig,
    coordinates: Coordinates = WHITENED,
    further: int = 0,
) -> ParameterPosterior:
    """Approximate the posterior around the modes [B, n]; each instance draws from its own seed.

    further: stages of importance sampling that may follow those of the options where weights are not to be trusted.
    """
    num_instances, size = mode.shape
    root = mode.new_zeros(num_instances, size, size)
    if options.method != "point" and size:
        curvature = hessian(objective, mode, torch.arange(num_instances))
        root = root_of_inverse(curvature)
        coordinates = coordinates.without(torch.diagonal(curvature, dim1=-2, dim2=-1) < OPEN)
    return infer_from(objective, mode, root, seeds, options, coordinates, further)


def infer_from(
    objective: Objective,
    mode: Tensor,
    root: Tensor,
    seeds: Sequence[int],
    options: PosteriorConfig,
    coordinates: Coordinates = WHITENED,
    further: int = 0,
) -> ParameterPosterior:
    """The same with Laplace's deviations given: root [B, n, n], lower triangular."""
    num_instances, size = mode.shape
    if options.method == "point" or size == 0:
        alone = torch.ones(1, num_instances, dtype=mode.dtype)
        return ParameterPosterior(
            mode, mode.unsqueeze(0), alone, mode.unsqueeze(0), alone[0], torch.zeros(num_instances)
        )
    streams = [torch.Generator().manual_seed(seed) for seed in seeds]
    if options.method == "laplace":
        draws = mode + _apply(root, _normal(streams, options.draws, size))
        equal = torch.full((options.draws, num_instances), 1 / options.draws, dtype=mode.dtype)
        count = torch.full_like(mode[:, 0], options.draws)
        return ParameterPosterior(mode, draws, equal, draws, count, torch.zeros_like(count))
    return _importance(objective, mode, root, streams, options, coordinates, further)


def _normal(streams: Sequence[torch.Generator], count: int, size: int) -> Tensor:
    """[count, B, size] standard normal numbers, the same for an instance whatever its neighbours."""
    return torch.stack([torch.randn(count, size, generator=one, dtype=torch.float64) for one in streams], 1)


def _apply(root: Tensor, noise: Tensor) -> Tensor:
    return torch.einsum("bij,sbj->sbi", root, noise)


@dataclass(frozen=True)
class _Proposal:
    """Student-t with centre [B, n] and scale root [B, n, n]."""

    centre: Tensor
    root: Tensor

    def draw(self, streams: Sequence[torch.Generator], count: int) -> Tensor:
        size = self.centre.shape[-1]
        noise = _normal(streams, count, size + FREEDOM)
        chi = noise[..., size:].square().sum(-1, keepdim=True)
        return self.centre + _apply(self.root, noise[..., :size] / (chi / FREEDOM).sqrt())

    def log_density(self, z: Tensor) -> Tensor:
        """Up to a constant common to all proposals, [J, B]."""
        size = z.shape[-1]
        steps = torch.linalg.solve_triangular(self.root, (z - self.centre).movedim(0, -1), upper=False)
        volume = torch.log(torch.diagonal(self.root, dim1=-2, dim2=-1)).sum(-1)
        return -0.5 * (FREEDOM + size) * torch.log1p(steps.square().sum(-2) / FREEDOM).T - volume


@dataclass
class _Sample:
    """What is known of A instances so far. x: [J, A, n]; log_target, weights: [J, A]; tail, mass: [A]."""

    laplace: Tensor
    proposals: list[_Proposal]
    counts: list[int]
    x: Tensor
    log_target: Tensor
    weights: Tensor
    tail: Tensor
    mass: Tensor

    @property
    def effective(self) -> Tensor:
        return 1 / self.weights.square().sum(0)

    @property
    def trusted(self) -> Tensor:
        """Whether the weights are fit for averages, [A]."""
        return (self.tail <= TRUSTED) & (self.effective >= min(ENOUGH, SHARE * len(self.x)))

    def rows(self, index: Tensor) -> _Sample:
        """Those of the instances at `index`."""
        proposals = [_Proposal(one.centre[index], one.root[index]) for one in self.proposals]
        x, log_target, weights = (one[:, index] for one in (self.x, self.log_target, self.weights))
        tail, mass = self.tail[index], self.mass[index]
        return _Sample(self.laplace[index], proposals, list(self.counts), x, log_target, weights, tail, mass)

    def grow(
        self, objective: Objective, count: int, streams: Sequence[torch.Generator], coordinates: Coordinates
    ) -> None:
        """One stage more, with proposals adapted to the weights so far."""
        if self.counts:
            self.proposals.append(_adapted(self.x, self.weights, self.laplace))
        self.counts.append(count)
        fresh = self.proposals[-1].draw(streams, count)
        self.x = torch.cat([self.x, fresh])
        self.log_target = torch.cat([self.log_target, _log_target(objective, fresh, coordinates)])
        found = _mixture_weights(self.x, self.log_target, self.proposals, self.counts)
        self.weights, self.tail, self.mass = found


def _importance(
    objective: Objective,
    mode: Tensor,
    root: Tensor,
    streams: Sequence[torch.Generator],
    options: PosteriorConfig,
    coordinates: Coordinates,
    further: int,
) -> ParameterPosterior:
    slope = coordinates.log_slope(mode).exp()
    first = _Proposal(coordinates.straight(mode), _lower(slope.unsqueeze(-1) * root))
    none, nought = mode.new_zeros(0, len(mode)), mode.new_zeros(len(mode))
    sample = _Sample(first.root, [first], [], mode.new_zeros(0, *mode.shape), none, none, nought, nought)
    stages = [max(LEAST, each * mode.shape[-1]) for each in options.stages]
    for stage, count in enumerate(stages):
        with during("posterior stage", stage + 1, len(stages)):
            sample.grow(objective, count, streams, coordinates)
    x, weights, effective = sample.x, sample.weights, sample.effective
    tail, mass = sample.tail, sample.mass
    rows = torch.arange(len(mode))
    for number in range(further):
        doubtful = (~sample.trusted).nonzero().squeeze(-1)
        if not len(doubtful):
            break
        sample, rows = sample.rows(doubtful), rows[doubtful]
        own, places = [streams[int(row)] for row in rows], coordinates.rows(rows)
        with during("further stage", number + 1, further):
            sample.grow(_of_rows(objective, rows), stages[-1], own, places)
        # As many as the others have: how many a neighbour took must not show.
        even = torch.full((len(rows),), 0.5, dtype=mode.dtype)
        kept = systematic(sample.weights, even, len(x)).unsqueeze(-1).expand(-1, -1, x.shape[-1])
        x[:, rows], weights[:, rows] = sample.x.gather(0, kept), 1 / len(x)
        effective[rows], tail[rows] = sample.effective.clamp_max(len(x)), sample.tail
        mass[rows] = sample.mass + math.log(len(sample.x) / len(x))
    offset = torch.stack([torch.rand((), generator=one, dtype=torch.float64) for one in streams])
    chosen = systematic(weights, offset, options.draws)
    z, _ = coordinates.whitened(x)
    draws = z.gather(0, chosen.unsqueeze(-1).expand(-1, -1, z.shape[-1]))
    return ParameterPosterior(mode, z, weights, draws, effective, tail, mass)


def _of_rows(objective: Objective, rows: Tensor) -> Objective:
    """The objective of the instances `rows` alone."""
    return lambda z, some: objective(z, rows[some])


def _lower(root: Tensor) -> Tensor:
    """The lower triangular matrix [B, n, n] with the same square as root [B, n, n]."""
    if not bool(root.triu(1).any()):
        return root
    upper = torch.linalg.qr(root.mT, mode="r").R
    lower: Tensor = (upper * torch.diagonal(upper, dim1=-2, dim2=-1).sign().unsqueeze(-1)).mT
    return lower


def _adapted(z: Tensor, weights: Tensor, laplace: Tensor) -> _Proposal:
    """Weighted moments so far; with few effective draws the covariance leans on Laplace's."""
    centre = (weights.unsqueeze(-1) * z).sum(0)
    centred = z - centre
    found = torch.einsum("jb,jbi,jbk->bik", weights, centred, centred)
    effective = 1 / weights.square().sum(0)
    trust = (effective / (effective + 2 * z.shape[-1]))[:, None, None]
    covariance = trust * found + (1 - trust) * laplace @ laplace.mT
    return _Proposal(centre, torch.linalg.cholesky(covariance))


def _mixture_weights(
    z: Tensor, log_target: Tensor, proposals: list[_Proposal], stages: list[int]
) -> tuple[Tensor, Tensor, Tensor]:
    """Self-normalised weights [J, B] of all draws against the mixture of all proposals, their tail's shape [B], and the

    logarithm [B] of their mean. Truncated (Ionides 2008): no weight above the mean times √J, so that one draw cannot be
    the whole answer.
    """
    shares = [math.log(count) for count in stages[: len(proposals)]]
    parts = [one.log_density(z) + share for one, share in zip(proposals, shares, strict=True)]
    log_weight = log_target - torch.logsumexp(torch.stack(parts), 0)
    possible = torch.isfinite(log_weight)
    # Where nothing is possible all weigh the same: NaN would stop the neighbours.
    log_weight = torch.where(possible, log_weight, torch.where(possible.any(0), -torch.inf, 0.0))
    mean = torch.logsumexp(log_weight, 0) - math.log(len(z))
    weights = torch.softmax(torch.minimum(log_weight, mean + 0.5 * math.log(len(z))), 0)
    return weights, pareto_shape(log_weight), mean


def pareto_shape(log_weight: Tensor) -> Tensor:
    """Shape k̂ [B] of the Pareto tail of the largest weights, given as logarithms [J, B]; Zhang & Stephens (2009)."""
    count = int(min(0.2 * len(log_weight), 3 * math.sqrt(len(log_weight))))
    top = torch.softmax(log_weight, 0).topk(count + 1, dim=0).values.flip(0)
    excess = (top[1:] - top[:1]).clamp_min(1e-300)
    grid = 30 + int(math.sqrt(count))
    steps = 1 - (grid / (torch.arange(1, grid + 1, dtype=top.dtype) - 0.5)).sqrt()
    theta = 1 / excess[-1] + steps.unsqueeze(-1) / (3 * excess[int(count / 4 + 0.5) - 1])  # [grid, B]
    shape = torch.log1p(-theta.unsqueeze(1) * excess).mean(1)
    profile = count * (torch.log(-theta / shape) - shape - 1)
    best = (torch.softmax(profile, 0) * theta).sum(0)
    # Drawn towards one half by ten observations of it, as few weights say little.
    return (torch.log1p(-best * excess).mean(0) * count + 5) / (count + 10)


@torch.no_grad()
def _log_target(objective: Objective, x: Tensor, coordinates: Coordinates) -> Tensor:
    """Log density [J, B] of proposals x [J, B, n]: few large calls instead of many small ones."""
    z, within = coordinates.whitened(x)
    flat, rows = z.flatten(0, 1), torch.arange(x.shape[1]).repeat(len(x))
    parts = []
    for i in range(0, len(flat), ROWS):
        stepped("proposal", i, len(flat))
        parts.append(objective(flat[i : i + ROWS], rows[i : i + ROWS]))
    density = -torch.cat(parts).unflatten(0, x.shape[:2]) - coordinates.log_slope(z).sum(-1)
    return torch.where(within, density, -torch.inf)


def systematic(weights: Tensor, offset: Tensor, num_draws: int) -> Tensor:
    """Indices [S, B] that represent weights [J, B] as evenly as can be."""
    marks = (torch.arange(num_draws, dtype=weights.dtype).unsqueeze(-1) + offset) / num_draws
    found = torch.searchsorted(weights.cumsum(0).T.contiguous(), marks.T.contiguous())
    return found.T.clamp_max(len(weights) - 1)
