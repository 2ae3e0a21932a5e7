"""One observed system: what a fit is given, and what a reader makes; and what its numbers are measured in.

A dimension is a product of powers of the units of values, times and positions. An equation names that of its parameters
and its force (`VALUE / TIME`); which units these are, the data say.

Shapes: `N` observation points, `P` outputs, `L` latent forces, `d` space dimensions.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distlfm.errors import DataError, Problem

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_SPELLED = {
    "s": ("sec", "secs", "second", "seconds"),
    "min": ("mins", "minute", "minutes"),
    "h": ("hr", "hrs", "hour", "hours"),
    "d": ("day", "days"),
}
_SHORT = {word: short for short, words in _SPELLED.items() for word in words}
_WORDS, _COMPOUND = re.compile(r"\s"), re.compile(r"[\s/*·^]")


@dataclass(frozen=True)
class Dimension:
    """Powers of each unit; all zero is a pure number. others: of units that data do not have, by their names."""

    value: int = 0
    time: int = 0
    position: int = 0
    others: tuple[tuple[str, int], ...] = ()

    def __mul__(self, other: Dimension) -> Dimension:
        powers = Counter(dict(self.others))
        powers.update(dict(other.others))
        return Dimension(
            self.value + other.value,
            self.time + other.time,
            self.position + other.position,
            tuple(sorted((name, power) for name, power in powers.items() if power)),
        )

    def __truediv__(self, other: Dimension) -> Dimension:
        return self * other**-1

    def __pow__(self, power: int) -> Dimension:
        others = tuple((name, one * power) for name, one in self.others if power)
        return Dimension(self.value * power, self.time * power, self.position * power, others)

    def unit(self, units: Mapping[str, str | None]) -> str | None:
        """In words, such as `mg/dL/min`, from the units of `value`, `time` and `position`.

        None for a pure number, and where one that is needed is not known.
        """
        powers = {"value": self.value, "time": self.time, "position": self.position}
        needed = {name: power for name, power in powers.items() if power}
        if any(not units.get(name) for name in needed):
            return None
        factors = [(str(units[name]).strip(), power) for name, power in needed.items()] + [*self.others]
        factors = [(text, power) for text, power in factors if text != "1"]
        common = math.gcd(*(power for _, power in factors))
        if len(factors) > 1 and common > 1:
            return _raised(_product([(text, power // common) for text, power in factors]), common)
        return _product(factors) if factors else None


def same_unit(one: str, other: str) -> bool:
    """Whether two names are of one unit, as `hours` and `h`, or `mg/dl` and `mg/dL`. Nothing else is known of units."""
    return _plain(one) == _plain(other)


def _plain(unit: str) -> str:
    parts = re.split(r"([/*·^()])", "".join(unit.split()).casefold())
    return "".join(_SHORT.get(part, part) for part in parts)


def _product(factors: Sequence[tuple[str, int]]) -> str:
    alone = len(factors) == 1
    above = [_raised(text, power, alone=alone) for text, power in factors if power > 0]
    below = [_raised(text, -power, below=True) for text, power in factors if power < 0]
    return "/".join(["·".join(above) or "1", *below])


def _raised(text: str, power: int, *, alone: bool = False, below: bool = False) -> str:
    """A unit to a power, in brackets where it would be read in another way."""
    doubtful = _COMPOUND if power != 1 or below else _WORDS
    whole = f"({text})" if doubtful.search(text) and not (alone and power == 1) else text
    return whole if power == 1 else f"{whole}{str(power).translate(_RAISED)}"


NUMBER = Dimension()
VALUE, TIME, POSITION = Dimension(value=1), Dimension(time=1), Dimension(position=1)
RATE = VALUE / TIME
"""How fast an output changes."""


def named(unit: str) -> Dimension:
    """A unit that data do not have: `named("L")` of a volume, `named("mg") / TIME` of a rate of infusion."""
    return Dimension(others=((unit, 1),))


FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


def numbers(given: object) -> FloatArray:
    """Return a list or an array as floats, NaN where NumPy masks it. Raises `TypeError` or `ValueError` for others."""
    if np.asanyarray(given).dtype.kind in "mMc":
        raise TypeError("dates would be counted in nanoseconds, and imaginary parts lost")
    array: Any = np.ma.array(given, dtype=np.float64, copy=False)  # type: ignore[no-untyped-call]
    return array.filled(np.nan) if array.mask.any() else np.asarray(given, dtype=np.float64)


MIN_TIMES = 2
AXES = ("x", "y", "z")
"""Names of the space dimensions of a field."""


@dataclass(frozen=True, repr=False)
class Truth:
    """The truth of an instance, which a simulation knows and a fit never sees. It is there for scoring only.

    times: [n]. force: [L, n], or None where it is not known. outputs: [P, n] without noise, or None. positions: [n, d]
    of a field, or None. parameters: natural values [K] by name. scored: [n], True where outputs are compared; None is
    everywhere. measured: outputs have noise of their own, as they are observations that were held back.
    """

    times: FloatArray
    force: FloatArray | None = None
    outputs: FloatArray | None = None
    positions: FloatArray | None = None
    parameters: Mapping[str, FloatArray] = field(default_factory=dict)
    scored: BoolArray | None = None
    measured: bool = False

    def __repr__(self) -> str:
        known = [name for name in ("force", "outputs", "positions") if getattr(self, name) is not None]
        return f"<Truth at {len(self.times)} times: {', '.join([*known, f'{len(self.parameters)} parameters'])}>"


@dataclass(frozen=True)
class Instance:
    """Observations of one system. Lists will do for arrays; they are made arrays.

    id: a name that is unique in a fleet; a whole number is made text. outputs: names of the P outputs.
    times: [N], strictly increasing when there are no positions, else non-decreasing.
    values: [P, N], finite; zero where nothing was observed.
    mask: [P, N], True where a value was observed; by default wherever `values` has a number, and not where it is NaN or
    masked by NumPy.
    positions: [N, d] or None.
    variance: [P, N] variance of the measurement noise, or None where it is to be learned.
    truth: what a simulation knows of it, for scoring; None of real data.
    metadata: texts by name, such as `time_unit` and `value_unit`, which are shown beside results.

    Raises `DataError` if shapes do not fit together, or a number is not usable.

    One output alone may be given by its name and a list of N values:

    >>> Instance("A", "p21", [0, 2, 4], [0.9, 2.4, float("nan")]).mask
    array([[ True,  True, False]])
    """

    id: str
    outputs: tuple[str, ...]
    times: FloatArray
    values: FloatArray
    mask: BoolArray = field(default=None)  # type: ignore[arg-type]
    positions: FloatArray | None = None
    variance: FloatArray | None = None
    truth: Truth | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    if TYPE_CHECKING:

        def __init__(
            self,
            id: str,
            outputs: str | Sequence[str],
            times: ArrayLike,
            values: ArrayLike,
            mask: ArrayLike | None = None,
            positions: ArrayLike | None = None,
            variance: ArrayLike | None = None,
            truth: Truth | None = None,
            metadata: Mapping[str, str] = ...,
        ) -> None: ...

    def __repr__(self) -> str:
        names = ", ".join(self.outputs[:4]) + (f" and {len(self.outputs) - 4} more" if len(self.outputs) > 4 else "")
        times = f"{self.num_times} times from {self.times[0]:g} to {self.times[-1]:g}"
        return f"<Instance {self.id!r}: {names}; {times}; {int(self.mask.sum())} values>"

    def __post_init__(self) -> None:
        self._as_arrays()
        shape = (len(self.outputs), len(self.times))
        for name, array in (("values", self.values), ("mask", self.mask), ("variance", self.variance)):
            if array is not None and array.shape != shape:
                self._refuse(
                    f"{name} has shape {array.shape}, and {shape[0]} outputs at {shape[1]} points need {shape}.",
                    "Give one row per output and one column per observation point.",
                )
        if self.positions is not None and (self.positions.ndim != 2 or len(self.positions) != len(self.times)):
            self._refuse(
                f"positions has shape {self.positions.shape} for {len(self.times)} observation points.",
                "Give an array of shape [points, dimensions].",
            )
        for name, array in (("time", self.times), ("position", self.positions)):
            if array is not None and not np.isfinite(array).all():
                self._refuse(f"A {name} is not finite.", f"Remove the row, or write the {name} as a number.")
        wrong = np.argwhere(self.mask & ~np.isfinite(self.values))
        if len(wrong):
            row, at = wrong[0]
            self._refuse(
                f"An observed value is not finite: {self.values[row, at]:g}, of {self.outputs[row]} at "
                f"{self.times[at]:g}.",
                "Where nothing was observed, give NaN and no mask, or a mask that is false there.",
            )
        if not self.mask.any():
            self._refuse("There is no observed value.", "Give at least two observed time points.")
        if self.num_times < MIN_TIMES:
            self._refuse(
                f"There is only one time point ({self.times[0]:g}).",
                "A force cannot be inferred from one time: give at least two.",
            )
        steps = np.diff(self.times)
        if self.positions is None and (steps <= 0).any():
            at = int(np.argmax(steps <= 0))
            self._refuse(
                f"Times do not increase: {self.times[at]:g} is followed by {self.times[at + 1]:g}.",
                "Sort the times and merge duplicates.",
            )
        if self.variance is not None:
            noise = self.variance[self.mask]
            if not np.isfinite(noise).all() or (noise < 0).any():
                self._refuse(
                    "A noise variance is negative or not finite.",
                    "Give the variance (not its logarithm) of each observed value, or leave the column out.",
                )

    def _as_arrays(self) -> None:
        """Make arrays of lists, a mask where none is given, and text of an id that is a whole number."""
        if not isinstance(self.id, str):
            if isinstance(self.id, bool) or not isinstance(self.id, int | np.integer):
                self._refuse("The id is not text.", 'Give a name, such as "sample-1".')
            vars(self)["id"] = str(self.id)
        alone = isinstance(self.outputs, str)
        outputs = (self.outputs,) if alone else tuple(() if self.outputs is None else self.outputs)
        if not outputs or len(set(outputs)) < len(outputs) or not all(isinstance(name, str) for name in outputs):
            self._refuse(f"outputs is {self.outputs!r}.", 'Give the name of each output, as in ["p21", "mdm2"].')
        times, values = self._numbers("times", self.times), self._numbers("values", self.values)
        mask = None if self.mask is None else np.asarray(self.mask)
        positions = None if self.positions is None else self._numbers("positions", self.positions)
        variance = None if self.variance is None else self._numbers("variance", self.variance)
        if times.ndim != 1:
            self._refuse(f"times has shape {times.shape}.", "Give a list of numbers, one for each observation point.")
        if alone:
            values = np.atleast_2d(values)
            mask = None if mask is None else np.atleast_2d(mask)
            variance = None if variance is None else np.atleast_2d(variance)
        if mask is None:
            mask = ~np.isnan(values)
            values = np.where(mask, values, 0.0)
        elif mask.dtype != np.bool_:
            if not np.isin(mask, (0, 1)).all():
                self._refuse("mask holds something else than true and false.", "Give true where a value was observed.")
            mask = mask.astype(np.bool_)
        arrays = {"times": times, "values": values, "mask": mask, "positions": positions, "variance": variance}
        vars(self).update(outputs=outputs, **arrays)  # the class is frozen for others

    def _numbers(self, name: str, given: Any) -> FloatArray:
        try:
            return numbers(given)
        except (TypeError, ValueError):
            pass
        self._refuse(
            f"{name} is not an array of numbers.",
            "Give numbers, in lists of equal length, with NaN where nothing was observed; times are counted from a "
            "start, not dates.",
        )

    def _refuse(self, what: str, fix: str) -> NoReturn:
        raise DataError(Problem(what, fix, instance=str(self.id)))

    @property
    def num_times(self) -> int:
        return len(np.unique(self.times))

    @property
    def num_outputs(self) -> int:
        return len(self.outputs)

    def blind(self) -> Instance:
        """Return the same observations without the truth: all that a fit is handed."""
        return replace(self, truth=None)

    def thinned(self, stride: int) -> Instance:
        """Return the instance with every `stride`-th observation point; the truth stays whole."""
        return self.kept(slice(None, None, stride))

    def sampled(self, fraction: float, seed: int) -> Instance:
        """Return the instance with some of its observation points, drawn at random.

        fraction: share of the points to keep, at least two points. seed: of the draw. Outputs are scored at the other
        points, by the data if no truth is known.
        """
        count = len(self.times)
        kept = np.sort(np.random.default_rng(seed).permutation(count)[: max(2, round(fraction * count))])
        truth = self.truth or Truth(self.times, positions=self.positions)
        if truth.outputs is None:
            truth = replace(truth, outputs=np.where(self.mask, self.values, np.nan), measured=True)
        aligned = len(truth.times) == count and np.array_equal(truth.times, self.times)
        scored = ~np.isin(np.arange(count), kept) if aligned else None
        return replace(self.kept(kept), truth=replace(truth, scored=scored))

    def observed(self) -> Instance:
        """Return the instance without the points at which no output was observed; the truth stays whole."""
        seen = self.mask.any(0)
        return self if seen.all() else self.kept(seen)

    def kept(self, keep: slice | NDArray[np.intp] | BoolArray) -> Instance:
        """Return the instance with some of its observation points only; the truth stays whole.

        keep: a slice, indices, or a mask [N]. Raises `DataError` if fewer than two times or no observed value are left.
        """
        return replace(
            self,
            times=self.times[keep],
            values=self.values[:, keep],
            mask=self.mask[:, keep],
            positions=None if self.positions is None else self.positions[keep],
            variance=None if self.variance is None else self.variance[:, keep],
        )
