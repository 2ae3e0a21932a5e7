"""What a case is, how its data are made, and when its answer is right.

Data come from an integrator that shares no code with the product. Shapes: `P` outputs, `T` times, `Q` times of truth.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import solve_ivp

from distlfm.answer import Band
from distlfm.config import build
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system
from distlfm.mechanisms.base import System

GRID = 41
"""Times of the truth, evenly over the span."""

HELD, NEAR = 0.85, 2.0
"""Share of the truth's times at which the 95 % bands of force and curves must hold it; posterior deviations that both

may be off, in the root mean square: a smooth curve that is off at one time is off at its neighbours too."""

Rate = Callable[[float, FloatArray, float], Sequence[float]]
"""(t, y, force) → ẏ."""
Force = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Case:
    """A model, and data that it may be wrong for. make: the instance with its truth, from a seeded generator.

    told: whether nothing but `unreliable` will do, for every seed.
    """

    name: str
    system: Mapping[str, Any] | System
    make: Callable[[np.random.Generator], Instance]
    force: Mapping[str, Any] = field(default_factory=dict)
    likelihood: Mapping[str, Any] = field(default_factory=dict)
    inference: Mapping[str, Any] = field(default_factory=dict)
    seeds: int = 1
    slow: bool = False
    told: bool = False

    def fits(self) -> list[FitResult]:
        """One fit for each seed, all in one batch."""
        made = [self.make(np.random.default_rng(seed)) for seed in range(self.seeds)]
        instances = [replace(one, id=f"{self.name}-{seed}") for seed, one in enumerate(made)]
        outputs = instances[0].outputs
        system = self.system if isinstance(self.system, System) else build_system(dict(self.system), outputs)
        model = Model(system, build(ForceConfig, dict(self.force)), build(LikelihoodConfig, dict(self.likelihood)))
        field = {} if model.is_field else {"grid_points": GRID}
        return fit_instances(model, instances, build(InferenceConfig, {**field, **self.inference}))


def right(result: FitResult) -> bool:
    """Whether force and every output are where they are said to be: `HELD` of the truth's times lie within the band of

    95 %, or the truth is no farther from the mean than `NEAR` deviations, in the root mean square.
    """
    return all(share >= HELD or off <= NEAR for share, off in held(result).values())


def held(result: FitResult) -> dict[str, tuple[float, float]]:
    """Of the force and of each output: the share of times whose band holds the truth, and how far off it is."""
    truth = result.instance.truth
    assert truth is not None
    found = result.predict(truth.times, truth.positions)
    pairs = {}
    if truth.force is not None:
        pairs |= {name: (band, true) for name, band, true in _rows(result.force_names, found.force, truth.force)}
    if truth.outputs is not None:
        pairs |= {name: (band, true) for name, band, true in _rows(result.output_names, found.outputs, truth.outputs)}
    return {name: _compared(*pair) for name, pair in pairs.items() if not np.isnan(pair[1]).any()}


def _rows(names: Sequence[str], band: Band, truth: FloatArray) -> list[tuple[str, Band, FloatArray]]:
    single = [Band(*(getattr(band, field)[i] for field in Band.__dataclass_fields__)) for i in range(len(names))]
    return list(zip(names, single, truth, strict=True))


def _compared(band: Band, truth: FloatArray) -> tuple[float, float]:
    # A curve that the equation holds fast has no width, and the integrators differ by rounding.
    loose = 1e-6 * (1 + np.abs(truth))
    inside = (band.lower95 - loose <= truth) & (truth <= band.upper95 + loose)
    off = (band.mean - truth) / np.maximum(band.sd, loose)
    return float(inside.mean()), float(np.sqrt((off**2).mean()))


def curves(rate: Rate, force: Force, start: ArrayLike, times: FloatArray) -> FloatArray:
    """States [D, T] of ẏ = rate(t, y, force(t)) from `start` at the first time."""

    def slope(t: float, y: FloatArray) -> Sequence[float]:
        return rate(t, y, float(force(np.array(t))))

    span = (float(times[0]), float(times[-1]))
    step = (span[1] - span[0]) / 200
    solved = solve_ivp(slope, span, np.atleast_1d(start), "LSODA", times, rtol=1e-8, atol=1e-10, max_step=step)
    assert solved.success
    found: FloatArray = solved.y
    return found


def observed(
    rng: np.random.Generator,
    rate: Rate,
    force: Force,
    start: ArrayLike,
    times: FloatArray,
    noise: float,
    *,
    shown: Force | None = None,
    hidden: int = 0,
    scatter: Callable[[FloatArray], FloatArray] | None = None,
    variance: float | None = None,
) -> Instance:
    """An instance of the states after the first `hidden` ones, with normal noise or what `scatter` makes of curves.

    shown: the force as people are shown it, where that is another one.
    """
    even = np.linspace(times[0], times[-1], GRID)
    both = np.union1d(times, even)
    whole = curves(rate, force, start, both)[hidden:]
    seen, true = whole[:, np.searchsorted(both, times)], whole[:, np.searchsorted(both, even)]
    values = seen + noise * rng.standard_normal(seen.shape) if scatter is None else scatter(seen)
    truth = Truth(even, np.atleast_2d((shown or force)(even)), true)
    names = tuple(f"y{i}" for i in range(len(values)))
    given = None if variance is None else np.full_like(values, variance)
    return Instance("one", names, times, values, np.ones_like(values, dtype=bool), variance=given, truth=truth)
