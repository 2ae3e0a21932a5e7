"""What a job would refuse is refused before it is queued: each verb's own checks, as far as they are quick."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlfm.cluster.ranks import Place
from distlfm.config import Config, apply_overrides, read_yaml
from distlfm.errors import DataError, UsageError
from distlfm.pipeline import generate, sources, spool, train_work, tune
from distlfm.pipeline.fit_plan import INPUT
from distlfm.pipeline.generate_settings import GenerateConfig
from distlfm.pipeline.rundir import refuse_others, same_settings
from distlfm.pipeline.settings import FitConfig, WorkConfig
from distlfm.pipeline.train import launcher_for
from distlfm.pipeline.train_settings import TrainConfig
from distlfm.pipeline.train_work import CHECKPOINTS, LAST, fingerprint_of, open_examples, same_run
from distlfm.pipeline.tune import Ledger
from distlfm.pipeline.tune_settings import TuneConfig
from distlfm.pipeline.verbs import load_any
from distlfm.runtime.reporting import Silent
from distlfm.store import Store, is_store

JOBS = ("fit", "generate", "train", "tune")
"""Verbs that can be submitted."""


@dataclass(frozen=True)
class Setting:
    """How a job will run. tasks: processes that Slurm starts; shared: whether a Ray shares its blocks among nodes.

    waits: another job comes first, so data may not be there yet.
    """

    tasks: int = 1
    shared: bool = True
    waits: bool = False


def checked(verb: str, path: Path, overrides: Sequence[str], setting: Setting) -> Config:
    """The config that a job gets, with absolute paths."""
    if verb == "evaluate":
        raise UsageError(
            "'evaluate' cannot be submitted: it is one quick process, and has no config.",
            "Queue its script: sbatch slurm/evaluate.sbatch OPERATOR STORE --out DIR",
        )
    if verb not in JOBS:
        raise UsageError(f"{verb!r} cannot be submitted.", f"These can: {', '.join(JOBS)}.")
    told = apply_overrides(read_yaml(path), overrides).get("verb", "fit")
    if told != verb:
        raise UsageError(f"{path} is a config of `distlfm {told}`.", f"Submit it as {told}, or give one of {verb}.")
    config: Any = load_any(path, overrides)
    if config.run.dir is None:
        raise UsageError("It is not said where the results go.", "Give --out DIR, or set run.dir in the config.")
    config = config.model_copy(update={"run": config.run.model_copy(update={"dir": config.run.dir.absolute()})})
    if config.run.address is not None:
        raise UsageError(
            f"run.address is {config.run.address!r}, and a job starts a Ray of its own.", "Leave run.address out."
        )
    return CHECKS[verb](config, setting)


def _fit(config: FitConfig, setting: Setting) -> FitConfig:
    config, directory = config.located(), config.run.dir
    assert directory is not None
    _used(config.run, setting)
    refuse_others(directory, config)
    if is_store(directory):
        same_settings(Store.open(directory), config, config.run.batch)
    else:
        spool.refuse_others(directory / INPUT)
    if not setting.waits:
        first = sources.first_report(config.data)
        if first.set_aside and not first.instances:
            raise DataError(first.set_aside[0])
    return config


def _generate(config: GenerateConfig, setting: Setting) -> GenerateConfig:
    config = config.located()
    assert config.run.dir is not None
    _used(config.run, setting)
    if is_store(config.run.dir):
        generate.open_store(config, config.run.dir)
    elif config.run.dir.exists() and (not config.run.dir.is_dir() or any(config.run.dir.iterdir())):
        raise UsageError(f"{config.run.dir} is not empty.", "Choose a new place for the store.")
    return config


def _train(config: TrainConfig, setting: Setting) -> TrainConfig:
    config = config.resolved()
    assert config.run.dir is not None
    train_work.refuse_others(config.run.dir)
    if setting.tasks > 1:
        launcher_for(config.run, Place(world=setting.tasks, launcher="srun"))
    if not setting.waits:
        examples = open_examples(config)
        last = config.run.dir / CHECKPOINTS / LAST
        if last.exists():
            same_run(last, {"config": config.work(), "data": fingerprint_of(examples)})
    return config


def _tune(config: TuneConfig, setting: Setting) -> TuneConfig:
    config = config.model_copy(update={"train": config.train.resolved()})
    assert config.run.dir is not None
    tune.refuse_others(config.run.dir)
    Ledger(config, config.run.dir).resume(Silent())
    if not setting.waits:
        open_examples(config.train)
    return config


def _used(run: WorkConfig, setting: Setting) -> None:
    if run.executor == "serial" and setting.shared:
        raise UsageError(
            "run.executor is serial, which uses one process of all that the job asks for.",
            "Leave run.executor out, or give --array, whose tasks are one process each.",
        )


CHECKS: dict[str, Callable[[Any, Setting], Config]] = {
    "fit": _fit,
    "generate": _generate,
    "train": _train,
    "tune": _tune,
}
