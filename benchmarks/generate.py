"""Instances generated a second on one core, with and without writing them to a store, for genes, glucose and fields."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.goals import at_least
from distlfm.config import load
from distlfm.runs.settings import GenerateConfig
from distlfm.simulation.block import generate_block, open_draws, store_spec
from distlfm.solvers.field.meshed import close_helper_groups
from distlfm.store import Store

CONFIGS = Path("configs/generate")
COUNTS = {"transcription": 4096, "glucose": 2048, "reaction_diffusion": 1024}
GOALS = {"transcription": 500.0, "glucose": 300.0, "reaction_diffusion": 100.0}
"""Instances a second that reach the disk."""


def run(quick: bool = False) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    more: dict[str, Any] = {}
    with one_core():
        for name, count in COUNTS.items():
            found = rates(name, count // 16 if quick else count)
            figures[f"{name}: instances a second, written"] = at_least(found["written, a second"], GOALS[name])
            more[name] = found
    close_helper_groups()
    return {"figures": figures, **more}


def rates(name: str, count: int) -> dict[str, float]:
    """How fast the instances of a shipped config are drawn, and drawn and written."""
    config = load(GenerateConfig, CONFIGS / f"{name}.yaml", [f"instances={count}"])
    before = time.perf_counter()
    draws = open_draws(config)
    spec = store_spec(config, draws)
    opened = time.perf_counter() - before
    generate_block(config, draws, spec, range(draws.batch))  # what is done once is no part of a rate
    with tempfile.TemporaryDirectory() as folder:
        store = Store.create(Path(folder) / "store", spec, draws.mesh)
        begun = time.perf_counter()
        drawing = computing = 0.0
        for block in range(spec.num_blocks):
            since, computed = time.perf_counter(), time.process_time()
            arrays, rows = generate_block(config, draws, spec, store.block_range(block))
            drawing += time.perf_counter() - since
            computing += time.process_time() - computed
            store.write_block(block, arrays, rows)
        whole = time.perf_counter() - begun
        size = sum(marker.bytes for marker in store.markers().values())
    return {
        "instances": count,
        "drawn, a second": count / drawing,
        "drawn, a second of processor time": count / computing,
        "written, a second": count / whole,
        "bytes an instance": size / count,
        "seconds to begin": opened,
    }


@contextmanager
def one_core() -> Iterator[None]:
    """This process, with all its threads, on one core."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)
