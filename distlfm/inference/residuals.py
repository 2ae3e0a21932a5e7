"""What a fit leaves unexplained, and whether that has a shape: residuals that resemble their neighbours tell of a wrong
equation, or of noise that is not independent.

Shapes: `n` observed values, `k` neighbours, `P` outputs, `d` space dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray

NUM_PERMUTATIONS = 4999
NUM_NEIGHBOURS = 6
"""Neighbours of a point of a field; a value of a series has the one before and the one after."""

LEAST_VALUES = 12
"""With fewer residuals there are too few orders to tell a shape from chance."""

LEAST_FREE = 0.05
"""A value has at least this share of the noise variance left as its residual's, however closely the fit follows it."""

FLAGGED_P, FLAGGED_STATISTIC = 0.001, 0.1
_CHUNK = 2_000_000


@dataclass(frozen=True)
class Residuals:
    """Standardised residuals [n] of the fitted values: with a right model each has variance one.

    times: [n]; positions: [n, d] or None; output: [n], the row of `at_data.outputs`; fitted, observed: [n].
    """

    values: FloatArray
    times: FloatArray
    positions: FloatArray | None
    output: NDArray[np.intp]
    fitted: FloatArray
    observed: FloatArray

    def __len__(self) -> int:
        return len(self.values)


@dataclass(frozen=True)
class Structure:
    """How alike neighbouring residuals are.

    statistic: Moran's I, the correlation of a residual with the mean of its neighbours' scaled to lie about between −1
    and 1; for a series the autocorrelation at lag one. p_value: share of random orders of the residuals with a larger
    one. explained: share of the residuals' variance that the mean of the neighbours foretells.
    """

    statistic: float
    p_value: float
    explained: float
    num_values: int
    in_space: bool

    @property
    def flagged(self) -> bool:
        return self.p_value < FLAGGED_P and self.statistic > FLAGGED_STATISTIC

    def sentence(self) -> str:
        """The finding in words."""
        where = "in time and space" if self.in_space else "in time"
        chance = f"p {'<' if self.p_value < FLAGGED_P else '='} {max(self.p_value, FLAGGED_P):.3g}"
        if not self.flagged:
            return f"Residuals look independent of their neighbours {where} (Moran's I {self.statistic:.2f}, {chance})."
        return (
            f"The misfit has structure: residuals resemble their neighbours {where} (Moran's I {self.statistic:.2f}, "
            f"{chance}; neighbours foretell {100 * self.explained:.0f} % of their variance). The equation, its boundary "
            "or its start may be wrong, or the noise is not independent; the bands of the force do not allow for that."
        )
