"""Answers as data frames, as arrays with named dimensions, and for ArviZ."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from distlfm.answer.parameters import COLUMNS
from distlfm.instance import AXES, FloatArray
from distlfm.optional import require

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from arviz import InferenceData

    from distlfm.answer.base import Answer, Band
    from distlfm.answer.draws import Draws


def to_frame(answer: Answer) -> pd.DataFrame:
    """One row for each curve and time."""
    return _joined(
        {"kind": kind, "name": name, **_places(answer), **{column: getattr(band, column)[i] for column in COLUMNS}}
        for kind, names, band in _curves(answer)
        for i, name in enumerate(names)
    )


def draws_to_frame(draws: Draws) -> pd.DataFrame:
    """One row for each curve, draw and time."""
    count, points = len(draws), len(draws.times)
    places = {name: np.tile(values, count) for name, values in _places(draws).items()}
    number = np.repeat(np.arange(count), points)
    return _joined(
        {"kind": kind, "name": name, "draw": number, **places, "value": curves[:, i].ravel()}
        for kind, names, curves in (
            ("force", draws.force_names, draws.force),
            ("output", draws.output_names, draws.outputs),
        )
        for i, name in enumerate(names)
    )


def _joined(parts: Iterable[dict[str, Any]]) -> pd.DataFrame:
    import pandas

    frame: pd.DataFrame = pandas.concat([pandas.DataFrame(part) for part in parts], ignore_index=True)
    return frame


def _places(of: Answer | Draws) -> dict[str, FloatArray]:
    """The columns of times, and of the places of a field."""
    places = () if of.positions is None else of.positions.T
    return {"time": of.times, **dict(zip(AXES, places, strict=False))}


def to_xarray(answer: Answer) -> xr.Dataset:
    """Bands `force_mean`, …, `outputs_upper95`, `parameter_mean`, …, and what was observed."""
    import xarray

    place = _Place(answer.times, answer.positions)
    variables: dict[str, Any] = {}
    for kind, _, band in _curves(answer):
        what = "force" if kind == "force" else "outputs"
        for column in COLUMNS:
            variables[f"{what}_{column}"] = ((kind, *place.dims), place.shaped(getattr(band, column)))
    for column in COLUMNS:
        numbers = [getattr(one, column) for one in answer.parameters.values()]
        variables[f"parameter_{column}"] = ("parameter", np.array(numbers, dtype=np.float64))
    coordinates = {**place.coordinates, "force": list(answer.force_names), "parameter": list(answer.parameters)}
    if answer.has_outputs or answer.instance is not None:
        coordinates["output"] = list(answer.output_names)
    attributes: dict[str, Any] = {"id": answer.id, "answer": answer._headline()}
    instance = answer.instance
    if instance is not None:
        rows = [instance.outputs.index(name) if name in instance.outputs else None for name in answer.output_names]
        seen = np.where(instance.mask, instance.values, np.nan)
        lost = np.full(len(instance.times), np.nan)
        observed = np.stack([lost if row is None else seen[row] for row in rows])
        variables["observed"] = (("output", "observation"), observed)
        coordinates["observed_time"] = ("observation", instance.times)
        if instance.positions is not None:
            for k in range(instance.positions.shape[1]):
                coordinates[f"observed_{AXES[k]}"] = ("observation", instance.positions[:, k])
        attributes |= {key: value for key, value in instance.metadata.items() if key.endswith("_unit")}
    return xarray.Dataset(variables, coordinates, attributes)


def draws_to_xarray(draws: Draws) -> xr.Dataset:
    """`force`, `outputs` and each parameter over the dimension `draw`."""
    import xarray

    place = _Place(draws.times, draws.positions)
    variables: dict[str, Any] = {
        "force": (("draw", "force_name", *place.dims), place.shaped(draws.force)),
        "outputs": (("draw", "output_name", *place.dims), place.shaped(draws.outputs)),
    }
    variables |= {name: ("draw", values) for name, values in draws.parameters.items()}
    coordinates = {
        **place.coordinates,
        "force_name": list(draws.force_names),
        "output_name": list(draws.output_names),
        "draw": np.arange(len(draws)),
    }
    return xarray.Dataset(variables, coordinates)


def to_arviz(answer: Answer, count: int, seed: int) -> InferenceData:
    """Joint draws as ArviZ's chains, with the observations."""
    import xarray

    arviz = require("arviz", "arviz")
    chains = answer.chains
    length = -(-count // chains)
    drawn = answer.draws(length * chains, seed=seed).to_xarray()
    parts = [drawn.isel(draw=slice(i, None, chains)).assign_coords(draw=np.arange(length)) for i in range(chains)]
    posterior = xarray.concat(parts, "chain").assign_coords(chain=np.arange(chains))
    groups: dict[str, Any] = {"posterior": posterior}
    if answer.instance is not None:
        groups["observed_data"] = to_xarray(answer)[["observed"]]
    found: InferenceData = arviz.InferenceData(**groups)
    return found


def _curves(answer: Answer) -> list[tuple[str, tuple[str, ...], Band]]:
    found = [("force", answer.force_names, answer.force)]
    return [*found, ("output", answer.output_names, answer.outputs)] if answer.has_outputs else found


class _Place:
    """The dimensions of curves [..., Q]: time; of a field time and its axes if its points are a lattice."""

    def __init__(self, times: FloatArray, positions: FloatArray | None) -> None:
        self.coordinates: dict[str, Any] = {"time": times}
        self.dims: tuple[str, ...] = ("time",)
        self._order: NDArray[np.intp] | None = None
        self._shape: tuple[int, ...] = (len(times),)
        if positions is None:
            return
        points = np.column_stack([times, positions])
        names = ("time", *AXES[: positions.shape[1]])
        axes = [np.unique(column) for column in points.T]
        if int(np.prod([len(axis) for axis in axes])) == len(points) == len(np.unique(points, axis=0)):
            self.dims, self.coordinates = names, dict(zip(names, axes, strict=True))
            self._order, self._shape = np.lexsort(points.T[::-1]), tuple(len(axis) for axis in axes)
        else:
            self.dims = ("point",)
            self.coordinates = {name: ("point", column) for name, column in zip(names, points.T, strict=True)}

    def shaped(self, values: FloatArray) -> FloatArray:
        """values [..., Q] in these dimensions."""
        sorted_ = values if self._order is None else values[..., self._order]
        return sorted_.reshape(*values.shape[:-1], *self._shape)
