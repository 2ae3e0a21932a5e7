"""A block of one array as the bytes of its shard. Zarr encodes in memory; where and when bytes go to the disk is ours.

That is one file a shard, complete from the start, whose checksum is known without reading it back.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import Crc32cCodec, ZstdCodec
from zarr.core.sync import sync
from zarr.storage import MemoryStore, StorePath

from distlfm.store.layout import STRING, Variable

LEVEL = 1
"""Of zstd: fitted numbers hardly compress, padding always does."""

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
    rest = tuple(max(size, 1) for size in variable.shape[1:])
    whole = (max(variable.shape[0], 1), *rest)
    made: zarr.Array[Any] = group.create_array(
        variable.name,
        shape=variable.shape,
        dtype=variable.dtype,
        shards=None if block is None else (block, *rest),
        chunks=whole if block is None else (chunk_rows(variable, block), *rest),
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
        found: bytes = self._held.pop(shard_name(self._variable, block)).to_bytes()
        return found
