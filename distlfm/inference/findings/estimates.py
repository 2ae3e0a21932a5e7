"""What a posterior says of the parameters: estimates with intervals, and the directions that the data leave open.

Data and priors contradict each other where unknowns ended far outside what their prior expects. Wrong units are the
usual cause. A flexible force describes values that are a thousand times too large as well as right ones, so no score of
the fit shows it; the priors do, which were written in the right units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.answer.parameters import Estimated
from distlfm.inference.base import Posterior
from distlfm.likelihoods.base import key_of, may_vanish

STRAINED = 4.0
"""Deviations of the prior; of a hundred thousand values that come from it, six lie beyond."""

MOST_NAMED = 3


def strain(names: Sequence[str], z: Tensor, limit: float = STRAINED) -> str:
    """A sentence on what ended far outside its prior, or nothing.

    names: of the whitened unknowns. z: [n], their posterior mean, for one instance. limit: in deviations of the prior.
    """
    far = [
        (abs(value), name)
        for name, value in zip(names, z.tolist(), strict=True)
        if abs(value) > limit and not (value < 0 and may_vanish(name.partition("[")[0]))
    ]
    if not far:
        return ""
    far.sort(reverse=True)
    named = ", ".join(name for _, name in far[:MOST_NAMED])
    more = f" and {len(far) - MOST_NAMED} more" if len(far) > MOST_NAMED else ""
    lies = "lies" if len(far) == 1 else "lie"
    keys = ", ".join(dict.fromkeys(_key(name) for _, name in far[:MOST_NAMED]))
    return (
        f"{named}{more} {lies} far from what the prior expects (up to {far[0][0]:.0f} deviations): check the units of "
        f"times and values, or widen the priors ({keys})."
    )


def _key(name: str) -> str:
    """Where a config has the prior of an unknown. Those of kernels have their force's name first."""
    whole = name.partition("[")[0]
    if "." in whole:
        return f"force.priors.{name.partition('.')[2]}"
    key = key_of(whole)
    return f"mechanism.priors.{whole}" if key is None else f"likelihood.{key}"


UNDETERMINED = 0.7
"""A direction of z whose posterior standard deviation is above this share of its prior's is not settled by the data."""


@dataclass(frozen=True, kw_only=True)
class Estimate(Estimated):
    """One parameter of a fit. `shrinkage` is 0 where the data say nothing and 1 where they say all.

    label: which element of the parameter it is; empty if it has one alone.
    """

    shrinkage: float
    parameter: str
    label: str


@dataclass(frozen=True)
class Direction:
    """A combination of parameters that the data leave open: its spread relative to the prior, and who is in it."""

    spread: float
    parts: tuple[tuple[str, float], ...]

    def __str__(self) -> str:
        names = " with ".join(name for name, _ in self.parts)
        return f"{names}: {100 * self.spread:.0f} % of the prior's spread is left"


def estimates(posterior: Posterior) -> list[tuple[Estimate, ...]]:
    """The parameters of each instance in natural units, known ones left out."""
    space = posterior.model.space
    unknowns = posterior.unknowns()
    values = space.unpack(unknowns.proposals)
    spread = _weighted_sd(unknowns.proposals, unknowns.weights.unsqueeze(-1))
    found: list[list[Estimate]] = [[] for _ in posterior.observations.ids]
    for parameter in space.parameters:
        part = space.slice_of(parameter.name)
        for position, i in enumerate(parameter.free):
            draws = values[parameter.name][..., i]
            mean = (unknowns.weights * draws).sum(0)
            sd = _weighted_sd(draws, unknowns.weights)
            limits = [weighted_quantile(draws, unknowns.weights, q) for q in (0.16, 0.84, 0.025, 0.975)]
            shrinkage = 1 - spread[:, part.start + position].clamp_max(1.0)
            label = parameter.labels[i] if len(parameter.labels) > 1 else ""
            name = f"{parameter.name}[{label}]" if label else parameter.name
            for b, row in enumerate(found):
                numbers = [float(column[b]) for column in (mean, sd, *limits)]
                told = float(shrinkage[b])
                row.append(
                    Estimate(name, parameter.kind, *numbers, shrinkage=told, parameter=parameter.name, label=label)
                )
    return [tuple(row) for row in found]


def undetermined(posterior: Posterior) -> list[tuple[Direction, ...]]:
    """Directions of z that the data leave open, for each instance: eigenvectors of its posterior covariance."""
    unknowns = posterior.unknowns()
    mean = (unknowns.weights.unsqueeze(-1) * unknowns.proposals).sum(0)
    centred = unknowns.proposals - mean
    covariance = torch.einsum("jb,jbi,jbk->bik", unknowns.weights, centred, centred)
    variances, vectors = torch.linalg.eigh(covariance)
    names = posterior.model.space.free_names
    found = []
    for b in range(len(mean)):
        directions = []
        for k in range(len(names) - 1, -1, -1):
            spread = float(variances[b, k].clamp_min(0).sqrt())
            if spread < UNDETERMINED:
                break
            weights = vectors[b, :, k]
            order = torch.argsort(weights.abs(), descending=True)[:3]
            large = [i for i in order if weights[i].abs() > 0.3] or [order[0]]
            parts = tuple((names[int(i)], float(weights[i])) for i in large)
            directions.append(Direction(spread, parts))
        found.append(tuple(directions))
    return found


def _weighted_sd(draws: Tensor, weights: Tensor) -> Tensor:
    mean = (weights * draws).sum(0)
    return (weights * (draws - mean).square()).sum(0).clamp_min(0).sqrt()


def weighted_quantile(draws: Tensor, weights: Tensor, level: float) -> Tensor:
    """Quantile [B] of weighted draws [J, B], interpolated between the middles of the weights' steps."""
    ordered, order = draws.sort(0)
    weight = weights.gather(0, order)
    middle = weight.cumsum(0) - 0.5 * weight
    above = torch.searchsorted(middle.T.contiguous(), torch.full((draws.shape[1], 1), level, dtype=middle.dtype)).T
    high = above.clamp(1, len(draws) - 1) if len(draws) > 1 else torch.zeros_like(above)
    low = (high - 1).clamp_min(0)
    x0, x1 = ordered.gather(0, low), ordered.gather(0, high)
    p0, p1 = middle.gather(0, low), middle.gather(0, high)
    share = ((level - p0) / (p1 - p0).clamp_min(1e-300)).clamp(0, 1)
    return (x0 + share * (x1 - x0)).squeeze(0)
