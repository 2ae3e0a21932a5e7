"""`distlfm generate`: a store of instances drawn from the priors of a config, with their truth.

It is a job of blocks: a worker draws its block and writes it to the store.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from distlfm.cluster.blocks.job import Worker
from distlfm.config import Overrides, apply_overrides, build, load
from distlfm.errors import UsageError, WorkError
from distlfm.fleets.driver import Fleet, StoreJob, resumable, run_blocks
from distlfm.runs.folder import same_settings
from distlfm.runs.settings import GenerateConfig
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.simulation.block import DIVERGED, generate_block, instance_name, open_draws, store_spec
from distlfm.simulation.fields import lattice_ranks
from distlfm.simulation.instances import model_of_prior
from distlfm.solvers.field.meshed import close_helper_groups
from distlfm.store import Store, driver_lock, is_store


@dataclass(frozen=True)
class GenerateJob(StoreJob):
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

    def sizes(self) -> Sequence[float]:
        return [float(self.count(block)) for block in range(self.num_blocks)]

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
        drawn = time.perf_counter()
        marker = self.store.write_block(block, arrays, rows, drawn - began)
        written = time.perf_counter() - drawn
        return {"count": len(where), "failed": marker.failed, "seconds": drawn - began, "write_s": written}

    def attempt(self, block: int, rows: Sequence[int]) -> None:
        where = self.store.block_range(block)
        generate_block(self.config, self.draws, self.store.spec, [where[row] for row in rows])

    def close(self) -> None:
        close_helper_groups()


WORTH = 64
"""Drawing is quick: with fewer blocks than this, starting Ray would take longer."""


def generate(
    config: GenerateConfig | Mapping[str, Any] | Path | str,
    overrides: Overrides = (),
    reporter: Reporter | None = None,
) -> Store:
    """Fill the store `run.dir` with `instances` draws. A store that was begun with the same config goes on.

    config: the path of a config file, a mapping with its content, or a config. overrides: settings to change, such as
    `["instances=100"]`; ignored for a config that is built already. reporter: where progress and warnings go, by
    default nowhere.

    Returns the store. Raises `UsageError` if the config is wrong or has no `run.dir`, `WorkError` if not one instance
    could be generated, and `Stopped` if a signal ended it.
    """
    reporter, config = reporter or Silent(), load(GenerateConfig, config, overrides)
    if config.run.dir is None:
        raise UsageError("No folder is given for the store.", "Give --out STORE, or set run.dir in the config.")
    path, config = config.run.dir.resolve(), config.located()
    again = f"distlfm resume {shlex.quote(str(path))}"
    with resumable(path, again):
        store = open_store(config, path)
        with driver_lock(store.path, "generate"):
            job = GenerateJob.of(config, store)
            fleet = Fleet("generate", job, store, again, store.path, worth=WORTH, named=instance_name)
            run_blocks(fleet, config.run, reporter)
    done = sum(marker.statuses.get("generated", 0) for marker in store.markers().values())
    if not done:
        raise WorkError(f"None of {store.spec.instances} instances could be generated.", DIVERGED)
    if done < store.spec.instances:
        reporter.warn(f"{store.spec.instances - done} of {store.spec.instances} instances could not be generated.")
    return store


def resume_generate(path: Path | str, overrides: Sequence[str] = (), reporter: Reporter | None = None) -> Store:
    """Go on with a store that was begun, from the config that it keeps; `overrides` say who computes."""
    store = Store.open(path)
    if "config" not in store.spec.attributes:
        raise UsageError(
            f"{path} keeps no config to go on with: it was merged from stores that differ in theirs.",
            "Resume those, and merge again.",
        )
    attributes = store.spec.attributes
    content = {**attributes["config"], "run": {"dir": str(store.path), "block": store.spec.block}}
    content["plugins"] = attributes.get("plugins", content["plugins"])
    return generate(build(GenerateConfig, apply_overrides(content, overrides)), reporter=reporter)


def open_store(config: GenerateConfig, path: Path) -> Store:
    """The store of a config: a new one, or what is there of it."""
    if not is_store(path):
        draws = open_draws(config)
        return Store.create(path, store_spec(config, draws), draws.mesh)
    store = Store.open(path)
    if store.spec.kind != "generate":
        raise UsageError(f"{path} is the store of a fit.", "Choose another --out.")
    same_settings(store, config, None)
    return store
