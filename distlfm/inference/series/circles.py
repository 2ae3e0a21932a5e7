"""The circle that an instance's waves live on: long enough for its lengthscales, with as many waves as they need.

Which lengthscales these are is known only after the fit has begun, so modes and circles are found together. Whether a
circle is good enough is measured against a larger one with more waves.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from distlfm.inference.curvature import hessian, root_of_inverse
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.optimise import Optimum, Status
from distlfm.inference.series.fourier import MOST_WAVES, REACH, Basis, FourierGaussian, lengthscales

FARTHEST = 6.0
"""Lengthscales beyond which a circle is not made longer."""

WINDOW, PRIOR_WINDOW, WIDER = 4.0, 2.0, 1.3
"""Deviations of a lengthscale on both sides that circles are made for: of the posterior, and of the prior where nothing
is known yet; and by how much larger ones hold more.
"""

ATTEMPTS, TRIALS = 4, 12

RUNG = 1.05
"""Between lengthscales that circles are made for."""

ROUGH = 0.2
"""Deviation over draws, in nats, of what a larger circle with more waves changes of the log density."""


@dataclass(frozen=True)
class Settled:
    """Modes of B instances, and the lengthscales [B] that their circles are made for.

    places: [B], which of the instances given they are; usable: [B], whether the circles hold the lengthscales.
    """

    places: Tensor
    best: Optimum
    shortest: Tensor
    longest: Tensor
    usable: Tensor
    reach: Tensor

    def rows(self, index: Tensor) -> Settled:
        """Those at `index`."""
        parts = (one[index] for one in (self.shortest, self.longest, self.usable, self.reach))
        return Settled(self.places[index], self.best.rows(index), *parts)

    def basis(self, observations: Observations, until: float | None) -> Basis:
        """The circles of these instances."""
        first, last = observations.times[:, 0], _last(observations, until)
        return Basis.of(first, last, self.shortest, self.longest, self.reach)


Search = Callable[[FourierGaussian, Tensor, Tensor | None], Optimum]
"""Finds modes of the instances at places [A], from given unknowns [A, n] if there are any."""


def settle(model: Model, observations: Observations, until: float | None, search: Search) -> Settled | None:
    """Find modes and circles together: circles from the prior first, then such as the modes ask for.

    Each instance has a circle of its own, whatever its neighbours. Those whose first one has too many waves are left
    out; None if no other is there.
    """
    first, last = observations.times[:, 0], _last(observations, until)
    span, start = last - first, torch.zeros(len(first), model.space.num_free, dtype=first.dtype)
    shortest, longest = lengthscales(model, start, torch.full_like(start, PRIOR_WINDOW))
    most = (observations.mask.sum((-2, -1)) / 2).clamp_max(MOST_WAVES)
    # Few data leave the lengthscale as open as its prior does.
    most = torch.where(Basis.of(first, last, shortest, longest).count <= most, most, most * (most >= MOST_WAVES))
    shortest = torch.minimum(torch.maximum(shortest, span / 10), longest)
    longest = torch.maximum(torch.minimum(longest, span), shortest)
    places = (Basis.of(first, last, shortest, longest).count <= most).nonzero().squeeze(-1)
    if not len(places):
        return None
    observations = observations.rows(places)
    first, last, shortest, longest, most = (one[places] for one in (first, last, shortest, longest, most))

    def on_circle(rows: Tensor) -> FourierGaussian:
        basis = Basis.of(*(one[rows] for one in (first, last, shortest, longest)))
        return FourierGaussian(model, observations.rows(rows), model.linearity, basis)

    def asked(marginal: FourierGaussian, z: Tensor) -> tuple[Tensor, Tensor]:
        root = root_of_inverse(hessian(marginal.negative, z, torch.arange(len(z))))
        return _on_ladder(*lengthscales(model, z, WINDOW * root.square().sum(-1).sqrt()))

    pending = torch.arange(len(places))
    marginal = on_circle(pending)
    best = search(marginal, places, None)
    shortest, longest = asked(marginal, best.z)
    usable = torch.zeros(len(places), dtype=torch.bool)
    for attempt in range(1, ATTEMPTS):
        counts = Basis.of(first, last, shortest, longest).count
        pending = pending[counts[pending] <= most[pending]]
        if not len(pending):
            break
        marginal = on_circle(pending)
        best = best.moved(pending, search(marginal, places[pending], best.z[pending]))
        z = best.z[pending]
        low, high = lengthscales(model, z, torch.zeros_like(z))
        held = (low >= shortest[pending]) & (high <= longest[pending])
        usable[pending] = held & (best.status[pending] != Status.DIVERGED)
        pending = pending[~held]
        if len(pending) and attempt + 1 < ATTEMPTS:
            shortest[pending], longest[pending] = asked(on_circle(pending), best.z[pending])
    return _reaching(
        Settled(places, best, shortest, longest, usable, torch.full_like(first, REACH)), model, observations, until
    )


def _on_ladder(shortest: Tensor, longest: Tensor) -> tuple[Tensor, Tensor]:
    """The next rung [B] below, and above: circles must not follow those digits of a mode that are not settled."""
    rung = math.log(RUNG)
    return torch.exp((shortest.log() / rung).floor() * rung), torch.exp((longest.log() / rung).ceil() * rung)


def _reaching(found: Settled, model: Model, observations: Observations, until: float | None) -> Settled:
    """With circles made longer where a larger one with more waves would change the density."""
    z = found.best.z
    marginal = FourierGaussian(model, observations, model.linearity, found.basis(observations, until))
    root = root_of_inverse(hessian(marginal.negative, z, torch.arange(len(z))))
    noise = torch.randn(TRIALS, 1, z.shape[-1], generator=torch.Generator().manual_seed(0), dtype=z.dtype)
    near = z + torch.einsum("bij,sbj->sbi", root, noise.expand(-1, len(z), -1))
    while True:
        rough = found.usable & (found.reach < FARTHEST) & (roughness(marginal, found, until, near) > 0.25 * ROUGH)
        if not bool(rough.any()):
            return found
        found = replace(found, reach=found.reach + rough)
        marginal = FourierGaussian(model, observations, model.linearity, found.basis(observations, until))


@torch.no_grad()
def roughness(marginal: FourierGaussian, settled: Settled, until: float | None, draws: Tensor) -> Tensor:
    """Deviation [B] over draws [S, B, n] of what a larger circle with more waves changes of the log density."""
    observations = marginal.observations
    first, last = observations.times[:, 0], _last(observations, until)
    basis = Basis.of(first, last, settled.shortest / WIDER, settled.longest * WIDER, settled.reach + 1)
    finer = FourierGaussian(marginal.model, observations, marginal.linearity, basis)
    z, rows = draws.flatten(0, 1), torch.arange(len(observations)).repeat(len(draws))
    change: Tensor = (finer.log_joint(z, rows) - marginal.log_joint(z, rows)).unflatten(0, draws.shape[:2])
    return change.std(0).nan_to_num(torch.inf)


def _last(observations: Observations, until: float | None) -> Tensor:
    last = observations.times[:, -1]
    return last if until is None else last.clamp_min(until)
