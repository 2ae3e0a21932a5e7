"""The circle that an instance's waves live on: long enough for its lengthscales, with as many waves as they need.

Which lengthscales these are is known only after the fit has begun, so modes and circles are found together. Whether a
circle is good enough is measured against a larger one with more waves.
"""

from __future__ import annotations

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

ROUGH = 0.2
"""Deviation over draws, in nats, of what a larger circle with more waves changes of the log density."""


@dataclass(frozen=True)
class Settled:
    """Modes of B instances, and the lengthscales [B] that their circles are made for; usable: [B], they hold those."""

    best: Optimum
    shortest: Tensor
    longest: Tensor
    usable: Tensor
    reach: Tensor

    def rows(self, index: Tensor) -> Settled:
        """Those at `index`."""
        parts = (one[index] for one in (self.shortest, self.longest, self.usable, self.reach))
        return Settled(self.best.rows(index), *parts)

    def basis(self, observations: Observations, until: float | None) -> Basis:
        """The circles of these instances."""
        first, last = observations.times[:, 0], _last(observations, until)
        return Basis.of(first, last, self.shortest, self.longest, self.reach)


Search = Callable[[FourierGaussian, Tensor | None], Optimum]
"""Finds modes of all instances, from given places [B, n] if there are any."""


def settle(model: Model, observations: Observations, until: float | None, search: Search) -> Settled | None:
    """Find modes and circles together: circles from the prior first, then such as the modes ask for.

    None if no instance has a circle of few waves.
    """
    first, last = observations.times[:, 0], _last(observations, until)
    span, start = last - first, torch.zeros(len(first), model.space.num_free, dtype=first.dtype)
    shortest, longest = lengthscales(model, start, torch.full_like(start, PRIOR_WINDOW))
    most = (observations.mask.sum((-2, -1)) / 2).clamp_max(MOST_WAVES)
    if bool((most < MOST_WAVES).any()):  # few data leave the lengthscale as open as its prior does
        most = torch.where(Basis.of(first, last, shortest, longest).count <= most, most, most * (most >= MOST_WAVES))
    shortest = torch.minimum(torch.maximum(shortest, span / 10), longest)
    longest = torch.maximum(torch.minimum(longest, span), shortest)
    best: Optimum | None = None
    for attempt in range(ATTEMPTS):
        basis = Basis.of(first, last, shortest, longest)
        few = basis.count <= most
        if not bool(few.any()):
            return None
        marginal = FourierGaussian(model, observations, model.linearity, basis)
        best = search(marginal, None if best is None else best.z)
        low, high = lengthscales(model, best.z, torch.zeros_like(start))
        held = (low >= shortest) & (high <= longest) & few
        if attempt and (bool(held.all()) or attempt == ATTEMPTS - 1):
            break
        root = root_of_inverse(hessian(marginal.negative, best.z, torch.arange(len(first))))
        shortest, longest = lengthscales(model, best.z, WINDOW * root.square().sum(-1).sqrt())
    assert best is not None
    usable = held & (best.status != Status.DIVERGED)
    found = Settled(best, shortest, longest, usable, torch.full_like(span, REACH))
    root = root_of_inverse(hessian(marginal.negative, best.z, torch.arange(len(first))))
    noise = torch.randn(TRIALS, *start.shape, generator=torch.Generator().manual_seed(0), dtype=start.dtype)
    near = best.z + torch.einsum("bij,sbj->sbi", root, noise)
    while float(found.reach.max()) < FARTHEST:
        marginal = FourierGaussian(model, observations, model.linearity, found.basis(observations, until))
        rough = usable & (roughness(marginal, found, until, near) > 0.25 * ROUGH)
        if not bool(rough.any()):
            break
        found = replace(found, reach=found.reach + rough)
    return found


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
