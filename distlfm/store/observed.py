"""Instances as the arrays of a block, and back.

Shapes: `b` instances of a block, `P` outputs, `L` forces, `N` observation points, `n` points of the grid.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distlfm.errors import UsageError
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.store.layout import StoreSpec

Arrays = Mapping[str, NDArray[Any]]


def pack(spec: StoreSpec, instances: Sequence[Instance]) -> dict[str, NDArray[Any]]:
    """The observed part of a block: id, observed, observed_time, and where there are any, positions and variances."""
    count, shape = len(instances), (len(spec.outputs), spec.samples)
    found: dict[str, NDArray[Any]] = {
        "id": np.array([one.id for one in instances], dtype=np.object_),
        "observed": np.full((count, *shape), np.nan),
        "observed_time": np.full((count, spec.samples), np.nan),
    }
    found |= {f"observed_{axis}": np.full((count, spec.samples), np.nan) for axis in spec.space}
    if spec.variance:
        found["observed_variance"] = np.full((count, *shape), np.nan)
    for row, one in enumerate(instances):
        what = misfit(spec, one)
        if what:
            raise UsageError(what, "Make the store for the data that it is to hold.")
        order = [spec.outputs.index(name) for name in one.outputs]
        points = slice(0, len(one.times))
        found["observed"][row, order, points] = np.where(one.mask, one.values, np.nan)
        found["observed_time"][row, points] = one.times
        if one.positions is not None:
            for i, axis in enumerate(spec.space):
                found[f"observed_{axis}"][row, points] = one.positions[:, i]
        if one.variance is not None:
            found["observed_variance"][row, order, points] = one.variance
    return found


def unpack(spec: StoreSpec, arrays: Arrays) -> list[Instance]:
    """The instances in the arrays of some rows, with their truth where `solution_mean` is among them."""
    places, units = grid_points(spec), _metadata(spec)
    found = []
    for row, name in enumerate(arrays["id"]):
        times = arrays["observed_time"][row]
        there = np.isfinite(times)
        values = arrays["observed"][row][:, there]
        mask = np.isfinite(values)
        if not mask.any():
            continue
        positions = [arrays[f"observed_{axis}"][row][there] for axis in spec.space]
        variance = arrays["observed_variance"][row][:, there] if spec.variance else None
        found.append(
            Instance(
                id=str(name),
                outputs=spec.outputs,
                times=times[there],
                values=np.where(mask, values, 0.0),
                mask=mask,
                positions=np.column_stack(positions) if positions else None,
                variance=None if variance is None or np.isnan(variance).all() else variance,
                truth=_truth(spec, arrays, row, places) if "solution_mean" in arrays else None,
                metadata=units,
            )
        )
    return found


def grid_points(spec: StoreSpec) -> FloatArray | None:
    """The places of the grid at one time, [places, space], in the order in which arrays hold them; None for an ODE."""
    if spec.nodes is not None:
        return np.array(spec.nodes, dtype=np.float64)
    if spec.lattice is not None:
        return np.array(list(itertools.product(*spec.lattice)), dtype=np.float64)
    return None


def named_parameters(spec: StoreSpec, values: FloatArray) -> dict[str, FloatArray]:
    """Values [parameters] by name, elements in order: `decay[a]` and `decay[b]` are `decay` [2]."""
    found: dict[str, list[float]] = {}
    for name, value in zip(spec.parameters, values, strict=True):
        found.setdefault(name.partition("[")[0], []).append(float(value))
    return {name: np.array(elements) for name, elements in found.items()}


def _truth(spec: StoreSpec, arrays: Arrays, row: int, places: FloatArray | None) -> Truth:
    """Force and outputs at every point of the grid: all places of the first time, then of the second, and so on."""
    times = np.array(spec.times) if spec.times is not None else arrays["time"][row]
    keep = np.isfinite(times)
    force, outputs = (arrays[name][row][:, keep] for name in ("force_mean", "solution_mean"))
    num_places = 1 if places is None else len(places)
    return Truth(
        times=np.repeat(times[keep], num_places),
        force=force.reshape(len(force), -1),
        outputs=outputs.reshape(len(outputs), -1),
        positions=None if places is None else np.tile(places, (int(keep.sum()), 1)),
        parameters=named_parameters(spec, arrays["params_mean"][row]),
    )


def _metadata(spec: StoreSpec) -> dict[str, str]:
    """The units that a store knows, as readers of files have them: one for the time, all places and all outputs."""
    found = {}
    for key, names in (("time_unit", ("time",)), ("position_unit", spec.space), ("value_unit", spec.outputs)):
        units = {spec.units.get(name) for name in names}
        if len(units) == 1 and (unit := units.pop()) is not None:
            found[key] = unit
    return found


def misfit(spec: StoreSpec, one: Instance) -> str:
    """Why a store has no place for the observations of an instance; empty if it has."""
    dims = 0 if one.positions is None else one.positions.shape[1]
    if not set(one.outputs) <= set(spec.outputs):
        return f"{one.id!r} has the outputs {', '.join(one.outputs)}, and the store {', '.join(spec.outputs)}."
    if len(one.times) > spec.samples:
        return f"{one.id!r} has {len(one.times)} observation points, and the store has room for {spec.samples}."
    if dims != len(spec.space):
        return f"{one.id!r} has {dims} space dimensions, and the store has {len(spec.space)}."
    if one.variance is not None and not spec.variance:
        return f"{one.id!r} has noise variances, and the store has no room for them."
    return ""
