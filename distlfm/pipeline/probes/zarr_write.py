"""How fast does a sharded Zarr array go to a directory?"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import numpy as np

from distlfm.pipeline.probes.answer import expect, load, reply
from distlfm.pipeline.probes.directory import asked_directory

NUM_SHARDS, SHARD_VALUES, CHUNKS_A_SHARD = 8, 2**20, 4
MEGABYTE = 1e6


def check() -> str:
    zarr = load("zarr")
    values = np.random.default_rng(0).standard_normal((NUM_SHARDS, SHARD_VALUES), dtype=np.float32)
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=asked_directory()) as scratch:
        array = zarr.create_array(
            store=Path(scratch) / "probe.zarr",
            shape=values.shape,
            dtype=values.dtype,
            chunks=(1, SHARD_VALUES // CHUNKS_A_SHARD),
            shards=(1, SHARD_VALUES),
        )
        start = time.perf_counter()
        for shard in range(NUM_SHARDS):
            array[shard] = values[shard]
        seconds = time.perf_counter() - start
        expect(np.array_equal(array[:], values), "what was read differs from what was written")
    return f"zarr {zarr.__version__}, {values.nbytes / MEGABYTE / seconds:.0f} MB/s written in shards"


if __name__ == "__main__":
    reply(check)
