"""The contract of a posterior: whatever the method, it predicts force and outputs anywhere, as mixtures over draws.

Predictions are mixtures of Gaussians, one component per draw of the parameters: means, variances and quantiles.

Shapes: `S` draws, then any.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from distlfm.inference.model import Model
from distlfm.inference.observations import Observations

SECANTS, BISECTIONS = 10, 50
"""Steps of the search for a quantile: secants at first, and all of them."""

AT_ONCE = 32_768
"""Numbers of which quantiles are sought together: few enough to stay in a core's cache through all bisections."""


@dataclass(frozen=True)
class Mixture:
    """Equal-weight mixture. means, variances: [S, ...]."""

    means: Tensor
    variances: Tensor

    @property
    def mean(self) -> Tensor:
        return self.means.mean(0)

    @property
    def variance(self) -> Tensor:
        return self.variances.mean(0) + self.means.var(0, correction=0)

    def quantile(self, level: float) -> Tensor:
        """The value below which the mixture has the probability `level`, [...], by a search."""
        count = len(self.means)
        if not bool(self.variances.any()):
            # Of points alone it is one of them, the same to which the bisection comes.
            return self._ordered[min(max(math.ceil(level * count - 1e-9), 1), count) - 1]
        pairs = (one.reshape(count, -1).split(max(1, AT_ONCE // count), 1) for one in (self.means, self.variances))
        found = [_sought(means.contiguous(), variances, level) for means, variances in zip(*pairs, strict=True)]
        return torch.cat(found).reshape(self.means.shape[1:])

    @cached_property
    def _ordered(self) -> Tensor:
        # Many times faster by numpy.
        return torch.from_numpy(np.sort(np.ascontiguousarray(self.means.flatten(1).T.numpy()), -1).T).reshape(
            self.means.shape
        )

    def interval(self, level: float) -> tuple[Tensor, Tensor]:
        """The central interval of probability `level`."""
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)


def _sought(means: Tensor, variances: Tensor, level: float) -> Tensor:
    """Quantiles [M] of mixtures [S, M]: secants, in brackets, of the normal score, which is nearly a line."""
    count, deviation = len(means), variances.sqrt()
    if not bool(deviation.any()):
        step: Tensor = means.sort(0).values[max(0, math.ceil(level * count - 1e-9) - 1)]
        return step
    low, high = (means - 9 * deviation).amin(0), (means + 9 * deviation).amax(0)
    scale = torch.maximum(deviation, 1e-12 * (high - low).clamp_min(1e-300))
    spread = (variances.mean(0) + means.var(0, correction=0)).sqrt().clamp_min(1e-300)
    target = torch.special.ndtri(torch.tensor(level, dtype=means.dtype))
    at, slope = means.mean(0) + target * spread, 1 / spread
    found: Tensor = at.clone()
    open_ones = torch.arange(len(at))
    before, score_before = at, torch.full_like(at, torch.nan)
    for tried in range(BISECTIONS):
        share = torch.special.ndtr((at - means) / scale).mean(0)
        low, high = torch.where(share < level, at, low), torch.where(share < level, high, at)
        score = torch.special.ndtri(share) - target
        steeper = (score - score_before) / (at - before)
        slope = torch.where(torch.isfinite(steeper) & (steeper > 0), steeper, slope)
        there = at - score / slope
        # Who has arrived stays there, also where rounding puts the next step a little outside the bracket.
        arrived = (there - at).abs() <= 1e-11 * spread
        within = ((there > low) & (there < high) & (tried < SECANTS)) | arrived
        before, score_before, at = at, score, torch.where(within, there, 0.5 * (low + high))
        found[open_ones] = at
        left = (at - before).abs() > 1e-11 * spread
        if not bool(left.any()):
            break
        if int(left.sum()) < 0.7 * len(left):
            rows = (low, high, spread, slope, before, score_before, at, open_ones)
            low, high, spread, slope, before, score_before, at, open_ones = (one[left] for one in rows)
            means, scale = means[:, left], scale[:, left]
    return found


@dataclass(frozen=True)
class Predicted:
    """force: mixture of [S, B, L, Q]; outputs: mixture of [S, B, P, Q], without measurement noise."""

    force: Mixture
    outputs: Mixture


@dataclass(frozen=True)
class Unknowns:
    """Weighted draws of z. proposals: [J, B, n]; weights: [J, B], summing to one over J."""

    proposals: Tensor
    weights: Tensor


class Posterior(ABC):
    """What a method knows of B instances after seeing their data.

    at_once: many times cost less together than apart. chains: those that the draws come from, one of each in turn.
    """

    at_once = False
    chains = 1
    method: str
    model: Model
    observations: Observations

    @abstractmethod
    def unknowns(self) -> Unknowns:
        """Draws of the unknowns z."""

    @abstractmethod
    def predict(self, rows: Tensor, times: Tensor) -> Predicted:
        """Force and outputs of the instances `rows` [A] at sorted times [A, Q], none before the first observation."""

    @abstractmethod
    def draw(self, rows: Tensor, times: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Joint draws at sorted times [A, Q].

        Returns forces [count, A, L, Q], the outputs they drive, [count, A, P, Q], and their unknowns z [count, A, n].
        """

    @abstractmethod
    def state(self) -> dict[str, Tensor]:
        """Tensors with a leading instance dimension, from which the method's `restore` makes the posterior anew."""


@dataclass(frozen=True)
class Fit:
    """What a method returns for B instances. bound: [B]; status: [B]; trace: [iterations, B]; effective: [B].

    rhat: [B], of the unknown on which chains agree least, where the draws are those of chains.
    tail: [B], the shape k̂ of the Pareto tail of the draws' weights, where they have any.
    doubts: why an instance's answer is not to be trusted, empty where there is no reason.
    notices: what a user should know of each instance whatever its status, empty where there is nothing to say.
    """

    posterior: Posterior
    bound: Tensor
    status: Tensor
    iterations: Tensor
    effective: Tensor
    trace: Tensor
    notices: tuple[str, ...] = ()
    tail: Tensor | None = None
    doubts: tuple[str, ...] = ()
    rhat: Tensor | None = None
