"""A store: thousands of instances and what is known of them, in a Zarr directory that several processes fill.

A block of instances is one shard of every array, one file of rows and one marker, written by one process. What has no
marker is not there, whatever else a process left behind when it died.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import zarr
from numpy.typing import NDArray

from distlfm.errors import DistlfmError, StorageError, UsageError, WorkError
from distlfm.instance import Instance
from distlfm.optional import require
from distlfm.store.block import Encoder, checked_arrays, create_array, encoded_rows, shard_name, unpack
from distlfm.store.files import flush, flush_tree, partial, put_all, remove, storing, unreadable
from distlfm.store.layout import STRING, StoreSpec, Variable, mesh_arrays, statics, tally, variables
from distlfm.store.metadata import FOLDER as MARKERS
from distlfm.store.metadata import (
    METADATA,
    Marker,
    attributes_of,
    claimed,
    consolidate,
    find_store,
    finished,
    marker_path,
    publish,
    read_attributes,
    read_marker,
    read_spec,
)

if TYPE_CHECKING:
    import xarray

ROWS = "rows"
OCCUPIED = (errno.ENOTEMPTY, errno.EEXIST)

Mesh = tuple[NDArray[Any], NDArray[Any]]


class Store:
    """Fitted or generated instances on disk. `create` makes an empty store, `open` finds one; both can be pickled.

    path: its folder. spec: what it was made from: sizes, names, grid and units.
    """

    def __init__(self, path: Path, spec: StoreSpec) -> None:
        self.path, self.spec = path, spec
        self._key = read_attributes(path).get("key")

    @classmethod
    def create(cls, path: str | Path, spec: StoreSpec, mesh: Mesh | None = None) -> Store:
        """Make an empty store, and return it. It appears whole or not at all.

        path: a folder that is not there yet, or empty. spec: sizes, names, grid and units. mesh: points [nodes, space]
        and cells [cells, corners] of a field. Raises `UsageError` if the folder is taken, and `StorageError` if it
        cannot be written.
        """
        target = Path(path)
        if (target / METADATA).exists():
            raise UsageError(f"{target} is a store already.", "Resume it, or choose another place.")
        if target.exists() and (not target.is_dir() or any(target.iterdir())):
            raise UsageError(f"{target} is not empty.", "Choose a new place for the store.")
        draft = target.with_name(f".{target.name}.{os.getpid()}.part")
        with storing("a new store", target.parent):
            try:
                target.parent.mkdir(parents=True, exist_ok=True)
                group = zarr.create_group(draft, attributes=attributes_of(spec), overwrite=True)
                for variable in variables(spec):
                    create_array(group, variable, spec.block)
                for variable, values in [*statics(spec), *(mesh_arrays(spec, *mesh) if mesh is not None else [])]:
                    create_array(group, variable)[...] = values
                consolidate(draft)
                for folder in (MARKERS, ROWS):
                    (draft / folder).mkdir()
                flush_tree(draft)
                _place(draft, target)
                flush(target.parent)
            finally:
                shutil.rmtree(draft, ignore_errors=True)
        return cls(target, spec)

    @classmethod
    def open(cls, path: str | Path) -> Store:
        """Return the store in a folder. Only its metadata, names and grid are read.

        path: of the store, or of a run that has one. Raises `UsageError` if there is none.
        """
        located = find_store(path)
        return cls(located, read_spec(located))

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "spec": self.spec, "_key": self._key}

    @cached_property
    def variables(self) -> dict[str, Variable]:
        """The arrays with one row per instance, by name."""
        return {variable.name: variable for variable in variables(self.spec)}

    def block_range(self, index: int) -> range:
        """Return the rows of the instances of block `index`, counted from 0. Raises `UsageError` if there is none."""
        if not 0 <= index < self.spec.num_blocks:
            raise UsageError(f"There is no block {index}.", f"The store has {self.spec.num_blocks}, counted from 0.")
        first = index * self.spec.block
        return range(first, min(first + self.spec.block, self.spec.instances))

    def write_block(
        self,
        index: int,
        arrays: Mapping[str, NDArray[Any]],
        rows: Sequence[Mapping[str, Any]],
        seconds: float = math.nan,
        beside: Mapping[Path, bytes] | None = None,
    ) -> Marker:
        """Write a block whole, shards and rows onto the disk, then its marker; return the marker.

        index: of the block, counted from 0. arrays: [b, ...] each, b instances of the block; `id` and `status` must be
        there, what else is left out is fill. rows: one JSON-able mapping per instance. seconds: that the work took, for
        the marker. beside: files elsewhere, by path, that must be there whole when the marker is. A block that is
        finished already is left as it is. Raises `UsageError` if arrays or rows do not fit the store, and
        `StorageError` if it cannot be written.
        """
        where = self.block_range(index)
        given = checked_arrays(self.variables, arrays, where)
        if len(rows) != len(where):
            raise UsageError(f"{len(rows)} rows are given for {len(where)} instances.", "Give one row per instance.")
        existing = read_marker(self.path, index)
        if existing is not None:
            return existing
        self._check_still_there()
        with storing(f"block {index}", self.path), claimed(self.path, index) as draft:
            existing = read_marker(self.path, index)
            if existing is not None:
                return existing
            try:
                checksums, size = self._put(index, given, rows, beside or {})
                marker = Marker(
                    block=index,
                    first=where.start,
                    count=len(where),
                    statuses=tally(given["status"]),
                    seconds=None if math.isnan(seconds) else seconds,
                    created=datetime.now(UTC).isoformat(timespec="seconds"),
                    writer=f"{socket.gethostname()}:{os.getpid()}",
                    checksums=checksums,
                    bytes=size,
                )
                publish(self.path, marker, draft)
            except BaseException:
                if not marker_path(self.path, index).exists():
                    self._discard([*self.block_files(index), *(beside or {})])
                raise
        return marker

    def _check_still_there(self) -> None:
        """A store that was removed, and perhaps made anew, while somebody worked for it: their blocks do not belong."""
        try:
            key = read_attributes(self.path).get("key")
        except UsageError:
            key = None
        if key != self._key:
            raise StorageError(
                f"{self.path} is no longer the store that this run was begun with.",
                "It was removed or replaced meanwhile; begin the run again.",
            )

    def block_files(self, index: int) -> list[Path]:
        """Return the paths where the shards and the rows of block `index` are, or would be."""
        shards = [self.path / name / shard_name(variable, index) for name, variable in self.variables.items()]
        return [*shards, self._rows_file(index)]

    def markers(self) -> dict[int, Marker]:
        """Return the markers of finished blocks, by the block's index."""
        found = ((block, read_marker(self.path, block)) for block in finished(self.path))
        return {block: marker for block, marker in found if marker is not None}

    def missing(self) -> list[int]:
        """Return the indices of the blocks that are not finished."""
        there = set(finished(self.path))
        return [block for block in range(self.spec.num_blocks) if block not in there]

    def rows(self, blocks: Iterable[int] | None = None) -> Iterator[dict[str, Any]]:
        """Return an iterator over the row of each instance, of finished blocks only.

        blocks: indices of those to read, by default all. Raises `WorkError` if a block is damaged.
        """
        wanted = finished(self.path) if blocks is None else sorted(set(blocks))
        for block in wanted:
            if not marker_path(self.path, block).exists():
                continue
            try:
                with self._rows_file(block).open(encoding="utf-8") as lines:
                    for line in lines:
                        yield json.loads(line)
            except (OSError, ValueError) as error:
                raise self._unreadable(block, "the rows", error) from error

    def read(self, name: str, start: int = 0, stop: int | None = None) -> NDArray[Any]:
        """Return some rows of an array that has one row per instance.

        name: of the array, one of `variables`. start, stop: the first row, and that after the last; by default all.
        Rows of unfinished blocks are fill. Raises `UsageError` if there is no such array, and `WorkError` if a block is
        damaged.
        """
        if name not in self.variables:
            raise UsageError(f"The store has no array {name!r}.", f"It has: {', '.join(self.variables)}.")
        start, stop, _ = slice(start, stop).indices(self.spec.instances)
        values = self.variables[name].filled(max(0, stop - start))
        if stop <= start:
            return values
        for block in range(start // self.spec.block, (stop - 1) // self.spec.block + 1):
            if marker_path(self.path, block).exists():
                whole = self.block_range(block)
                first, last = max(start, whole.start), min(stop, whole.stop)
                values[first - start : last - start] = self._shard(name, block, first, last)
        return values.astype(np.str_) if self.variables[name].dtype == STRING else values

    def instances(self, start: int = 0, stop: int | None = None, *, answers: bool = False) -> list[Instance]:
        """Return the observations of some rows as instances, those of a generated store with their truth.

        start, stop: the first row, and that after the last; by default all. answers: of a fitted store, let the means
        of the fits stand for the truth. Rows without any observation, and those of unfinished blocks, are left out.
        Raises `WorkError` if a block is damaged.
        """
        names = [name for name in self.variables if name.startswith("observed")]
        truth = ["solution_mean", "force_mean", "params_mean"] if answers or self.spec.kind == "generate" else []
        own_times = ["time"] if truth and self.spec.times is None else []
        return unpack(self.spec, {name: self.read(name, start, stop) for name in ["id", *names, *truth, *own_times]})

    def static(self, name: str) -> NDArray[Any]:
        """Return an array that all instances share. name: such as `time` or `mesh_points`.

        Raises `KeyError` if there is no such array.
        """
        array: NDArray[Any] = np.asarray(self._group[name][...])
        return array

    @property
    def created(self) -> str:
        """When the store was made, as ISO text."""
        return str(read_attributes(self.path)["created"])

    def mesh(self) -> Mesh | None:
        """Return points [mesh_node, space] and cells [mesh_cell, corner] of a field, or None without a mesh."""
        if "mesh_points" not in self._group:
            return None
        return self.static("mesh_points"), self.static("mesh_cells")

    def dataset(self) -> xarray.Dataset:
        """Return the whole store as an xarray Dataset, loaded when used. Rows of unfinished blocks have the status -1.

        Raises `MissingExtra` without the extra `export`.
        """
        opened: xarray.Dataset = require("xarray", "export").open_dataset(
            self.path, engine="zarr", consolidated=True, decode_timedelta=False
        )
        return opened

    @cached_property
    def _group(self) -> Any:
        return zarr.open_group(self.path, mode="r", use_consolidated=True)

    @cached_property
    def _encoders(self) -> dict[str, Encoder]:
        return {
            name: Encoder(variable, (self.path / name / METADATA).read_bytes(), self.spec.block)
            for name, variable in self.variables.items()
        }

    def _rows_file(self, index: int) -> Path:
        return self.path / ROWS / f"{index:05d}.jsonl"

    def _shard(self, name: str, block: int, first: int, last: int) -> NDArray[Any]:
        """Rows of one finished block. Zarr takes a shard that is not there for an empty one; here that is damage."""
        try:
            (self.path / name / shard_name(self.variables[name], block)).stat()
            array: NDArray[Any] = self._group[name][first:last]
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            raise self._unreadable(block, name, error) from error
        return array

    def _unreadable(self, block: int, what: str, error: Exception) -> DistlfmError:
        if isinstance(error, PermissionError):  # nothing is wrong with it
            return unreadable(self.path, error)
        return WorkError(
            f"Block {block} of {self.path} is damaged: {what} cannot be read ({error}).",
            f"`distlfm store verify {self.path}` says what is wrong with the store and how to mend it.",
        )

    def _discard(self, files: Iterable[Path]) -> None:
        """Take away what was written of a block that cannot be finished, so that it does not fill the disk."""
        for path in files:
            remove(partial(path))
            remove(path)

    def _put(
        self,
        index: int,
        arrays: Mapping[str, NDArray[Any]],
        rows: Sequence[Mapping[str, Any]],
        beside: Mapping[Path, bytes],
    ) -> tuple[dict[str, str], int]:
        """Bring a block onto the disk; its checksums by path, and its size."""
        shards = [encoder.encode(index, arrays[name]) for name, encoder in self._encoders.items()]
        contents = dict(zip(self.block_files(index), [*shards, encoded_rows(rows)], strict=True))
        (self.path / ROWS).mkdir(exist_ok=True)
        put_all({**beside, **contents})
        checksums = {
            path.relative_to(self.path).as_posix(): hashlib.sha256(content).hexdigest()
            for path, content in contents.items()
        }
        return checksums, sum(map(len, contents.values()))


def _place(draft: Path, target: Path) -> None:
    """Give a new store its name; somebody else may have made one there meanwhile."""
    try:
        draft.replace(target)
    except OSError as error:
        if error.errno not in OCCUPIED:
            raise
        raise UsageError(
            f"{target} was made by another process in this moment.", "`distlfm status` shows what that does."
        ) from None
