"""Whether innovations are white: what each datum of a series adds to those before it, in its deviations.

If the equation, its priors and the noise are right, innovations are independent standard normal numbers, for however
much data a flexible force has followed; residuals of the fitted curve are not. So they show what residuals hide: one
output that others foretell badly, a value that nothing led up to, noise that grows with its curve.

They depend on the unknowns, so some draws of these are asked, and the one in the middle counts: far fewer than half of
them fail a test if the model is right.

Shapes: `D` draws of the unknowns, `P` outputs, `T` times, `n` innovations of one output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import lru_cache

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

DRAWS, LONG = 5, 1500
"""Draws of the unknowns that are asked, and the number of values from which one is, where matrices are dense. It is a
draw and not their mean, which lies beside a bent ridge and is no value that the data leave possible.
"""

SHORT, TRIALS = 60, 40_000
"""With fewer values the law of autocorrelations is that of so many series of random numbers."""


class Note(str):
    """What is to be known, and no reason to doubt the answer."""

    __slots__ = ()


def innovations(result: FitResult) -> FloatArray | None:
    """[D, P, T] of a fit whose force is integrated out; None of others."""
    marginal, count = getattr(result.posterior, "marginal", None), int(result.instance.mask.sum())
    if not isinstance(marginal, Marginal) or result.instance.positions is not None:
        return None
    if count > MOST_VALUES and result.method != "filter":
        return None
    z = _typical(result, DRAWS if count < LONG or result.method == "filter" else 1)
    with torch.no_grad():
        found = marginal.innovations(z, torch.full((len(z),), result.row))
    return None if found is None else found[..., : len(result.instance.times)].numpy()


def _typical(result: FitResult, count: int) -> Tensor:
    """Draws [D, n] of the unknowns, of equal weight."""
    unknowns = result.posterior.unknowns()
    proposals, weights = unknowns.proposals[:, result.row], unknowns.weights[:, result.row]
    marks = (torch.arange(count, dtype=weights.dtype) + 0.5) / count
    return proposals[torch.searchsorted(weights.cumsum(0), marks).clamp_max(len(weights) - 1)]


def surprises(white: FloatArray, result: FitResult, *, both_ways: bool = True) -> Iterator[str]:
    """What is not as it should be, in words.

    white: [D, P, T], innovations; or residuals as white as can be had, not `both_ways`: a curve that follows its data
    leaves residuals that are unlike their neighbours, and the size of a single one says nothing.
    """
    observed = result.posterior.observations.mask[result.row, :, : len(result.instance.times)].numpy()
    seen, names = observed & np.isfinite(white).all(0), result.output_names
    chance = CHANCE / len(names)
    for p in np.flatnonzero(seen.sum(-1) >= LEAST_VALUES):
        own, of = white[:, p, seen[p]], f" of {names[p]!r}" if len(names) > 1 else ""
        largest = float(np.median(np.abs(own).max(-1)))
        if both_ways and largest > _largest(own.shape[-1], chance):
            when = result.instance.times[seen[p]][np.abs(own).mean(0).argmax()]
            words = (
                f"The value{of} at {when:g} lies {largest:.0f} deviations from what all before it foretell: an "
                "outlier, a jump of force or sensor, or a wrong start. Leave the value out, let the start be learned "
                "(mechanism.initial=free), or take a rougher force (force.kernel.kind=matern12)."
            )
            # Beside an error that wanders bands hold what they say all the same (`python -m benchmarks sensors`).
            wanders = result.posterior.model.likelihood.drift is not None
            yield Note(words) if wanders else words
        elif np.median([correlated(one, both_ways=both_ways) for one in own]) < chance:
            yield (
                f"What each value{of} adds to those before it depends on the last ones: the equation, a value that "
                "is held fast in it, the order of the outputs or the noise is wrong, by more than chance. Correct the "
                "equation, let likelihood.drift take an error that wanders, or widen the priors."
            )
        else:
            level = result.at_data.outputs.mean[p, : len(seen[p])][seen[p]]
            grows = float(np.median([_growth(one, level) for one in own]))
            if grows * math.sqrt(own.shape[-1] - 1) > -ndtri(chance):
                yield (
                    f"The noise{of} grows with the level of the curve (rank correlation {grows:.2f}), and is taken as "
                    "the same everywhere. Set likelihood.relative to a prior, or give variances."
                )


def _largest(count: int, chance: float) -> float:
    """What the largest of `count` standard normal numbers exceeds with this chance."""
    return float(-ndtri(0.5 * chance / count))


def correlated(white: FloatArray, *, both_ways: bool = True) -> float:
    """The chance of first autocorrelations of white [n] that are together as large (Ljung & Box 1978)."""
    alike, any_way = _lagged(white[None])
    if len(white) < SHORT:
        sums, squares = _by_chance(len(white))
        chances = [1 - np.searchsorted(law, one[0]) / TRIALS for law, one in ((sums, alike), (squares, any_way))]
    else:
        chances = [float(ndtr(-alike[0])), float(chdtrc(LAGS, any_way[0]))]
    return float(min(1.0, 2 * min(chances)) if both_ways else chances[0])


def _lagged(white: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sum of the first autocorrelations of each series [S, n], and of their squares, both in their deviations, [S]."""
    count, total = white.shape[-1], np.maximum((white**2).sum(-1), 1e-300)
    lags = range(1, LAGS + 1)
    each = np.stack([(white[:, lag:] * white[:, :-lag]).sum(-1) / total for lag in lags])
    each *= np.sqrt([[count * (count + 2) / (count - lag)] for lag in lags])
    return each.sum(0) / math.sqrt(LAGS), (each**2).sum(0)


@lru_cache(maxsize=64)
def _by_chance(count: int) -> tuple[FloatArray, FloatArray]:
    """Both figures of independent numbers, in order."""
    sums, squares = _lagged(np.random.default_rng(0).standard_normal((TRIALS, count)))
    return np.sort(sums), np.sort(squares)


def _growth(white: FloatArray, level: FloatArray) -> float:
    """The rank correlation of |white| [n] with |level| [n]."""
    if not np.isfinite(level).all() or np.ptp(level) == 0:
        return 0.0
    ranks = [np.argsort(np.argsort(np.abs(one))).astype(float) for one in (white, level)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])
