"""The recursions of the package in torch: slower, for platforms without numba. Tests compare both.

Shapes are those of the package.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

if TYPE_CHECKING:
    from distlfm.solvers.kalman import Chain

ROUNDING = 1e-13
"""Share of a variance that is taken for a rounding error."""


class Visit(NamedTuple):
    """One time: the step [R, n, n] that leads there, mean [R, n] and covariance [R, n, n] before anything is seen, and
    what each scalar update did: direction, gain, error and precision.
    """

    step: Tensor | None
    mean: Tensor
    covariance: Tensor
    updates: list[tuple[Tensor, Tensor, Tensor, Tensor]]


def filtered(chain: Chain) -> tuple[Tensor, list[Visit]]:
    """Run through all times. Returns the log density [R], and the visits."""
    (steps, noises), row = chain.moves(), torch.arange(len(chain.drift))
    mean, covariance = chain.first.new_zeros(chain.first.shape[:-1]), chain.first
    log_density = chain.first.new_zeros(len(row))
    visits: list[Visit] = []
    step: Tensor | None = None
    for t in range(chain.residual.shape[-1]):
        if t:
            step = steps[row, chain.which[:, t - 1]]
            mean = (step @ mean.unsqueeze(-1)).squeeze(-1)
            covariance = step @ covariance @ step.mT + noises[row, chain.which[:, t - 1]]
        visits.append(Visit(step, mean, covariance, []))
        for p in range(chain.residual.shape[-2]):
            seen = chain.seen[:, p, t].to(mean.dtype)
            direction = chain.observed[:, p]
            cross = (covariance @ direction.unsqueeze(-1)).squeeze(-1)
            spread = (direction * cross).sum(-1) + chain.noise[:, p, t]
            error = chain.residual[:, p, t] - (direction * mean).sum(-1)
            density = -0.5 * (error.square() / spread + torch.log(2 * math.pi * spread))
            log_density = log_density + seen * density
            precision = seen / spread
            gain = cross * precision.unsqueeze(-1)
            visits[-1].updates.append((direction, gain, error, precision))
            mean = mean + gain * error.unsqueeze(-1)
            covariance = covariance - gain.unsqueeze(-1) * cross.unsqueeze(-2)
    return log_density, visits


def innovations(chain: Chain) -> Tensor:
    """What each number adds to those before it, in its deviations, [R, P, T]."""
    found = torch.zeros_like(chain.residual)
    for t, visit in enumerate(filtered(chain)[1]):
        for p, (_, _, error, precision) in enumerate(visit.updates):
            found[:, p, t] = error * precision.sqrt()
    return found


def smoothed(chain: Chain, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Means and variances [R, K, T] of combinations `wanted` [R, K, n] of the states, given all data."""
    _, visits = filtered(chain)
    slope, curve = torch.zeros_like(visits[0].mean), torch.zeros_like(visits[0].covariance)
    means, variances = [], []
    for step, mean, covariance, updates in reversed(visits):
        for direction, gain, error, precision in reversed(updates):
            # Undo one scalar update: C = I − gain · directionᵀ.
            slope = slope - direction * ((gain * slope).sum(-1) + precision * error).unsqueeze(-1)
            across = curve - direction.unsqueeze(-1) * (gain.unsqueeze(-2) @ curve)
            curve = across - (across @ gain.unsqueeze(-1)) * direction.unsqueeze(-2)
            curve = curve + precision[:, None, None] * direction.unsqueeze(-1) * direction.unsqueeze(-2)
        whole = covariance - covariance @ curve @ covariance
        means.append((wanted * (mean - (covariance @ slope.unsqueeze(-1)).squeeze(-1)).unsqueeze(-2)).sum(-1))
        variances.append(((wanted @ whole) * wanted).sum(-1))
        if step is not None:
            slope = (step.mT @ slope.unsqueeze(-1)).squeeze(-1)
            curve = step.mT @ curve @ step
    return torch.stack(means[::-1], -1), torch.stack(variances[::-1], -1)


def wandered(chain: Chain, normal: Tensor) -> Tensor:
    """Paths [R, T, n] of the states, from normal numbers in that shape."""
    (steps, noises), row = chain.moves(), torch.arange(len(normal))
    found: list[Tensor] = []
    for t in range(normal.shape[1]):
        covariance = chain.first if t == 0 else noises[row, chain.which[:, t - 1]]
        moved = (rooted(covariance) @ normal[:, t].unsqueeze(-1)).squeeze(-1)
        if t:
            moved = moved + (steps[row, chain.which[:, t - 1]] @ found[-1].unsqueeze(-1)).squeeze(-1)
        found.append(moved)
    return torch.stack(found, 1)


def rooted(covariance: Tensor) -> Tensor:
    """Lower triangular roots of covariances [R, n, n]; what rounding has left of nothing becomes nothing."""
    rest, columns = covariance, []
    for j in range(covariance.shape[-1]):
        pivot = rest[:, j, j]
        sound = pivot > ROUNDING * covariance[:, j, j]
        scale = torch.where(sound, pivot, 1.0).rsqrt() * sound
        column = rest[:, :, j] * scale.unsqueeze(-1) * (torch.arange(rest.shape[-1]) >= j)
        columns.append(column)
        rest = rest - column.unsqueeze(-1) * column.unsqueeze(-2)
    return torch.stack(columns, -1)
