"""Predictions as mixtures of Gaussians, one component a draw of the parameters: means, variances and quantiles.

Shapes: `S` draws, then any.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

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
        pairs = (one.reshape(count, -1).split(max(1, AT_ONCE // count), 1) for one in (self.means, self.variances))
        found = [_bisected(means.contiguous(), variances, level) for means, variances in zip(*pairs, strict=True)]
        return torch.cat(found).reshape(self.means.shape[1:])

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
