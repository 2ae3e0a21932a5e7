"""`distlfm train`: an operator learned from stores, by one process or by many.

Its page shows how it learned, and how it does on the instances it was not trained on.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from distlfm.cluster.machine import usable_cpus
from distlfm.cluster.ranks.group import joined
from distlfm.cluster.ranks.place import Place, find_place
from distlfm.config import Overrides, digest, load, read_yaml
from distlfm.errors import Stopped, UsageError
from distlfm.lfo import Operator
from distlfm.runs import CONFIG, OPERATOR, REPORT, SUMMARY
from distlfm.runs.settings import EvaluateConfig
from distlfm.runtime.process import Stop
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.store.lock import holder
from distlfm.training.log import METRICS, Follower, Progress, read_metrics
from distlfm.training.settings import TrainConfig, TrainRunConfig
from distlfm.training.start import tell_observed
from distlfm.training.work import CHECKPOINTS, LAST, TrainWork, refuse_others

TRIES, PAUSE = 5, 0.2
SCRATCH = ".ray"
"""What Ray Train writes for itself; removed at the end."""


@dataclass
class TrainRun:
    """A training that has ended.

    config: the settings of the run. directory: its folder, None if nothing was to be kept on the disk. summary: the
    content of summary.json. is_main: whether this process is the one that speaks for all ranks. held: the operator
    where there is no folder. metrics: the lines of metrics.jsonl, where they were kept.
    """

    config: TrainConfig
    directory: Path | None
    summary: dict[str, Any]
    is_main: bool = True
    held: Operator | None = field(default=None, repr=False)
    metrics: list[dict[str, Any]] = field(default_factory=list, repr=False)

    @cached_property
    def operator(self) -> Operator:
        """What was learned."""
        if self.held is not None:
            return self.held
        assert self.directory is not None
        return Operator.load(self.directory / OPERATOR)

    @property
    def history(self) -> list[dict[str, Any]]:
        """One report per epoch."""
        return [line for line in self.metrics if line["event"] == "epoch"]


def train(
    config: TrainConfig | Mapping[str, Any] | Path | str,
    overrides: Overrides = (),
    reporter: Reporter | None = None,
) -> TrainRun:
    """Learn an operator. With `run.dir` the same call goes on with a run that was stopped or killed.

    config: the path of a config file, a mapping with its content, or a config. overrides: settings to change, such as
    `["loop.epochs=5"]`; ignored for a config that is built already. reporter: where progress and warnings go, by
    default nowhere.

    The folder has config.yaml, metrics.jsonl, tensorboard/, checkpoints/last.pt (all that is needed to go on), and in
    the end operator.pt (best weights, calibrated), summary.json and report.html.

    Returns the training that has ended. Raises `UsageError` if the config or its stores are wrong, `WorkError` if the
    work failed, and `Stopped` if a signal ended it.
    """
    config, reporter = load(TrainConfig, config, overrides).resolved(), reporter or Silent()
    place = find_place(os.environ)
    launcher = launcher_for(config.run, place)
    if config.run.dir is None:
        if launcher != "inline":
            raise UsageError(f"run.dir is required for the {launcher} launcher.", "Give --out DIR, or set run.dir.")
        return _in_memory(config, reporter)
    run = _train_in(config.run.dir, config, place, launcher, reporter)
    if run.is_main:
        report_training(config.run.dir, reporter)
    return run


def _train_in(directory: Path, config: TrainConfig, place: Place, launcher: str, reporter: Reporter) -> TrainRun:
    if place.world == 1:  # of several ranks, the others would wait for this one
        refuse_others(directory)
        _free(directory)
    if place.rank == 0:
        tell_observed(config, reporter)
    with Stop() as stop:
        report = LAUNCHERS[launcher](config, place, stop, reporter if place.rank == 0 else Silent())
    if not report["finished"]:
        again = f"distlfm train {directory / CONFIG}"
        raise Stopped(stop.signal or signal.SIGTERM, f"after {report['step']} of {report['total']} steps", again)
    run = open_run(directory, config, is_main=place.rank == 0)
    for notice in run.operator.notices if run.is_main else ():
        reporter.warn(notice)
    return run


def open_run(directory: Path | str, config: TrainConfig | None = None, *, is_main: bool = True) -> TrainRun:
    """A run that has ended, from its folder."""
    path = Path(directory)
    if not (path / OPERATOR).is_file() or not (path / SUMMARY).is_file():
        raise UsageError(f"{path} holds no finished training.", "Give the --out folder of `distlfm train`.")
    summary = json.loads((path / SUMMARY).read_text(encoding="utf-8"))
    config = config or load(TrainConfig, path / CONFIG)
    return TrainRun(config, path, summary, is_main, metrics=read_metrics(path / METRICS))


def resume_train(directory: Path | str, overrides: Sequence[str] = (), reporter: Reporter | None = None) -> TrainRun:
    """Go on with a run from the config that it keeps; `overrides` say who computes."""
    path = Path(directory)
    if not (path / CHECKPOINTS / LAST).is_file() and not (path / CONFIG).is_file():
        raise UsageError(f"{path} is not a training run.", "Give the --out folder of `distlfm train`.")
    return train(path / CONFIG, [*overrides, f"run.dir={json.dumps(str(path))}"], reporter)


def launcher_for(run: TrainRunConfig, place: Place) -> str:
    """Who computes: `inline`, the ranks that the `environment` describes, processes to `spawn`, or `ray`."""
    if place.world > 1:
        if run.launcher not in ("auto", "ddp"):
            raise UsageError(
                f"{place.launcher} has started {place.world} processes, and run.launcher is {run.launcher}.",
                f"Leave run.launcher out, or start one process without {place.launcher}.",
            )
        return "environment"
    if run.launcher in ("ray", "inline"):
        return run.launcher
    if run.launcher == "auto" and run.address is not None:
        return "ray"
    return "spawn" if run.launcher == "ddp" or (run.workers or 1) > 1 else "inline"


def _inline(config: TrainConfig, place: Place, stop: Stop, reporter: Reporter) -> dict[str, Any]:
    with closing(Progress(reporter)) as progress, joined(place) as ranks:
        return TrainWork(config, watch=progress.see)(ranks, lambda: stop.requested)


def _spawned(config: TrainConfig, _: Place, stop: Stop, reporter: Reporter) -> dict[str, Any]:
    from distlfm.cluster.ranks.spawn import spawn

    workers = config.run.workers or (torch.cuda.device_count() if torch.cuda.is_available() else usable_cpus())
    threads = config.run.threads or max(1, usable_cpus() // workers)
    reporter.say(f"{workers} processes on this machine, {threads} thread{'s' if threads > 1 else ''} each")
    assert config.run.dir is not None
    with closing(Progress(reporter)) as progress:
        follower = Follower(config.run.dir, progress)
        return spawn(TrainWork(config.changed("run", threads=threads)), workers, threads, stop, follower.look)


def _by_ray(config: TrainConfig, _: Place, stop: Stop, reporter: Reporter) -> dict[str, Any]:
    from distlfm.cluster.ray.session import ray_session
    from distlfm.cluster.ray.train import RayTraining

    assert config.run.dir is not None
    with ray_session(config.run.address) as session, closing(Progress(reporter)) as progress:
        nodes = session.node_cpus()
        workers = config.run.workers or max(1, len(nodes))
        threads = config.run.threads or max(1, sum(nodes.values()) // workers)
        reporter.say(f"Ray Train: {workers} workers of {threads} CPUs on {session.words}")
        follower = Follower(config.run.dir, progress)
        training = RayTraining(session, workers, threads, config.run.dir / SCRATCH)
        return training.run(TrainWork(config.changed("run", threads=threads)), stop, reporter.warn, follower.look)


LAUNCHERS: dict[str, Callable[[TrainConfig, Place, Stop, Reporter], dict[str, Any]]] = {
    "inline": _inline,
    "environment": _inline,
    "spawn": _spawned,
    "ray": _by_ray,
}


def _free(directory: Path) -> None:
    """Refuse a folder that another process writes to; one that was just killed may take a moment to be gone."""
    for _ in range(TRIES):
        first = holder(directory)
        if first is None:
            return
        time.sleep(PAUSE)
    raise UsageError(f"{directory} is in use: {first}.", "Wait until it has finished, or stop it.")


def _in_memory(config: TrainConfig, reporter: Reporter) -> TrainRun:
    """A run of which nothing is kept but what is returned."""
    with tempfile.TemporaryDirectory(prefix="distlfm-train-") as folder:
        inside = config.changed("run", dir=Path(folder), tensorboard=False, checkpoint_every=1e9)
        run = _train_in(Path(folder), inside, find_place(os.environ), "inline", reporter)
        return replace(run, config=config, directory=None, held=run.operator)


MOST = 1000
"""Instances of the validation split that the page looks at."""


def report_training(run: Path | str, reporter: Reporter | None = None) -> Path:
    """Write report.html of a finished training run. Scores need the first of its stores; without it there are none."""
    # Ranks import this module, and never the libraries of a report.
    from distlfm.queries.asking import mark, origin
    from distlfm.report.operator_page import Example, Resolutions, Scores, training_page
    from distlfm.verbs.evaluate import find_or_none, scored

    folder = Path(run)
    if not (folder / OPERATOR).is_file():
        raise UsageError(f"{folder} is not a finished training run: it has no {OPERATOR}.", "Finish it first.")
    operator = Operator.load(folder / OPERATOR)
    kept = (folder / CONFIG).is_file()
    stores = read_yaml(folder / CONFIG).get("data", {}).get("stores", []) if kept else []
    figures: tuple[Scores | None, list[Example], list[Resolutions]] = (None, [], [])
    if stores and find_or_none(Path(stores[0])) is not None:
        config = EvaluateConfig(checkpoint=folder, store=Path(stores[0]), limit=MOST)
        with suppress(UsageError):  # no validation split
            one = scored(config, reporter or Silent())
            figures = (one.scores, one.examples, one.fine)
    work = json.dumps(operator.training.get("settings"), sort_keys=True)
    about = origin(operator, mark(folder / OPERATOR), digest(work)) | _training_figures(operator.training)
    text = (folder / CONFIG).read_text(encoding="utf-8") if kept else ""
    lines = read_metrics(folder / METRICS)
    return training_page(folder / REPORT, lines, *figures, operator.schema, text, about, operator.notices)


def _training_figures(training: Any) -> dict[str, Any]:
    """What the checkpoint says about its training, in a few numbers."""
    facts = {"steps": training.get("step"), "seconds": training.get("seconds")}
    facts |= {f"instances: {part}": count for part, count in training.get("instances", {}).items()}
    coverage = training.get("coverage") or {}
    facts |= {f"coverage of {name.replace('_', ', ')} %": value for name, value in coverage.items()}
    return {name: value for name, value in facts.items() if value is not None}
