"""What a store is made of: the dimensions, variables, units and attributes of its Zarr group.

A store holds `instances` rows in blocks of `block`. Every variable with the dimension `instance` is cut into shards of
one block; the others (names, grid, mesh) are written once, at creation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from distlfm.config import Config

SCHEMA = 1
"""Raised when a store of the old layout can no longer be read by this code."""

_ENDS = ("running", "converged", "stalled", "max_iterations", "diverged", "failed", "generated", "unreliable")
STATUSES = {name: code for code, name in enumerate(_ENDS)}
"""How an instance ended; those of `distlfm.inference.optimise.Status` have the same numbers.

Stores hold the numbers: a new status goes to the end.
"""

ABSENT = -1
"""The status of a row whose block is not written."""

FAILED = ("diverged", "failed")
"""Statuses of rows that hold no answer."""

UNLEARNED = (*FAILED, "unreliable")
"""Statuses of rows that an operator does not learn from."""

STRING = "string"
UNKNOWN_UNIT = "unknown"

Kind = Literal["fit", "generate"]
Axis = Literal["x", "y", "z"]


class StoreSpec(Config):
    """Everything a store is made from.

    samples: most observation points of an instance. steps: times of the grid; `times` are they if all instances share
    them. space: the axes of a field, with the coordinates of its `lattice` (one list per axis), or with `nodes`
    ([node][axis]) where the places have no order. draws: force draws that are kept. variance: whether noise variances
    are given with the data. units: of "time", of axes, and of outputs, forces and parameters by name.
    attributes: of the group: mechanism, config, config_hash, seed, data, title, versions.
    """

    kind: Kind
    instances: int = Field(ge=1)
    block: int = Field(ge=1)
    outputs: tuple[str, ...] = Field(min_length=1)
    forces: tuple[str, ...]
    parameters: tuple[str, ...]
    parameter_kinds: tuple[str, ...]
    samples: int = Field(ge=1)
    steps: int = Field(ge=1)
    times: tuple[float, ...] | None = None
    space: tuple[Axis, ...] = ()
    lattice: tuple[tuple[float, ...], ...] | None = None
    nodes: tuple[tuple[float, ...], ...] | None = None
    draws: int = Field(default=0, ge=0)
    variance: bool = False
    units: Mapping[str, str] = {}
    attributes: Mapping[str, Any] = {}

    @model_validator(mode="after")
    def _consistent(self) -> StoreSpec:
        for what, names in (("outputs", self.outputs), ("forces", self.forces), ("parameters", self.parameters)):
            if len(set(names)) < len(names):
                raise ValueError(f"{what} repeat a name: {', '.join(names)}")
        if len(self.parameter_kinds) != len(self.parameters):
            raise ValueError("parameter_kinds needs one kind per parameter")
        if self.times is not None and len(self.times) != self.steps:
            raise ValueError(f"times has {len(self.times)} values for {self.steps} steps")
        if self.space and (self.lattice is None) == (self.nodes is None):
            raise ValueError("a field has either a lattice or nodes")
        if self.lattice is not None and len(self.lattice) != len(self.space):
            raise ValueError("lattice needs one list of coordinates per axis of space")
        if self.nodes is not None and any(len(node) != len(self.space) for node in self.nodes):
            raise ValueError("nodes needs one coordinate per axis of space")
        return self

    @property
    def num_blocks(self) -> int:
        return -(-self.instances // self.block)


@dataclass(frozen=True)
class Variable:
    """One array of the store. shape: whole; dtype: of NumPy, or "string"."""

    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    dtype: str = "float64"
    fill: Any = float("nan")
    attrs: Mapping[str, Any] = field(default_factory=dict)

    def filled(self, count: int) -> NDArray[Any]:
        """`count` rows of nothing."""
        return np.full((count, *self.shape[1:]), self.fill, dtype=np.object_ if self.dtype == STRING else self.dtype)


def grid(spec: StoreSpec) -> list[tuple[str, int]]:
    """Name and size of the dimensions on which solutions and forces are given, time first."""
    sizes = [("step" if spec.times is None else "time", spec.steps)]
    if spec.nodes is not None:
        sizes.append(("node", len(spec.nodes)))
    elif spec.lattice is not None:
        sizes += [(axis, len(points)) for axis, points in zip(spec.space, spec.lattice, strict=True)]
    return sizes


def variables(spec: StoreSpec) -> list[Variable]:
    """The arrays that have one row per instance."""
    sizes = {
        "output": len(spec.outputs),
        "force": len(spec.forces),
        "parameter": len(spec.parameters),
        "sample": spec.samples,
        "draw": spec.draws,
        **dict(grid(spec)),
    }
    on_grid = tuple(name for name, _ in grid(spec))
    near_grid = "id" if spec.times is not None else "id time"
    if spec.nodes is not None:
        near_grid = " ".join([near_grid, *spec.space])
    seen = " ".join(["id", "observed_time", *(f"observed_{axis}" for axis in spec.space)])

    def make(name: str, dims: Sequence[str], long_name: str, **attrs: Any) -> Variable:
        shape = (spec.instances, *(sizes[dim] for dim in dims))
        return Variable(name, ("instance", *dims), shape, attrs={"long_name": long_name, **attrs})

    outputs, forces = _units(spec, "output", spec.outputs), _units(spec, "force", spec.forces)
    made = [make("observed", ("output", "sample"), "observed value", coordinates=seen, **outputs)]
    for axis in ("time", *spec.space):
        made.append(make(f"observed_{axis}", ("sample",), f"{axis} of the observation", units=unit(spec, axis)))
    if spec.variance:
        text = "variance of the measurement noise"
        made.append(make("observed_variance", ("output", "sample"), text, coordinates=seen, **_squared(outputs)))
    if spec.times is None:
        made.append(make("time", ("step",), "time", units=unit(spec, "time"), axis="T"))
    for name, dim, units in (("solution", "output", outputs), ("force", "force", forces)):
        for part, text, of in (("mean", "mean", units), ("var", "variance", _squared(units))):
            dims = (dim, *on_grid)
            made.append(make(f"{name}_{part}", dims, f"{text} of the {name}", coordinates=near_grid, **of))
    if spec.draws:
        dims = ("draw", "force", *on_grid)
        made.append(make("force_draws", dims, "draws of the force", coordinates=near_grid, **forces))
    of_parameters = _units(spec, "parameter", spec.parameters)
    where = "id parameter_kind"
    made += [
        make("params_mean", ("parameter",), "mean of the parameter", coordinates=where, **of_parameters),
        make("params_var", ("parameter",), "variance of the parameter", coordinates=where, **_squared(of_parameters)),
        make("elbo", (), "what the fit maximised", coordinates="id", units="1"),
        make("wall_s", (), "time the instance took", coordinates="id", units="s"),
    ]
    flags = {"flag_values": [ABSENT, *STATUSES.values()], "flag_meanings": " ".join(["absent", *STATUSES])}
    return [
        *made,
        replace(make("seed", (), "random seed", coordinates="id", units="1"), dtype="int64", fill=-1),
        replace(make("status", (), "how it ended", coordinates="id", units="1", **flags), dtype="int8", fill=ABSENT),
        replace(make("id", (), "name of the instance"), dtype=STRING, fill=""),
    ]


def statics(spec: StoreSpec) -> list[tuple[Variable, NDArray[Any]]]:
    """The arrays that all instances share, with their content: names, and the grid where it is shared."""
    fixed = [
        _names("output", "output", spec.outputs, "name of the output"),
        _names("force", "force", spec.forces, "name of the latent force"),
        _names("parameter", "parameter", spec.parameters, "name of the parameter"),
        _names("parameter_kind", "parameter", spec.parameter_kinds, "part of the model the parameter belongs to"),
    ]
    if spec.times is not None:
        fixed.append(_line("time", "time", spec.times, {"units": unit(spec, "time"), "long_name": "time", "axis": "T"}))
    for i, axis in enumerate(spec.space):
        attrs = {"units": unit(spec, axis), "long_name": f"position along {axis}"}
        if spec.lattice is not None:
            fixed.append(_line(axis, axis, spec.lattice[i], {**attrs, "axis": axis.upper()}))
        elif spec.nodes is not None:
            fixed.append(_line(axis, "node", [node[i] for node in spec.nodes], attrs))
    return fixed


def mesh_arrays(spec: StoreSpec, points: NDArray[Any], cells: NDArray[Any]) -> list[tuple[Variable, NDArray[Any]]]:
    """The mesh of a field: points [mesh_node, space] and the corners of its cells [mesh_cell, corner]."""
    units = sorted({unit(spec, axis) for axis in spec.space})
    where = {"units": units[0] if len(units) == 1 else UNKNOWN_UNIT, "long_name": "positions of the mesh's nodes"}
    corners = {"units": "1", "long_name": "nodes at the corners of each cell, counted from 0"}
    return [
        (Variable("mesh_points", ("mesh_node", "space"), points.shape, attrs=where), points.astype(np.float64)),
        (Variable("mesh_cells", ("mesh_cell", "corner"), cells.shape, "int64", -1, corners), cells.astype(np.int64)),
    ]


def tally(status: NDArray[Any]) -> dict[str, int]:
    """How many instances ended how."""
    names = dict(enumerate(_ENDS))
    return {names[code]: int(count) for code, count in zip(*np.unique(status, return_counts=True), strict=True)}


def unit(spec: StoreSpec, name: str) -> str:
    return spec.units.get(name, UNKNOWN_UNIT)


def _units(spec: StoreSpec, dim: str, names: Sequence[str]) -> dict[str, Any]:
    """The unit that all names share; where they differ, each one's own in an attribute of the list."""
    units = [unit(spec, name) for name in names]
    if len(set(units)) <= 1:
        return {"units": units[0] if units else "1"}
    return {"units": UNKNOWN_UNIT, f"{dim}_units": units}


def _squared(attrs: Mapping[str, Any]) -> dict[str, Any]:
    def square(one: str) -> str:
        return one if one in ("1", UNKNOWN_UNIT) else f"({one})^2"

    return {
        key: square(value) if isinstance(value, str) else [square(one) for one in value] for key, value in attrs.items()
    }


def _names(name: str, dim: str, values: Sequence[str], text: str) -> tuple[Variable, NDArray[Any]]:
    attrs = {"long_name": text, "units": "1"}
    return Variable(name, (dim,), (len(values),), STRING, "", attrs), np.array(values, dtype=np.object_)


def _line(name: str, dim: str, values: Sequence[float], attrs: Mapping[str, Any]) -> tuple[Variable, NDArray[Any]]:
    return Variable(name, (dim,), (len(values),), attrs=attrs), np.array(values, dtype=np.float64)
