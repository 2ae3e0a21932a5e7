"""Generating instances as a job of blocks: a worker draws its block and writes it to the store."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from distlfm.cluster.job import Job, Past, Worker
from distlfm.config import build
from distlfm.pipeline.generate_block import generate_block
from distlfm.pipeline.generate_draws import open_draws
from distlfm.pipeline.generate_settings import GenerateConfig
from distlfm.pipeline.past import past_of
from distlfm.pipeline.simulate import model_of_prior
from distlfm.pipeline.simulate_field import lattice_ranks
from distlfm.solvers.field.meshed import close_helper_groups
from distlfm.store import Store
from distlfm.store.layout import FAILED


@dataclass(frozen=True)
class GenerateJob(Job):
    """config: the resolved one, as plain data, so that plugins are imported where it is opened."""

    config: dict[str, Any]
    store: Store
    cpus: int = 1
    grouped: bool = False

    @staticmethod
    def of(config: GenerateConfig, store: Store) -> GenerateJob:
        """The job that fills the store of a config."""
        model = model_of_prior(config)
        ranks = lattice_ranks(model) if model.is_field else 1
        return GenerateJob(config.model_dump(mode="json"), store, max(ranks, config.run.threads), ranks > 1)

    @property
    def num_blocks(self) -> int:  # type: ignore[override]
        return self.store.spec.num_blocks

    def sizes(self) -> Sequence[float]:
        return [float(self.count(block)) for block in range(self.num_blocks)]

    def count(self, block: int) -> int:
        return len(self.store.block_range(block))

    def past(self) -> Past:
        return past_of(self.store)

    def open(self) -> Worker:
        return GenerateWorker(build(GenerateConfig, self.config), self.store)


class GenerateWorker(Worker):
    """Draws blocks, one after another."""

    def __init__(self, config: GenerateConfig, store: Store) -> None:
        self.config, self.store = config, store
        torch.set_num_threads(config.run.threads)
        self.draws = open_draws(config)

    def run(self, block: int, left_out: Mapping[int, str]) -> Mapping[str, Any]:
        began = time.perf_counter()
        where = self.store.block_range(block)
        arrays, rows = generate_block(self.config, self.draws, self.store.spec, where, left_out)
        seconds = time.perf_counter() - began
        before = time.perf_counter()
        marker = self.store.write_block(block, arrays, rows, seconds)
        written = time.perf_counter() - before
        failed = sum(marker.statuses.get(status, 0) for status in FAILED)
        return {"count": len(where), "failed": failed, "seconds": seconds, "write_s": written}

    def attempt(self, block: int, rows: Sequence[int]) -> None:
        where = self.store.block_range(block)
        generate_block(self.config, self.draws, self.store.spec, [where[row] for row in rows])

    def close(self) -> None:
        close_helper_groups()
