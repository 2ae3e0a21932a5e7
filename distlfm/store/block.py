"""Instances as the arrays of a block, and back; a block of one array as the bytes of its shard.

What a block is given is checked once before anything is written. Zarr encodes in memory; where and when bytes go to the
disk is ours. That is one file per shard, complete from the start, whose checksum is known without reading it back.

Shapes: `b` instances of a block, `P` outputs, `L` forces, `N` observation points, `n` points of the grid.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.sync import sync
from zarr.storage import MemoryStore, StorePath

from distlfm.config import nearest
from distlfm.errors import UsageError
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.store.files import finite
from distlfm.store.layout import STATUSES, STRING, StoreSpec, Variable, variables

Arrays = Mapping[str, NDArray[Any]]
NEEDED = ("id", "status")


def checked_arrays(known: Mapping[str, Variable], arrays: Arrays, where: range) -> dict[str, NDArray[Any]]:
    """Every array of the block, [b, ...] each, those that are not given filled with nothing."""
    for name in arrays:
        if name not in known:
            raise UsageError(f"The store has no array {name!r}.", nearest(name, list(known)))
    for name in NEEDED:
        if name not in arrays:
            raise UsageError(f"The array {name!r} is not given.", "Every block needs it.")
    checked = {}
    for name, variable in known.items():
        wanted = (len(where), *variable.shape[1:])
        values = np.asarray(arrays[name]) if name in arrays else variable.filled(len(where))
        if values.shape != wanted:
            raise UsageError(
                f"{name} has shape {values.shape}, and instances {where.start} to {where.stop - 1} need {wanted}.",
                f"Its dimensions are {', '.join(variable.dims)}.",
            )
        checked[name] = values.astype(np.object_ if variable.dtype == STRING else variable.dtype)
    unknown = set(np.unique(checked["status"]).tolist()) - set(STATUSES.values())
    if unknown:
        raise UsageError(f"{sorted(unknown)[0]} is not a status.", f"Known are: {STATUSES}.")
    return checked


def encoded_rows(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """One line of JSON per row; what is not finite becomes null."""
    return "".join(json.dumps(finite(row), ensure_ascii=False, allow_nan=False) + "\n" for row in rows).encode()


LEVEL = 1
"""Compression level of zstd: fitted numbers hardly compress, padding always does."""

CHUNK_BYTES = 2**18
"""A chunk inside a shard, the least that is read at once, is at most this large (or one instance)."""

STRING_BYTES = 32
"""What a name is taken to need."""

SEPARATOR = "."


def shard_name(variable: Variable, block: int) -> str:
    """The file of a block below the array's folder: all in one folder, so that one flush makes a block's name last."""
    return SEPARATOR.join(["c", str(block), *["0"] * (len(variable.dims) - 1)])


def chunk_rows(variable: Variable, block: int) -> int:
    """Instances in a chunk: the largest divisor of the block that keeps within CHUNK_BYTES."""
    size = STRING_BYTES if variable.dtype == STRING else np.dtype(variable.dtype).itemsize
    row = size * math.prod(variable.shape[1:])
    most = max(1, CHUNK_BYTES // max(row, 1))
    return next(rows for rows in range(min(block, most), 0, -1) if block % rows == 0)


def create_array(group: zarr.Group, variable: Variable, block: int | None = None) -> zarr.Array[Any]:
    """Prepare an array: in shards of `block` rows, or in one chunk."""
    first, *rest = (max(size, 1) for size in variable.shape)
    made: zarr.Array[Any] = group.create_array(
        variable.name,
        shape=variable.shape,
        dtype=variable.dtype,
        shards=None if block is None else (block, *rest),
        chunks=(first if block is None else chunk_rows(variable, block), *rest),
        compressors=(ZstdCodec(level=LEVEL), Crc32cCodec()),
        fill_value=variable.fill,
        dimension_names=variable.dims,
        attributes=dict(variable.attrs),
        chunk_key_encoding={"name": "default", "separator": SEPARATOR},
    )
    return made


class Encoder:
    """Encodes blocks of one array. `metadata` is the array's zarr.json."""

    def __init__(self, variable: Variable, metadata: bytes, block: int) -> None:
        self._variable, self._block = variable, block
        self._held: dict[str, Any] = {}
        store = MemoryStore(self._held)
        sync(StorePath(store, "zarr.json").set(zarr.core.buffer.default_buffer_prototype().buffer.from_bytes(metadata)))
        with zarr.config.set({"array.write_empty_chunks": True}):  # a shard of nothing is a file too
            self._array = zarr.open_array(store, mode="r+")

    def encode(self, block: int, values: NDArray[Any]) -> bytes:
        """values: [b, ...], the rows of the block. An array without columns has an empty shard, which nobody reads."""
        if not values.size:
            return b""
        first = block * self._block
        self._array[first : first + len(values)] = values
        content: bytes = self._held.pop(shard_name(self._variable, block)).to_bytes()
        return content


def pack(spec: StoreSpec, instances: Sequence[Instance]) -> dict[str, NDArray[Any]]:
    """Return the observed part of a block: id, observed, observed_time, and any positions and variances."""
    arrays = {one.name: one.filled(len(instances)) for one in variables(spec) if one.name.startswith("observed")}
    arrays["id"] = np.array([one.id for one in instances], dtype=np.object_)
    for row, one in enumerate(instances):
        what = misfit(spec, one)
        if what:
            raise UsageError(what, "Make the store for the data that it is to hold.")
        order = [spec.outputs.index(name) for name in one.outputs]
        points = slice(0, len(one.times))
        arrays["observed"][row, order, points] = np.where(one.mask, one.values, np.nan)
        arrays["observed_time"][row, points] = one.times
        if one.positions is not None:
            for i, axis in enumerate(spec.space):
                arrays[f"observed_{axis}"][row, points] = one.positions[:, i]
        if one.variance is not None:
            arrays["observed_variance"][row, order, points] = one.variance
    return arrays


def unpack(spec: StoreSpec, arrays: Arrays) -> list[Instance]:
    """The instances in the arrays of some rows, with their truth where `solution_mean` is among them."""
    places, units = grid_points(spec), _metadata(spec)
    instances = []
    for row, name in enumerate(arrays["id"]):
        times = arrays["observed_time"][row]
        there = np.isfinite(times)
        values = arrays["observed"][row][:, there]
        mask = np.isfinite(values)
        if not mask.any():
            continue
        positions = [arrays[f"observed_{axis}"][row][there] for axis in spec.space]
        variance = arrays["observed_variance"][row][:, there] if spec.variance else None
        instances.append(
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
    return instances


def grid_points(spec: StoreSpec) -> FloatArray | None:
    """The places of the grid at one time, [places, space], in the order in which arrays hold them; None for an ODE."""
    if spec.nodes is not None:
        return np.array(spec.nodes, dtype=np.float64)
    if spec.lattice is not None:
        return np.array(list(itertools.product(*spec.lattice)), dtype=np.float64)
    return None


def named_parameters(spec: StoreSpec, values: FloatArray) -> dict[str, FloatArray]:
    """Values [parameters] by name, elements in order: `decay[a]` and `decay[b]` are `decay` [2]."""
    by_name: dict[str, list[float]] = {}
    for name, value in zip(spec.parameters, values, strict=True):
        by_name.setdefault(name.partition("[")[0], []).append(float(value))
    return {name: np.array(elements) for name, elements in by_name.items()}


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
    facts = {}
    for key, names in (("time_unit", ("time",)), ("position_unit", spec.space), ("value_unit", spec.outputs)):
        units = {spec.units.get(name) for name in names}
        if len(units) == 1 and (unit := units.pop()) is not None:
            facts[key] = unit
    return facts


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
