"""Fitting a fleet as a job of blocks: a worker reads its block, fits it in one batch, and writes it to the store."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from distlfm.cluster.job import Job, Past, Worker
from distlfm.config import build
from distlfm.inference.archive import packed
from distlfm.inference.field_settle import num_ranks
from distlfm.inference.fit import InferenceConfig, fit_instances, seed_of
from distlfm.inference.metrics import Figures
from distlfm.inference.model import Model
from distlfm.inference.result import FitResult
from distlfm.inference.tally import Tally, failed_row, row_of
from distlfm.instance import Instance
from distlfm.mechanisms import build_system
from distlfm.pipeline.fit_columns import columns
from distlfm.pipeline.past import past_of
from distlfm.pipeline.settings import FitConfig
from distlfm.pipeline.source_base import Source
from distlfm.pipeline.sources import for_fitting
from distlfm.runtime.watching import during
from distlfm.solvers.field.meshed import close_helper_groups
from distlfm.store import Store

FITS = "fits"


def model_of(config: FitConfig, instances: Sequence[Instance]) -> Model:
    """The model of a config, its outputs taken from the data unless the config names them."""
    return model_with(config, list(dict.fromkeys(name for instance in instances for name in instance.outputs)))


def model_with(config: FitConfig, outputs: Sequence[str]) -> Model:
    """The model of a config for data with these outputs."""
    return Model(build_system(config.mechanism, list(outputs)), config.force, config.likelihood)


@dataclass(frozen=True)
class FitJob(Job):
    """config: the resolved one, as plain data, so that plugins are imported where it is opened.

    costs: of each block, about: the squared numbers of its instances' observation times, summed.
    """

    config: dict[str, Any]
    options: InferenceConfig
    source: Source
    run: Path
    store: Store
    keep: Literal["all", "few", "none"]
    costs: tuple[float, ...]
    cpus: int = 1
    grouped: bool = False
    memory: int = 0

    @property
    def num_blocks(self) -> int:  # type: ignore[override]
        return self.store.spec.num_blocks

    def sizes(self) -> Sequence[float]:
        return self.costs

    def count(self, block: int) -> int:
        return len(self.store.block_range(block))

    def past(self) -> Past:
        return past_of(self.store)

    def open(self) -> Worker:
        return FitWorker(self, build(FitConfig, self.config))


class FitWorker(Worker):
    """Fits blocks, one after another."""

    def __init__(self, job: FitJob, config: FitConfig) -> None:
        self.job, self.config = job, config
        self.model = model_with(config, job.source.outputs)
        torch.set_num_threads(config.run.threads)

    def run(self, block: int, left_out: Mapping[int, str]) -> Mapping[str, Any]:
        began = time.perf_counter()
        chosen = self._chosen(block)
        rows = [row for row in range(len(chosen)) if row not in left_out]
        fitted = self._fit([chosen[row] for row in rows])
        results: list[FitResult | None] = [None] * len(chosen)
        for row, result in zip(rows, fitted, strict=True):
            results[row] = result
        with during("scores"):
            figures = [
                failed_row(one.id, left_out[row]) if result is None else row_of(result)
                for row, (one, result) in enumerate(zip(chosen, results, strict=True))
            ]
        fitted_at = time.perf_counter()
        seconds = fitted_at - began
        kept = self._keep(block, results, figures)
        arrays = columns(self.job.store.spec, chosen, results, self._seeds(chosen))
        marker = self.job.store.write_block(block, arrays, figures, seconds, kept)
        written = time.perf_counter() - fitted_at
        failed = sum(marker.statuses.get(status, 0) for status in ("diverged", "failed"))
        return {"count": len(chosen), "failed": failed, "seconds": seconds, "write_s": written}

    def attempt(self, block: int, rows: Sequence[int]) -> None:
        chosen = [one for row, one in enumerate(self._chosen(block)) if row in rows]
        fitted = self._fit(chosen)
        for result in fitted:
            row_of(result)
        columns(self.job.store.spec, chosen, fitted, self._seeds(chosen))

    def close(self) -> None:
        close_helper_groups()

    def _chosen(self, block: int) -> list[Instance]:
        where = self.job.store.block_range(block)
        return [for_fitting(one, self.config.data) for one in self.job.source.read(where.start, where.stop)]

    def _seeds(self, instances: Sequence[Instance]) -> list[int]:
        return [seed_of(self.config.run.seed, one.id) for one in instances]

    def _fit(self, instances: Sequence[Instance]) -> list[FitResult]:
        return fit_instances(self.model, instances, self.job.options, self.config.run.seed) if instances else []

    def _keep(self, block: int, results: Sequence[FitResult | None], figures: Sequence[Figures]) -> dict[Path, bytes]:
        """Files with the whole posteriors of those instances that are to be kept; their rows tell where."""
        files: dict[Path, bytes] = {}
        first = self.job.store.block_range(block).start
        wanted = telling(figures) if self.job.keep == "few" else {str(row["id"]) for row in figures}
        for row, result in enumerate(results):
            if self.job.keep == "none" or result is None or result.id not in wanted:
                continue
            name = f"{first + row:05d}-{safe(result.id)}.npz"
            files[self.job.run / FITS / name] = packed(result)
            figures[row]["kept"] = f"{FITS}/{name}"
        return files


def telling(rows: Sequence[Figures]) -> set[str]:
    """Ids of the worst, the middle, the best and the slowest of a block: the whole run's are among them."""
    tally = Tally(rows)
    ranked = tally.worst() if len(rows) <= len(tally.first) else [*tally.worst(), *tally.best()]
    fitted = [row for row in ranked if row.get(tally.score) is not None]
    chosen = [*tally.slowest()[:1]]
    if fitted:
        chosen += [fitted[0], fitted[len(fitted) // 2], fitted[-1]]
    return {str(row["id"]) for row in chosen}


def safe(name: str) -> str:
    """An instance's id as part of a file name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:60]


def ranks_of(model: Model, options: InferenceConfig) -> int:
    """Processes that a worker starts to divide a mesh among; 1 where it is not divided."""
    if not model.is_field or options.settled is None:
        return 1
    return num_ranks(model, options.settled)
