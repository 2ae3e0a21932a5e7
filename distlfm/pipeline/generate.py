"""`distlfm generate`: a store of instances drawn from the priors of a config, with their truth."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from distlfm.config import apply_overrides, build, load
from distlfm.errors import UsageError, WorkError
from distlfm.pipeline.fleet import Fleet, run_blocks, told_how_to_go_on
from distlfm.pipeline.generate_block import DIVERGED, instance_name, store_spec
from distlfm.pipeline.generate_draws import open_draws
from distlfm.pipeline.generate_job import GenerateJob
from distlfm.pipeline.generate_settings import GenerateConfig
from distlfm.pipeline.rundir import same_settings
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.store import Store, driver_lock, is_store

WORTH = 64
"""Drawing is quick: with fewer blocks than this, starting Ray would take longer."""


def generate(
    config: GenerateConfig | Path | str, overrides: Sequence[str] = (), reporter: Reporter | None = None
) -> Store:
    """Fill the store `run.dir` with `instances` draws. A store that was begun with the same config goes on."""
    reporter = reporter or Silent()
    if not isinstance(config, GenerateConfig):
        config = load(GenerateConfig, Path(config), overrides)
    if config.run.dir is None:
        raise UsageError("It is not said where the store goes.", "Give --out STORE, or set run.dir in the config.")
    path, config = config.run.dir.resolve(), config.located()
    again = f"distlfm resume {shlex.quote(str(path))}"
    with told_how_to_go_on(path, again):
        store = open_store(config, path)
        with driver_lock(store.path, "generate"):
            job = GenerateJob.of(config, store)
            fleet = Fleet("generate", job, store, again, store.path, worth=WORTH, named=instance_name)
            run_blocks(fleet, config.run, reporter)
    statuses = [marker.statuses for marker in store.markers().values()]
    done = sum(one.get("generated", 0) for one in statuses)
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
    told = store.spec.attributes
    content = {**told["config"], "run": {"dir": str(store.path), "block": store.spec.block}}
    content["plugins"] = told.get("plugins", content["plugins"])
    return generate(build(GenerateConfig, apply_overrides(content, overrides)), reporter=reporter)


def open_store(config: GenerateConfig, path: Path) -> Store:
    """The store of a config: a new one, or what is there of it."""
    if is_store(path):
        store = Store.open(path)
        if store.spec.kind != "generate":
            raise UsageError(f"{path} is the store of a fit.", "Choose another --out.")
        same_settings(store, config, None)
        return store
    draws = open_draws(config)
    return Store.create(path, store_spec(config, draws), draws.mesh)
