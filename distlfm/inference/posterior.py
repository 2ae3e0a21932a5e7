"""The posterior of the unknowns z: Laplace's Gaussian at the mode, corrected by adaptive importance sampling.

The mode of a skewed posterior lies beside its mass, so the Gaussian is only where sampling begins. Each stage draws
from a Student-t with the weighted moments found so far, and all draws of all stages share one set of weights
(deterministic mixture, Cornuet et al. 2012). Shapes: `B` instances, `n` unknowns, `S` draws, `J` weighted proposals.
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
from distlfm.runtime.reporting import during, stepped

LEAST = 60
"""Proposals of a stage, however few the unknowns."""

FREEDOM = 8
"""Degrees of freedom of the Student-t proposals: heavier tails than the target's, at a small loss of efficiency."""


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
    effective: [B], the number of independent draws that the weighted ones are worth.
    """

    mode: Tensor
    proposals: Tensor
    weights: Tensor
    draws: Tensor
    effective: Tensor

    @property
    def mean(self) -> Tensor:
        return (self.weights.unsqueeze(-1) * self.proposals).sum(0)

    @property
    def covariance(self) -> Tensor:
        """[B, n, n]."""
        centred = self.proposals - self.mean
        return torch.einsum("jb,jbi,jbk->bik", self.weights, centred, centred)


def infer(objective: Objective, mode: Tensor, seeds: Sequence[int], options: PosteriorConfig) -> ParameterPosterior:
    """Approximate the posterior around the modes [B, n]; each instance draws from its own seed."""
    num_instances, size = mode.shape
    root = mode.new_zeros(num_instances, size, size)
    if options.method != "point" and size:
        root = root_of_inverse(hessian(objective, mode, torch.arange(num_instances)))
    return infer_from(objective, mode, root, seeds, options)


def infer_from(
    objective: Objective, mode: Tensor, root: Tensor, seeds: Sequence[int], options: PosteriorConfig
) -> ParameterPosterior:
    """The same with Laplace's deviations given: root [B, n, n], lower triangular."""
    num_instances, size = mode.shape
    if options.method == "point" or size == 0:
        alone = torch.ones(1, num_instances, dtype=mode.dtype)
        return ParameterPosterior(mode, mode.unsqueeze(0), alone, mode.unsqueeze(0), alone[0])
    streams = [torch.Generator().manual_seed(seed) for seed in seeds]
    if options.method == "laplace":
        draws = mode + _apply(root, _normal(streams, options.draws, size))
        equal = torch.full((options.draws, num_instances), 1 / options.draws, dtype=mode.dtype)
        return ParameterPosterior(mode, draws, equal, draws, torch.full_like(mode[:, 0], options.draws))
    return _importance(objective, mode, root, streams, options)


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


def _importance(
    objective: Objective, mode: Tensor, root: Tensor, streams: Sequence[torch.Generator], options: PosteriorConfig
) -> ParameterPosterior:
    proposals = [_Proposal(mode, root)]
    z, log_target = mode.new_zeros(0, *mode.shape), mode.new_zeros(0, len(mode))
    weights = mode.new_zeros(0, len(mode))
    stages = tuple(max(LEAST, each * mode.shape[-1]) for each in options.stages)
    for stage, count in enumerate(stages):
        if stage:
            proposals.append(_adapted(z, weights, root))
        fresh = proposals[-1].draw(streams, count)
        z = torch.cat([z, fresh])
        with during("posterior stage", stage + 1, len(stages)):
            log_target = torch.cat([log_target, -_values(objective, fresh)])
        weights = _mixture_weights(z, log_target, proposals, stages)
    effective = 1 / weights.square().sum(0)
    offset = torch.stack([torch.rand((), generator=one, dtype=torch.float64) for one in streams])
    chosen = _systematic(weights, offset, options.draws)
    draws = z.gather(0, chosen.unsqueeze(-1).expand(-1, -1, z.shape[-1]))
    return ParameterPosterior(mode, z, weights, draws, effective)


def _adapted(z: Tensor, weights: Tensor, laplace: Tensor) -> _Proposal:
    """Weighted moments so far; with few effective draws the covariance leans on Laplace's."""
    centre = (weights.unsqueeze(-1) * z).sum(0)
    centred = z - centre
    found = torch.einsum("jb,jbi,jbk->bik", weights, centred, centred)
    effective = 1 / weights.square().sum(0)
    trust = (effective / (effective + 2 * z.shape[-1]))[:, None, None]
    covariance = trust * found + (1 - trust) * laplace @ laplace.mT
    return _Proposal(centre, torch.linalg.cholesky(covariance))


def _mixture_weights(z: Tensor, log_target: Tensor, proposals: list[_Proposal], stages: tuple[int, ...]) -> Tensor:
    """Self-normalised weights [J, B] of all draws against the mixture of all proposals.

    Truncated (Ionides 2008): no weight above the mean times √J, so that one draw cannot be the whole answer.
    """
    shares = [math.log(count) for count in stages[: len(proposals)]]
    parts = [one.log_density(z) + share for one, share in zip(proposals, shares, strict=True)]
    log_weight = log_target - torch.logsumexp(torch.stack(parts), 0)
    possible = torch.isfinite(log_weight)
    # Where nothing is possible all weigh the same: NaN would stop the neighbours.
    log_weight = torch.where(possible, log_weight, torch.where(possible.any(0), -torch.inf, 0.0))
    mean = torch.logsumexp(log_weight, 0) - math.log(len(z))
    return torch.softmax(torch.minimum(log_weight, mean + 0.5 * math.log(len(z))), 0)


@torch.no_grad()
def _values(objective: Objective, z: Tensor) -> Tensor:
    """The objective [J, B] of every proposal z [J, B, n]: a few large calls instead of many small ones."""
    rows = torch.arange(z.shape[1]).repeat(len(z))
    flat = z.flatten(0, 1)
    parts = []
    for i in range(0, len(flat), ROWS):
        stepped("proposal", i, len(flat))
        parts.append(objective(flat[i : i + ROWS], rows[i : i + ROWS]))
    values: Tensor = torch.cat(parts).unflatten(0, z.shape[:2])
    return values


def _systematic(weights: Tensor, offset: Tensor, num_draws: int) -> Tensor:
    """Indices [S, B] that represent weights [J, B] as evenly as can be."""
    marks = (torch.arange(num_draws, dtype=weights.dtype).unsqueeze(-1) + offset) / num_draws
    found = torch.searchsorted(weights.cumsum(0).T.contiguous(), marks.T.contiguous())
    return found.T.clamp_max(len(weights) - 1)
