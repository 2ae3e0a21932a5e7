"""Joint draws of a posterior: each has its own parameters, its own force, and the outputs that this force drives.

Numbers that are made of a draw have a posterior too: integrals, peaks, time above a level, or any function. Their
curves are linear between the times of a draw.

Shapes: `S` draws, `L` forces, `P` outputs, `Q` times (or points of a field), `d` space dimensions.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from distlfm.answer import tables
from distlfm.config import nearest
from distlfm.errors import UsageError
from distlfm.instance import FloatArray

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


Number = TypeVar("Number", float, FloatArray)


@dataclass(frozen=True, repr=False)
class _Curves(Generic[Number]):
    times: FloatArray
    force: FloatArray
    outputs: FloatArray
    parameters: Mapping[str, Number] = field(default_factory=dict)
    force_names: tuple[str, ...] = ()
    output_names: tuple[str, ...] = ()
    positions: FloatArray | None = None

    @property
    def names(self) -> list[str]:
        """Names of the forces, then of the outputs."""
        return [*self.force_names, *self.output_names]

    def _named(self, name: str) -> Any:
        for names, curves in ((self.force_names, self.force), (self.output_names, self.outputs)):
            if name in names:
                return curves[..., names.index(name), :]
        if name in self.parameters:
            return self.parameters[name]
        known = [*self.names, *self.parameters]
        raise UsageError(f"There is no force, output or parameter {name!r}.", nearest(name, known))


class Draw(_Curves[float]):
    """One draw of force, outputs and parameters.

    times: [Q]. force: [L, Q]. outputs: [P, Q]. parameters: a number by name. force_names, output_names: of the L forces
    and the P outputs. positions: [Q, d] of a field, or None.

    `draw["p21"]` is the curve [Q] of the force or output of that name, and `draw["decay[p21]"]` a parameter's number.
    """

    def __getitem__(self, name: str) -> Any:
        return self._named(name)

    def __repr__(self) -> str:
        return f"<draw of {', '.join(self.names)} at {len(self.times)} points>"


class Draws(_Curves[FloatArray], Sequence[Draw]):
    """Joint draws of force, outputs and parameters.

    times: [Q]. force: [S, L, Q]. outputs: [S, P, Q]. parameters: [S] by name. force_names, output_names: of the L
    forces and the P outputs. positions: [Q, d] of a field, or None.

    A sequence of `Draw`: `draws[0]` is the first one, and `draws[:10]` are ten. `draws["p21"]` are the curves [S, Q] of
    a force or an output, and `draws["decay[p21]"]` the values [S] of a parameter.
    """

    def __len__(self) -> int:
        return len(self.force)

    @overload
    def __getitem__(self, index: int) -> Draw: ...
    @overload
    def __getitem__(self, index: slice | NDArray[Any]) -> Draws: ...
    @overload
    def __getitem__(self, index: str) -> FloatArray: ...
    def __getitem__(self, index: int | slice | NDArray[Any] | str) -> Draw | Draws | FloatArray:
        if isinstance(index, str):
            curves: FloatArray = self._named(index)
            return curves
        names = (self.force_names, self.output_names, self.positions)
        force, outputs = self.force[index], self.outputs[index]
        if not isinstance(index, int | np.integer):
            some = {name: values[index] for name, values in self.parameters.items()}
            return Draws(self.times, force, outputs, some, *names)
        one = {name: float(values[index]) for name, values in self.parameters.items()}
        return Draw(self.times, force, outputs, one, *names)

    def __repr__(self) -> str:
        where = f"at {len(self.times)} points, and of {len(self.parameters)} parameters"
        return f"<{len(self)} draws of {', '.join(self.names)} {where}>"

    def to_xarray(self) -> xr.Dataset:
        """Return the draws with named dimensions: `force`, `outputs`, and `parameters` by name."""
        return tables.draws_to_xarray(self)

    def to_frame(self) -> pd.DataFrame:
        """Return a table with a row for each curve, draw and time: kind, name, draw, time, places of a field, value.

        Parameters have one value in each draw: `pandas.DataFrame(draws.parameters)`.
        """
        return tables.draws_to_frame(self)


Functional = Callable[[Draw], Any]


@dataclass(frozen=True, repr=False)
class Summary:
    """The posterior of a functional.

    name: of the functional. values: [S, ...], of each draw. mean, sd: their mean and standard deviation. lower68,
    upper68, lower95, upper95: the ends of their central intervals of 68 and 95 %. All but `values` are numbers, or
    arrays of one shape where the functional gives arrays.
    """

    name: str
    values: FloatArray
    mean: Any
    sd: Any
    lower68: Any
    upper68: Any
    lower95: Any
    upper95: Any

    def __repr__(self) -> str:
        if np.ndim(self.mean):
            return f"<{self.name}: array of shape {np.shape(self.mean)}, from {len(self.values)} draws>"
        return f"<{self.name}: {self.mean:.4g} ± {self.sd:.2g}, 95 % from {self.lower95:.4g} to {self.upper95:.4g}>"


def summarise(draws: Draws, functional: Functional, name: str | None = None) -> Summary:
    """Apply `functional` to each draw, and return the mean, sd and central intervals of what it gives."""
    if not callable(functional):
        raise UsageError(
            f"The functional is {reprlib.repr(functional)}, and not a function of a draw.",
            'Give one at a time, such as PeakTime("p21"), or lambda draw: draw["p21"].max().',
        )
    called = name or getattr(functional, "name", None) or getattr(functional, "__name__", "functional")
    called = "functional" if called == "<lambda>" else str(called)
    given = [functional(draw) for draw in draws]
    try:
        values = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.zeros(0)
    if not len(values) or given[0] is None:
        raise UsageError(
            f"The functional gives {type(given[0]).__name__}, of which no interval can be made.",
            "Let it return a number, or an array of the same shape for each draw.",
        )
    lost = int((~np.isfinite(values)).reshape(len(values), -1).any(1).sum())
    if lost:
        raise UsageError(
            f"The functional gives no finite number for {lost} of {len(values)} draws, so that there is no mean.",
            "Let it return a number for each, such as the last time for a level that is never reached.",
        )
    ends = [np.quantile(values, level, axis=0) for level in (0.16, 0.84, 0.025, 0.975)]
    columns = [values.mean(0), values.std(0), *ends]
    return Summary(called, values, *(float(one) if np.ndim(one) == 0 else one for one in columns))


@dataclass(frozen=True)
class _OfCurve:
    """A number of a curve."""

    what: ClassVar[str]
    of: str | None = None
    start: float | None = None
    stop: float | None = None

    @property
    def name(self) -> str:
        return f"{self.what} of {self.of or 'the force'}"


class Integral(_OfCurve):
    """The area under a curve.

    of: the name of a force or an output; the first force by default. start, stop: the window, by default all times.

    >>> import numpy as np
    >>> curves = {"force": np.array([[0.0, 2.0, 0.0]]), "outputs": np.zeros((1, 3))}
    >>> draw = Draw(np.array([0.0, 1.0, 2.0]), **curves, force_names=("dose",), output_names=("p21",))
    >>> Integral()(draw), Integral("dose", stop=1.0)(draw)
    (2.0, 1.0)
    """

    what = "integral"

    def __call__(self, draw: Draw) -> float:
        """Return the area for one `draw`. Raises `UsageError` for a field, or a window beyond the draw's times."""
        times, curve = _window(draw, self.of, self.start, self.stop)
        return float(np.sum(np.diff(times) * (curve[1:] + curve[:-1]) / 2))


class PeakTime(_OfCurve):
    """The time at which a curve is highest. Among several highest times, the first one.

    of, start, stop: as for `Integral`.

    >>> import numpy as np
    >>> PeakTime()(Draw(np.array([0.0, 1.5, 2.0]), np.array([[0.0, 3.0, 1.0]]), np.zeros((0, 3)), {}, ("force",)))
    1.5
    """

    what = "time of the peak"

    def __call__(self, draw: Draw) -> float:
        """Return the time of the peak of one `draw`. Raises `UsageError` as `Integral` does."""
        times, curve = _window(draw, self.of, self.start, self.stop)
        return float(times[np.argmax(curve)])


class PeakHeight(_OfCurve):
    """The highest value of a curve.

    of, start, stop: as for `Integral`.
    """

    what = "height of the peak"

    def __call__(self, draw: Draw) -> float:
        """Return the height of the peak of one `draw`. Raises `UsageError` as `Integral` does."""
        return float(_window(draw, self.of, self.start, self.stop)[1].max())


@dataclass(frozen=True)
class Exceedance:
    """The length of time for which a curve is above a level, in the unit of the times.

    level: in the unit of the curve. of, start, stop: as for `Integral`.

    >>> import numpy as np
    >>> draw = Draw(np.array([0.0, 1.0, 2.0]), np.array([[0.0, 2.0, 0.0]]), np.zeros((0, 3)), {}, ("force",))
    >>> Exceedance(1.0)(draw)
    1.0
    """

    level: float
    of: str | None = None
    start: float | None = None
    stop: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.level, str):
            raise UsageError(f"The level is {self.level!r}.", f"Give a number first: Exceedance(1.0, {self.level!r}).")

    @property
    def name(self) -> str:
        return f"time of {self.of or 'the force'} above {self.level:g}"

    def __call__(self, draw: Draw) -> float:
        """Return the time above the level in one `draw`. Raises `UsageError` as `Integral` does."""
        times, curve = _window(draw, self.of, self.start, self.stop)
        low, high = np.minimum(curve[1:], curve[:-1]), np.maximum(curve[1:], curve[:-1])
        rise = np.where(high > low, high - low, 1.0)
        share = np.where(low >= self.level, high > self.level, np.clip((high - self.level) / rise, 0.0, 1.0))
        return float(np.sum(np.diff(times) * share))


def _window(draw: Draw, of: str | None, start: float | None, stop: float | None) -> tuple[FloatArray, FloatArray]:
    """Times and values of a curve between two times, both ends included."""
    if draw.positions is not None:
        raise UsageError(
            "This is a number of a curve over time, and a field has places too.",
            "Give a function of your own: it gets draw.times, draw.positions, draw.force and draw.outputs.",
        )
    order = np.argsort(draw.times, kind="stable")
    times, curve = draw.times[order], draw[of or draw.force_names[0]][order]
    first = times[0] if start is None else start
    last = times[-1] if stop is None else stop
    if not times[0] <= first < last <= times[-1]:
        raise UsageError(
            f"The window from {first:g} to {last:g} is not within the times, {times[0]:g} to {times[-1]:g}.",
            "Choose start and stop within them, or give summarise the times to draw at.",
        )
    within = times[(times > first) & (times < last)]
    wanted = np.concatenate([[first], within, [last]])
    return wanted, np.interp(wanted, times, curve)
