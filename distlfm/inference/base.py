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

BISECTIONS = 40
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
        """The value below which the mixture has the probability `level`, [...], by bisection of its distribution."""
        count = len(self.means)
        if not bool(self.variances.any()):
            # Of points alone it is one of them, the same to which the bisection comes.
            return self._ordered[min(max(math.ceil(level * count - 1e-9), 1), count) - 1]
        pairs = (one.reshape(count, -1).split(max(1, AT_ONCE // count), 1) for one in (self.means, self.variances))
        found = [_bisected(means.contiguous(), variances, level) for means, variances in zip(*pairs, strict=True)]
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


def _bisected(means: Tensor, variances: Tensor, level: float) -> Tensor:
    """Quantiles [M] of mixtures [S, M]."""
    deviation = variances.sqrt()
    low = (means - 9 * deviation).amin(0)
    high = (means + 9 * deviation).amax(0)
    floor = 1e-12 * (high - low).clamp_min(1e-300)
    scale = torch.maximum(deviation, floor)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        below = torch.special.ndtr((middle - means) / scale).mean(0) < level
        low, high = torch.where(below, middle, low), torch.where(below, high, middle)
    return 0.5 * (low + high)


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
    """What a method knows of B instances after seeing their data. at_once: many times cost less together than apart."""

    at_once = False
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
