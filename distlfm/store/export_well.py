"""HDF5 in the layout of The Well (Polymathic AI), a public collection of simulations and the readers made for it.

Outputs and forces are scalar fields [trajectory, time, x, …] in single precision, as that format has it; parameters are
scalars of each trajectory. A mechanism without space gets one axis of one point, because The Well's reader needs one.
Observations have times and gaps of their own, for which the format has no place: `--format npz` keeps those.
"""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distlfm.errors import UsageError
from distlfm.optional import require
from distlfm.store.exported import Exported, drafted
from distlfm.store.layout import FAILED, STATUSES, StoreSpec, unit
from distlfm.store.markers import Marker
from distlfm.store.store import Store
from distlfm.store.verify import OnBlock

SUFFIXES = (".h5", ".hdf5")
OVERHEAD, ID_BYTES = 65536, 64
"""Room for what describes the arrays, and for the name of an instance, in bytes."""


def export_well(store: Store, target: Path, on_block: OnBlock) -> Exported:
    """Write the trajectories of all instances that have an answer, the failed ones are left out."""
    h5py = require("h5py", "export")
    spec, markers = store.spec, store.markers()
    _exportable(spec, target)
    count = sum(_answered(marker) for marker in markers.values())
    if not count:
        raise UsageError(f"No instance of {store.path} has an answer.", "There is nothing to export.")
    found = Exported(target, count, sum(marker.count for marker in markers.values()) - count)
    with drafted(target) as draft, _file(h5py, draft, spec, count) as file:
        columns = _prepare(file, spec, count)
        at = 0
        for block, marker in markers.items():
            kept = _fill(file, store, marker, columns, at)
            at += kept
            on_block(block)
        assert at == count, f"{count} instances were announced and {at} found"
    if found.left_out:
        found.notes.append(f"{found.left_out} instances failed and are left out.")
    found.notes.append("Numbers are in single precision, as The Well has them.")
    return found


@contextmanager
def _file(h5py: Any, draft: Path, spec: StoreSpec, count: int) -> Iterator[Any]:
    """A new file, if there is room for it: on a disk that fills, HDF5 ends in tracebacks of its own."""
    places = math.prod(map(len, spec.lattice)) if spec.lattice is not None else 1
    fields = (len(spec.outputs) + len(spec.forces)) * (2 if spec.kind == "fit" else 1) + (spec.times is None)
    needed = OVERHEAD + count * (4 * spec.steps * places * fields + 4 * len(spec.parameters) + ID_BYTES)
    if shutil.disk_usage(draft.parent).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    try:
        with h5py.File(draft, "w") as file:
            yield file
    except RuntimeError as error:  # what the operating system refused, in words of HDF5
        found = re.search(r"errno = (\d+)", str(error))
        if found is None:
            raise
        raise OSError(int(found[1]), os.strerror(int(found[1]))) from error


def _exportable(spec: StoreSpec, target: Path) -> None:
    if target.suffix not in SUFFIXES:
        raise UsageError(f"{target} is no HDF5 file.", f"Give a name that ends in {' or '.join(SUFFIXES)}.")
    if spec.nodes is not None:
        raise UsageError(
            "The store has its fields on the nodes of a mesh, and The Well knows lattices only.",
            "Make the store with its fields on a lattice.",
        )


def _answered(marker: Marker) -> int:
    return marker.count - sum(marker.statuses.get(name, 0) for name in FAILED)


class _Column:
    """A dataset of the file: row `row` of the store's array `source`. tail: the shape it has in the file."""

    def __init__(self, source: str, row: int, place: str, tail: tuple[int, ...]) -> None:
        self.source, self.row, self.place, self.tail = source, row, place, tail


def _prepare(file: Any, spec: StoreSpec, count: int) -> list[_Column]:
    """Write what all trajectories share, and make room for them."""
    axes = spec.space or ("x",)
    lattice = spec.lattice if spec.lattice is not None else ((0.0,),)
    _attributes(file, spec, count, len(axes))
    _dimensions(file, spec, count, axes, lattice)
    _boundaries(file, spec)
    columns, taken = [], set[str]()
    for name, source, row in _fields(spec, taken):
        shape = (spec.steps, *map(len, lattice))
        columns.append(_Column(source, row, f"t0_fields/{name}", shape))
    scalars = [_free(f"parameter_{name}", name, taken) for name in spec.parameters]
    columns += [_Column("params_mean", row, f"scalars/{name}", ()) for row, name in enumerate(scalars)]
    for group in ("t0_fields", "t1_fields", "t2_fields", "scalars"):
        here = [column.place.partition("/")[2] for column in columns if column.place.startswith(f"{group}/")]
        file.create_group(group).attrs["field_names"] = _texts(here)
    for column in columns:
        made = file.create_dataset(column.place, (count, *column.tail), dtype="float32")
        made.attrs["sample_varying"] = True
        made.attrs["time_varying"] = bool(column.tail)
        if column.tail:
            made.attrs["dim_varying"] = np.ones(len(axes), dtype=np.bool_)
    file.create_dataset("trajectory_ids", (count,), dtype=require("h5py", "export").string_dtype())
    return columns


def _attributes(file: Any, spec: StoreSpec, count: int, num_axes: int) -> None:
    about = spec.attributes
    file.attrs["dataset_name"] = str(about.get("title") or about.get("mechanism") or spec.kind)
    file.attrs["grid_type"] = "cartesian"
    file.attrs["n_spatial_dims"] = num_axes
    file.attrs["n_trajectories"] = count
    file.attrs["simulation_parameters"] = _texts([])
    file.attrs["config_hash"] = str(about.get("config_hash", ""))


def _dimensions(
    file: Any, spec: StoreSpec, count: int, axes: Sequence[str], lattice: Sequence[Sequence[float]]
) -> None:
    group = file.create_group("dimensions")
    group.attrs["spatial_dims"] = _texts(axes)
    if spec.times is None:
        time = group.create_dataset("time", (count, spec.steps), dtype="float32")
    else:
        time = group.create_dataset("time", data=np.array(spec.times, dtype=np.float32))
    time.attrs["sample_varying"] = spec.times is None
    time.attrs["units"] = unit(spec, "time")
    for axis, points in zip(axes, lattice, strict=True):
        made = group.create_dataset(axis, data=np.array(points, dtype=np.float32))
        made.attrs["sample_varying"] = False
        made.attrs["time_varying"] = False
        made.attrs["units"] = unit(spec, axis)


def _boundaries(file: Any, spec: StoreSpec) -> None:
    """Fields end in walls. A mechanism without space has no boundary."""
    group = file.create_group("boundary_conditions")
    for axis, points in zip(spec.space, spec.lattice or (), strict=True):
        wall = group.create_group(f"{axis}_wall")
        mask = np.zeros(len(points), dtype=np.bool_)
        mask[[0, -1]] = True
        wall.attrs["bc_type"] = "wall"
        wall.attrs["associated_dims"] = _texts([axis])
        wall.attrs["associated_fields"] = _texts([])
        wall.attrs["sample_varying"] = False
        wall.attrs["time_varying"] = False
        wall.create_dataset("mask", data=mask)
        wall.create_dataset("values", data=np.zeros(2, dtype=np.float32))


def _fields(spec: StoreSpec, taken: set[str]) -> Iterator[tuple[str, str, int]]:
    """Name, array of the store, and row in it, of every field: means, and where they were inferred, variances."""
    for source, names, prefix in (("solution", spec.outputs, "output"), ("force", spec.forces, "force")):
        chosen = [_free(f"{prefix}_{name}", name, taken) for name in names]
        yield from ((name, f"{source}_mean", row) for row, name in enumerate(chosen))
        if spec.kind == "fit":
            spread = [_free(f"{prefix}_{name}_variance", f"{name}_variance", taken) for name in chosen]
            yield from ((name, f"{source}_var", row) for row, name in enumerate(spread))


def _free(longer: str, name: str, taken: set[str]) -> str:
    """A name that is not taken yet; a slash would be a folder."""
    for candidate in (name, longer, *(f"{longer}_{number}" for number in range(2, len(taken) + 3))):
        clean = candidate.replace("/", "_")
        if clean not in taken:
            taken.add(clean)
            return clean
    raise AssertionError("one of so many names is free")


def _fill(file: Any, store: Store, marker: Marker, columns: Iterable[_Column], at: int) -> int:
    """Write the answered rows of a block from `at` on; how many they are."""
    start, stop = marker.first, marker.first + marker.count
    lost = [STATUSES[name] for name in FAILED]
    keep = ~np.isin(store.read("status", start, stop), lost)
    to = slice(at, at + int(keep.sum()))
    if store.spec.times is None:
        times = store.read("time", start, stop)[keep]
        if not np.isfinite(times).all():
            raise UsageError(
                "Trajectories of the store differ in their number of times, and The Well cannot have that.",
                "Export with --format npz.",
            )
        file["dimensions/time"][to] = times.astype(np.float32)
    held, values = "", np.zeros(0)
    for column in columns:
        if column.source != held:
            held, values = column.source, store.read(column.source, start, stop)[keep]
        file[column.place][to] = values[:, column.row].reshape(-1, *column.tail).astype(np.float32)
    file["trajectory_ids"][to] = store.read("id", start, stop)[keep].astype(np.object_)
    return int(keep.sum())


def _texts(names: Sequence[str]) -> NDArray[Any]:
    return np.array(list(names), dtype=require("h5py", "export").string_dtype())
