"""Whether innovations are white: what each datum of a series adds to those before it, in its deviations.

If the equation, its priors and the noise are right, innovations are independent standard normal numbers, for however
much data a flexible force has followed; residuals of the fitted curve are not. So they show what residuals hide: one
output that others foretell badly, a value that nothing led up to, noise that grows with its curve.

Shapes: `P` outputs, `T` times, `n` innovations of one output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from scipy.special import chdtrc, ndtr, ndtri
from torch import Tensor

from distlfm.inference.marginal import Marginal
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray

CHANCE = 2e-4
"""By which an instance fails one of these tests if its model is right; there are some for each output."""

LEAST_VALUES = 10
"""An output with fewer says nothing of lags, and of the noise that was learned from it."""

LAGS = 3

MOST_VALUES = 4096
"""Of longer series whose matrices are dense, innovations are not computed."""


def innovations(result: FitResult, z: Tensor) -> FloatArray | None:
    """[P, T] of a fit whose force is integrated out, at unknowns z [1, n]; None of others."""
    marginal = getattr(result.posterior, "marginal", None)
    if not isinstance(marginal, Marginal) or result.instance.positions is not None:
        return None
    if result.instance.mask.sum() > MOST_VALUES and result.method != "filter":
        return None
    with torch.no_grad():
        found = marginal.innovations(z, torch.tensor([result.row]))
    return None if found is None else found[0, :, : len(result.instance.times)].numpy()


def surprises(white: FloatArray, result: FitResult, *, both_ways: bool = True) -> Iterator[str]:
    """What is not as it should be, in words.

    white: [P, T], innovations; or residuals as white as can be had, not `both_ways`: a curve that follows its data
    leaves residuals that are unlike their neighbours.
    """
    seen, names = result.instance.mask & np.isfinite(white), result.output_names
    chance = CHANCE / len(names)
    tested = [p for p in range(len(names)) if seen[p].sum() >= LEAST_VALUES]
    for p in tested:
        own, of = white[p][seen[p]], f" of {names[p]!r}" if len(names) > 1 else ""
        if (largest := np.abs(own).max()) > _largest(len(own), chance):
            when = result.instance.times[seen[p]][np.abs(own).argmax()]
            yield (
                f"The value{of} at {when:g} lies {largest:.0f} deviations from what all before it foretell: an "
                "outlier, a jump of force or sensor, or a wrong start. Leave the value out, let the start be learned "
                "(mechanism.initial=free), or take a rougher force (force.kernel.kind=matern12)."
            )
        elif correlated(own, both_ways=both_ways) < chance:
            yield (
                f"What each value{of} adds to those before it depends on the last ones: the equation, a value that "
                "is held fast in it, the order of the outputs or the noise is wrong, by more than chance. Correct the "
                "equation, let likelihood.drift take an error that wanders, or widen the priors."
            )
        elif (grows := _growth(own, result.at_data.outputs.mean[p, : len(seen[p])][seen[p]], chance)) > 0:
            yield (
                f"The noise{of} grows with the level of the curve (rank correlation {grows:.2f}), and is taken as the "
                "same everywhere. Set likelihood.relative to a prior, or give variances."
            )


def _largest(count: int, chance: float) -> float:
    """What the largest of `count` standard normal numbers exceeds with this chance."""
    return float(-ndtri(0.5 * chance / count))


def correlated(white: FloatArray, *, both_ways: bool = True) -> float:
    """The chance of first autocorrelations of white [n] that are together as large (Ljung & Box 1978)."""
    count, total = len(white), float(white @ white)
    lags = range(1, min(LAGS, count - 1) + 1)
    if not total > 0:
        return 1.0
    each = [float(white[lag:] @ white[:-lag]) / total * math.sqrt(count * (count + 2) / (count - lag)) for lag in lags]
    alike = float(ndtr(-sum(each) / math.sqrt(len(each))))
    return min(1.0, 2 * min(alike, float(chdtrc(len(each), sum(one**2 for one in each))))) if both_ways else alike


def _growth(white: FloatArray, level: FloatArray, chance: float) -> float:
    """The rank correlation of |white| [n] with |level| [n] if it is beyond chance, else zero."""
    ranks = [np.argsort(np.argsort(np.abs(one))).astype(float) for one in (white, level)]
    if not np.isfinite(level).all() or np.ptp(level) == 0:
        return 0.0
    found = float(np.corrcoef(ranks[0], ranks[1])[0, 1])
    return found if found * math.sqrt(len(white) - 1) > -ndtri(chance) else 0.0
