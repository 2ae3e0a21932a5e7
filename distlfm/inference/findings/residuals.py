"""What a fit leaves unexplained, and whether that has a shape: residuals that resemble their neighbours mean a wrong
equation, or of noise that is not independent.

Shapes: `n` observed values, `k` neighbours, `P` outputs, `d` space dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from torch import Tensor

from distlfm.inference.marginal import Marginal
from distlfm.inference.result import FitResult
from distlfm.instance import AXES, FloatArray

NUM_PERMUTATIONS, FIRST_PERMUTATIONS, ENOUGH = 1999, 199, 20
"""Random orders at most, of which the first are enough if as many as `ENOUGH` exceed what was found (Besag & Clifford
1991): a p-value far above what is flagged need not be known to three digits."""

CHUNK = 2_000_000
"""Products of neighbours that are computed at once."""

NUM_NEIGHBOURS = 6
"""Neighbours of a point of a field; a value of a series has the one before and the one after."""

LEAST_VALUES = 12
"""With fewer residuals there are too few orders to tell a shape from chance."""

LEAST_FREE = 0.05
"""A value has at least this share of the noise variance left as its residual's, however closely the fit follows it."""

HELD_FAST = 1e-9
"""Share of the noise variance below which a curve's variance means that the equation leaves the value no freedom."""

FLAGGED_P, DOUBTED_P, FLAGGED_STATISTIC = 0.001, 0.01, 0.1
OVERSTATED = 0.5


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
    """How alike neighbouring residuals are, and how alike their sizes.

    statistic: Moran's I, about the correlation of a residual with its neighbours; for a series the autocorrelation at
    lag one. size_statistic: the same of their absolute values, which is large where the misfit is a matter of place, as
    near a boundary, and a flexible force has left no trend. p_value, size_p_value: share of random orders of the
    residuals with a larger one. explained: share of the variance that the mean of the neighbours foretells.
    scale: root mean square of the standardised residuals, one if the noise is right.
    """

    statistic: float
    p_value: float
    size_statistic: float
    size_p_value: float
    explained: float
    scale: float
    in_space: bool

    @property
    def alike(self) -> bool:
        return self.p_value < FLAGGED_P and self.statistic > FLAGGED_STATISTIC

    @property
    def clustered(self) -> bool:
        return self.size_p_value < FLAGGED_P and self.size_statistic > FLAGGED_STATISTIC

    @property
    def flagged(self) -> bool:
        return self.alike or self.clustered

    @property
    def doubtful(self) -> bool:
        """Not flagged, and yet more alike than in most random orders."""
        found = ((self.p_value, self.statistic), (self.size_p_value, self.size_statistic))
        return not self.flagged and any(p < DOUBTED_P and size > FLAGGED_STATISTIC for p, size in found)

    @property
    def overstated(self) -> bool:
        """The noise is assumed to be so much larger than the residuals that their shape is that of the smoothing."""
        return self.scale < OVERSTATED

    def sentence(self) -> str:
        """The finding in words."""
        where = "in time and space" if self.in_space else "in time"
        signed = f"Moran's I {_signed(self.statistic)}, {_chance(self.p_value)}"
        sizes = f"Moran's I of their sizes {_signed(self.size_statistic)}, {_chance(self.size_p_value)}"
        if self.doubtful:
            return (
                f"Neighbouring residuals are somewhat alike {where} ({signed}; {sizes}), by more than chance mostly "
                "makes them: look at their picture before you trust the bands of the force."
            )
        if not self.flagged:
            return f"Residuals look independent of their neighbours {where} ({signed}; {sizes})."
        if self.alike:
            words = f"neighbours foretell {100 * self.explained:.0f} % of their variance"
            found = f"The misfit has structure: residuals resemble their neighbours {where} ({signed}; {words})"
        else:
            found = f"The misfit has structure: large residuals lie together {where} ({sizes})"
        if self.overstated:
            return (
                f"{found}, but it is only {self.scale:.2g} of the noise that is assumed. Smoothing exact data leaves "
                "such a shape too, so this alone does not speak against the equation: lower likelihood.floor, or the "
                "prior of the noise, to find out."
            )
        return (
            f"{found}. The equation, its boundary, its start or the mesh may be wrong by more than the noise, or the "
            "noise is not independent: do not trust the bands of the force."
        )


def _signed(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")


def _chance(p_value: float) -> str:
    return f"p < {FLAGGED_P:g}" if p_value < FLAGGED_P else f"p = {p_value:.2g}"


def residuals(result: FitResult) -> Residuals | None:
    """The residuals of a fit with Gaussian noise; None of others, and of one that failed.

    A residual is divided by √(noise² − sd²), sd being the fitted curve's: what a curve that follows the data leaves of
    the noise. It is the error of foretelling a value from all others, over its deviation. Values that the equation
    holds fast, as at a boundary, say nothing and are left out.
    """
    model, instance, found = result.posterior.model, result.instance, result.at_data
    size = len(instance.times)
    if not result.ok or not model.likelihood.gaussian or len(found.times) < size:
        return None
    row = torch.tensor([result.row])
    observations = result.posterior.observations.rows(row)
    unknowns = result.posterior.unknowns()
    middle = (unknowns.weights.unsqueeze(-1) * unknowns.proposals).sum(0)[row]
    with torch.no_grad():
        noise = model.noise_variance(model.space.unpack(middle), observations)[0, :, :size].numpy()
    fitted, variance = found.outputs.mean[:, :size], found.outputs.sd[:, :size] ** 2
    seen = observations.mask[0, :, :size].numpy() & np.isfinite(fitted) & (variance > HELD_FAST * noise)
    white = _innovations(result, middle, row)
    free = np.maximum(noise - variance, LEAST_FREE * noise)
    observed = observations.values[0, :, :size].numpy()
    output, column = np.nonzero(seen)
    return Residuals(
        values=((observed - fitted) / np.sqrt(free) if white is None else white[:, :size])[seen],
        times=instance.times[column],
        positions=None if instance.positions is None else instance.positions[column],
        output=output,
        fitted=fitted[seen],
        observed=observed[seen],
    )


def _innovations(result: FitResult, z: Tensor, row: Tensor) -> FloatArray | None:
    """What each datum adds to those before it [P, T], where errors wander; None where they do not.

    Residuals of such a fit hold the error that wanders, and are alike by right.
    """
    model, observations = result.posterior.model, result.posterior.observations.rows(row)
    if model.likelihood.drift is None:
        return None
    marginal, size = getattr(result.posterior, "marginal", None), len(result.instance.times)
    with torch.no_grad():
        if isinstance(marginal, Marginal):
            found = marginal.innovations(z, row)
            assert found is not None
            return found[0].numpy()
        factor = model.likelihood.noise_factor(model.space.unpack(z), observations)
        assert factor is not None
        off = observations.values.clone()
        off[0, :, :size] -= torch.from_numpy(result.at_data.outputs.mean[:, :size])
        off = torch.where(observations.mask, off, 0.0)
        white: Tensor = torch.linalg.solve_triangular(factor, off.unsqueeze(-1), upper=False)
        return white[0, ..., 0].numpy()


def structure(result: FitResult, seed: int = 0) -> Structure | None:
    """Whether neighbouring residuals are alike, by permutation; None where there are too few or none.

    The residuals of a right model are slightly unlike their neighbours, since the curve has followed both, so the test
    errs on the side of silence.
    """
    if result.misfit is not None:
        return result.misfit
    found = residuals(result)
    if found is None or len(found) < LEAST_VALUES:
        return None
    pairs = _field_pairs(result, found) if found.positions is not None else _series_pairs(found)
    if len(pairs) < LEAST_VALUES:
        return None
    groups = [np.flatnonzero(found.output == p) for p in np.unique(found.output)]
    signed = _moran(found.values, groups, pairs, seed)
    sizes = _moran(np.abs(found.values), groups, pairs, seed + 1)
    if signed is None or sizes is None:
        return None
    statistic, p_value, explained = signed
    size_statistic, size_p_value, _ = sizes
    scale = float(np.sqrt((found.values**2).mean()))
    in_space = found.positions is not None
    return Structure(statistic, p_value, size_statistic, size_p_value, explained, scale, in_space)


def _field_pairs(result: FitResult, found: Residuals) -> NDArray[np.intp]:
    """[m, 2]: each point with its nearest, lengths being counted in the force's lengthscales."""
    assert found.positions is not None
    points = np.column_stack([found.times, found.positions])
    lengths = _lengthscales(result, points)
    count = min(NUM_NEIGHBOURS, len(points) - 1)
    _, near = cKDTree(points / lengths).query(points / lengths, count + 1)
    first = np.repeat(np.arange(len(points)), count + 1)
    pairs = np.column_stack([first, near.ravel()])
    # Of points at one place the first found may be another one, so the point itself is left out by its number.
    others: NDArray[np.intp] = pairs[pairs[:, 0] != pairs[:, 1]]
    return others


def _lengthscales(result: FitResult, points: FloatArray) -> FloatArray:
    """[1 + d]: the force's, where it has one per dimension, else the extent of the data."""
    space = result.posterior.model.space
    extent = np.ptp(points, axis=0)
    name = f"{result.force_names[0]}.lengthscale"
    known: dict[str, float] = {}
    if name in [parameter.name for parameter in space.parameters]:
        known = dict(space[name].fixed)
        known |= {one.label: one.mean for one in result.estimates if one.parameter == name}
    labels = ("t", *AXES[: points.shape[1] - 1])
    lengths = np.array([known.get(label, np.nan) for label in labels])
    usable = np.isfinite(lengths).all() and (lengths > 0).all()
    return lengths if usable else np.where(extent > 0, extent, 1.0)


def _series_pairs(found: Residuals) -> NDArray[np.intp]:
    """[m, 2]: each value of an output with the next and the one before."""
    order = np.lexsort([found.times, found.output])
    first, second = order[:-1], order[1:]
    same = found.output[first] == found.output[second]
    pairs = np.column_stack([first[same], second[same]])
    return np.concatenate([pairs, pairs[:, ::-1]])


def _moran(
    given: FloatArray, groups: Sequence[NDArray[np.intp]], pairs: NDArray[np.intp], seed: int
) -> tuple[float, float, float] | None:
    """Moran's I of values [n] over pairs of neighbours [m, 2], its p-value against random orders, and the share of the
    variance that neighbours foretell; None where nothing varies.
    """
    values = given.copy()
    for group in groups:
        values[group] -= values[group].mean()
    total = float((values**2).sum())
    if not total > 0:
        return None
    first, second = pairs.T
    lag = np.bincount(first, values[second], len(values))
    together = float((values * lag).sum())
    generator = np.random.default_rng(seed)
    exceeding, done = 0, 0
    while done < NUM_PERMUTATIONS and exceeding < ENOUGH:
        count = min(NUM_PERMUTATIONS - done if done else FIRST_PERMUTATIONS, max(1, CHUNK // len(pairs)))
        shuffled = np.tile(values, (count, 1))
        for group in groups:
            # Outputs have errors of their own size: orders are drawn within each.
            shuffled[:, group] = generator.permuted(shuffled[:, group], axis=1)
        sums = np.einsum("sm,sm->s", shuffled[:, first], shuffled[:, second])
        exceeding += int((sums >= together).sum())
        done += count
    statistic = together * len(values) / len(pairs) / total
    explained = together**2 / (total * max(float((lag**2).sum()), 1e-300))
    return statistic, (1 + exceeding) / (1 + done), explained
