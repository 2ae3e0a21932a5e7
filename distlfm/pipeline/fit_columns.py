"""Fits as a store keeps them: which grid, which parameters, and one array a variable.

Shapes: `b` instances of a block, `P` outputs, `L` forces, `K` parameters, `n` observation points.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distlfm.inference.field_settle import open_field
from distlfm.inference.field_shown import shown_axes, shown_nodes, shown_times
from distlfm.inference.fit import InferenceConfig
from distlfm.inference.model import Model
from distlfm.inference.result import Band, FitResult
from distlfm.inference.survey import Survey
from distlfm.instance import Instance
from distlfm.solvers.field.meshed import SPARSE_NODES
from distlfm.store import STATUSES, StoreSpec, pack
from distlfm.store.layout import variables
from distlfm.store.observed import misfit

AXES = ("x", "y", "z")

Arrays = dict[str, NDArray[Any]]


def grid_part(model: Model, options: InferenceConfig, found: Survey) -> dict[str, Any]:
    """The part of a store's spec that says where solutions and forces are given."""
    if not model.is_field:
        if not found.shared:
            return {"steps": options.grid_points}
        end = found.ends[1] if options.until is None else max(found.ends[1], options.until)
        times = found.starts[0] + (end - found.starts[0]) * np.linspace(0, 1, options.grid_points)
        return {"steps": options.grid_points, "times": tuple(times)}
    settings = options.settled
    assert settings is not None
    dims = model.field.field.num_dims
    times = shown_times(settings, dims)
    part: dict[str, Any] = {"steps": len(times), "times": tuple(times), "space": AXES[:dims]}
    axes = shown_axes(settings)
    if axes is not None:
        return {**part, "lattice": tuple(tuple(axis) for axis in axes)}
    nodes = shown_nodes(torch.from_numpy(open_field(model, settings).nodes))
    return {**part, "nodes": tuple(tuple(node) for node in nodes.tolist())}


def mesh_of(model: Model, options: InferenceConfig) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """Nodes and cells of a field's mesh, unless it is too large to be kept in one piece."""
    if not model.is_field:
        return None
    assert options.settled is not None
    opened = open_field(model, options.settled)
    return (opened.nodes, opened.cells) if len(opened.nodes) <= SPARSE_NODES else None


def parameter_part(model: Model) -> dict[str, Any]:
    """The part of a store's spec that names the parameters which are not known."""
    space = model.space
    kinds = [parameter.kind for parameter in space.parameters for _ in parameter.free]
    return {"parameters": space.free_names, "parameter_kinds": tuple(kinds)}


def columns(
    spec: StoreSpec,
    instances: Sequence[Instance],
    results: Sequence[FitResult | None],
    seeds: Sequence[int],
) -> Arrays:
    """One array a variable, each [b, …]; an instance without a result has the status `failed`, and its data if there

    is a place for them: those with an output that the mechanism does not know have none.
    """
    arrays = {one.name: one.filled(len(instances)) for one in variables(spec)}
    pairs = enumerate(zip(instances, results, strict=True))
    shown = [row for row, (one, result) in pairs if result is not None or not misfit(spec, one)]
    for name, values in pack(spec, [instances[row] for row in shown]).items():
        arrays[name][shown] = values
    arrays["id"][:] = [one.id for one in instances]
    arrays["seed"][:] = seeds
    for row, result in enumerate(results):
        arrays["status"][row] = STATUSES["failed" if result is None else result.status]
        if result is not None and result.ok:
            _answer(spec, arrays, row, result)
    return arrays


def _answer(spec: StoreSpec, arrays: Arrays, row: int, result: FitResult) -> None:
    for name, band in (("solution", result.grid.outputs), ("force", result.grid.force)):
        arrays[f"{name}_mean"][row] = _on_grid(band, "mean", arrays[f"{name}_mean"].shape[1:])
        arrays[f"{name}_var"][row] = _on_grid(band, "sd", arrays[f"{name}_var"].shape[1:]) ** 2
    if "time" in arrays:
        arrays["time"][row] = result.grid.times
    if spec.draws:
        seed = int(arrays["seed"][row])
        drawn = result.draws(result.grid.times, spec.draws, seed, positions=result.grid.positions).force
        arrays["force_draws"][row] = drawn.reshape(arrays["force_draws"].shape[1:])
    known = {estimate.name: estimate for estimate in result.parameters}
    arrays["params_mean"][row] = [known[name].mean for name in spec.parameters]
    arrays["params_var"][row] = [known[name].sd ** 2 for name in spec.parameters]
    arrays["elbo"][row], arrays["wall_s"][row] = result.bound, result.seconds


def _on_grid(band: Band, column: str, shape: tuple[int, ...]) -> NDArray[Any]:
    values: NDArray[Any] = getattr(band, column)
    return values.reshape(shape)
