"""Write a store in somebody else's format. A new format is one more function in `FORMATS`.

`well` is HDF5 in the layout of The Well (Polymathic AI), a public collection of simulations and the readers made for
it. Outputs and forces are scalar fields [trajectory, time, x, …] in single precision, as that format has it; parameters
are scalars of each trajectory. A mechanism without space gets one axis of one point, because The Well's reader needs
one. Observations have times and gaps of their own, for which the format has no place: `--format npz` keeps those.

`npz` has the observed instances, with the truth of a generated store, as archives that `distlfm fit --data` reads. A
name that ends in .npz is one file; any other is a folder with a file per block, which is read one file at a time and
therefore better for large stores. In a folder the reader puts each file's name before those of its instances.
"""

from __future__ import annotations

import errno
import itertools
import math
import os
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distlfm.config import nearest
from distlfm.data.npz import add_to_npz, write_npz
from distlfm.errors import UsageError
from distlfm.optional import require
from distlfm.store.files import drafted
from distlfm.store.inspection import OnBlock
from distlfm.store.layout import FAILED, STATUSES, StoreSpec, unit
from distlfm.store.metadata import Marker
from distlfm.store.store import Store


@dataclass
class Exported:
    """path: what was written; left_out: instances that are in the store and not in it; notes: what to know."""

    path: Path
    num_instances: int = 0
    left_out: int = 0
    notes: list[str] = field(default_factory=list)


SUFFIX = ".npz"


def export_npz(store: Store, target: Path, on_block: OnBlock) -> Exported:
    """Write every instance that has an observation."""
    exported = Exported(target)
    with drafted(target, "the export") as draft, ExitStack() as stack:
        if target.suffix == SUFFIX:
            archive = stack.enter_context(zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED))
        else:
            draft.mkdir()
        for block, marker in store.markers().items():
            instances = store.instances(marker.first, marker.first + marker.count)
            if target.suffix == SUFFIX:
                add_to_npz(archive, instances, exported.num_instances)
            elif instances:
                write_npz(draft / f"{block:05d}{SUFFIX}", instances)
            exported.num_instances += len(instances)
            exported.left_out += marker.count - len(instances)
            on_block(block)
        if not exported.num_instances:
            raise UsageError(f"No instance of {store.path} has an observation.", "There is nothing to export.")
    if exported.left_out:
        exported.notes.append(f"{exported.left_out} instances have no observation and are left out.")
    return exported


SUFFIXES = (".h5", ".hdf5")
OVERHEAD, ID_BYTES = 65536, 64
"""Room for what describes the arrays, and for the name of an instance, in bytes."""


def export_well(store: Store, target: Path, on_block: OnBlock) -> Exported:
    """Write the trajectories of all instances that have an answer, the failed ones are left out."""
    h5py = require("h5py", "export")
    spec, markers = store.spec, store.markers()
    _exportable(spec, target)
    exported = Exported(target, left_out=sum(one.failed for one in markers.values()))
    exported.num_instances = count = sum(one.count for one in markers.values()) - exported.left_out
    if not count:
        raise UsageError(f"No instance of {store.path} has an answer.", "There is nothing to export.")
    with drafted(target, "the export") as draft, _file(h5py, draft, spec, count) as file:
        columns = _prepare(file, spec, count)
        at = 0
        for block, marker in markers.items():
            at += _fill(file, store, marker, columns, at)
            on_block(block)
        assert at == count, f"{count} instances were announced and {at} found"
    if exported.left_out:
        exported.notes.append(f"{exported.left_out} instances failed and are left out.")
    exported.notes.append("Numbers are in single precision, as The Well has them.")
    return exported


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
        match = re.search(r"errno = (\d+)", str(error))
        if match is None:
            raise
        raise OSError(int(match[1]), os.strerror(int(match[1]))) from error


def _exportable(spec: StoreSpec, target: Path) -> None:
    if target.suffix not in SUFFIXES:
        raise UsageError(f"{target} is not an HDF5 file.", f"Give a name that ends in {' or '.join(SUFFIXES)}.")
    if spec.nodes is not None:
        raise UsageError(
            "The store has its fields on the nodes of a mesh, and The Well knows lattices only.",
            "Make the store with its fields on a lattice.",
        )


class _Column(NamedTuple):
    """A dataset of the file: row `row` of the store's array `source`. tail: the shape it has in the file."""

    source: str
    row: int
    place: str
    tail: tuple[int, ...]


def _prepare(file: Any, spec: StoreSpec, count: int) -> list[_Column]:
    """Write what all trajectories share, and make room for them."""
    axes = spec.space or ("x",)
    lattice = spec.lattice if spec.lattice is not None else ((0.0,),)
    about = spec.attributes
    file.attrs.update(
        dataset_name=str(about.get("title") or about.get("mechanism") or spec.kind),
        grid_type="cartesian",
        n_spatial_dims=len(axes),
        n_trajectories=count,
        simulation_parameters=_texts([]),
        config_hash=str(about.get("config_hash", "")),
    )
    _dimensions(file, spec, count, dict(zip(axes, lattice, strict=True)))
    _boundaries(file, spec)
    taken = set[str]()
    shape = (spec.steps, *map(len, lattice))
    columns = [_Column(source, row, f"t0_fields/{name}", shape) for name, source, row in _fields(spec, taken)]
    scalars = [_free(f"parameter_{name}", name, taken) for name in spec.parameters]
    columns += [_Column("params_mean", row, f"scalars/{name}", ()) for row, name in enumerate(scalars)]
    for group in ("t0_fields", "t1_fields", "t2_fields", "scalars"):
        here = [column.place.partition("/")[2] for column in columns if column.place.startswith(f"{group}/")]
        file.create_group(group).attrs["field_names"] = _texts(here)
    for column in columns:
        made = file.create_dataset(column.place, (count, *column.tail), dtype="float32")
        made.attrs.update(sample_varying=True, time_varying=bool(column.tail))
        if column.tail:
            made.attrs["dim_varying"] = np.ones(len(axes), dtype=np.bool_)
    file.create_dataset("trajectory_ids", (count,), dtype=require("h5py", "export").string_dtype())
    return columns


def _dimensions(file: Any, spec: StoreSpec, count: int, axes: Mapping[str, Sequence[float]]) -> None:
    group = file.create_group("dimensions")
    group.attrs["spatial_dims"] = _texts(list(axes))
    if spec.times is None:
        time = group.create_dataset("time", (count, spec.steps), dtype="float32")
    else:
        time = group.create_dataset("time", data=np.array(spec.times, dtype=np.float32))
    time.attrs.update(sample_varying=spec.times is None, units=unit(spec, "time"))
    for axis, points in axes.items():
        made = group.create_dataset(axis, data=np.array(points, dtype=np.float32))
        made.attrs.update(sample_varying=False, time_varying=False, units=unit(spec, axis))


def _boundaries(file: Any, spec: StoreSpec) -> None:
    """Fields end in walls. A mechanism without space has no boundary."""
    group = file.create_group("boundary_conditions")
    for axis, points in zip(spec.space, spec.lattice or (), strict=True):
        wall = group.create_group(f"{axis}_wall")
        mask = np.zeros(len(points), dtype=np.bool_)
        mask[[0, -1]] = True
        wall.attrs.update(bc_type="wall", associated_dims=_texts([axis]), associated_fields=_texts([]))
        wall.attrs.update(sample_varying=False, time_varying=False)
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
    candidates = itertools.chain((name, longer), (f"{longer}_{number}" for number in itertools.count(2)))
    free = next(one for one in (candidate.replace("/", "_") for candidate in candidates) if one not in taken)
    taken.add(free)
    return free


def _fill(file: Any, store: Store, marker: Marker, columns: Iterable[_Column], at: int) -> int:
    """Write the answered rows of a block from `at` on; how many they are."""
    start, stop = marker.first, marker.first + marker.count
    keep = ~np.isin(store.read("status", start, stop), [STATUSES[name] for name in FAILED])
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
    return to.stop - at


def _texts(names: Sequence[str]) -> NDArray[Any]:
    return np.array(list(names), dtype=require("h5py", "export").string_dtype())


Exporter = Callable[[Store, Path, OnBlock], Exported]
"""Writes the finished blocks of a store to a path that is not there yet, one block at a time."""

FORMATS: dict[str, Exporter] = {"well": export_well, "npz": export_npz}


def export(store: Store, form: str, target: str | Path, on_block: OnBlock = lambda _: None) -> Exported:
    """Write a store in the format `form`. The file or folder appears whole or not at all."""
    if form not in FORMATS:
        raise UsageError(f"There is no format {form!r}.", nearest(form, list(FORMATS)))
    place = Path(target)
    if place.exists():
        raise UsageError(f"{place} is there already.", "Choose a new place to export to.")
    if not store.markers():
        raise UsageError(f"{store.path} has no finished block.", "Finish it, then export it.")
    return FORMATS[form](store, place, on_block)
