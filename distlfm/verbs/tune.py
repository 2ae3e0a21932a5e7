"""`distlfm tune`: trainings with different settings, of which the best becomes a config of `distlfm train`."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import math
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from distlfm.cluster.ranks.group import joined
from distlfm.cluster.ranks.place import Place
from distlfm.cluster.ray.sweep import TIME, Report, SweepPlan, SweepTask, SweepWatch, Values, sweep
from distlfm.config import digest, dump, load
from distlfm.errors import DistlfmError, Stopped, UsageError, WorkError
from distlfm.lfo import Examples, split
from distlfm.optional import require
from distlfm.report.operator_page import FAILED, FINISHED, STOPPED, Trial, ranked, tune_page
from distlfm.report.page import Provenance
from distlfm.runs import CONFIG, REPORT
from distlfm.runs.folder import begin, refuse_changed, refuse_other_verbs, versions, write_config
from distlfm.runtime.process import Stop
from distlfm.runtime.reporting import Reporter, Silent, Task
from distlfm.store import driver_lock
from distlfm.store.files import put_all, storing
from distlfm.training.log import METRICS, read_metrics
from distlfm.training.settings import VALIDATION, TrainConfig, TuneConfig
from distlfm.training.work import TrainWork, open_examples

TRIALS, TABLE, BEST, FOLDER, SCRATCH = "trials.json", "trials.csv", "best.yaml", "trials", ".ray"
WORST = 1e30
"""The metric of a trial that failed, for a search that takes numbers only."""


@dataclass
class TuneRun:
    """A sweep that has ended; `best` is the config of its best trial."""

    config: TuneConfig
    directory: Path
    trials: list[Trial] = field(default_factory=list)

    @property
    def winner(self) -> Trial:
        return ranked(self.trials, self.config.search.mode)[0]

    @property
    def best(self) -> TrainConfig:
        return self.config.trial(self.winner.values)


def trial_name(values: Values) -> str:
    """The same for the same values."""
    return hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode()).hexdigest()[:10]


@dataclass(frozen=True)
class TrialWork(SweepTask):
    """Trains with some values in a folder of their own, where a trial that was broken off goes on.

    ended: names of trials that only tell what they reported before.
    """

    config: TuneConfig
    directory: Path
    ended: frozenset[str] = frozenset()

    def __call__(self, values: Values, report: Report, shared: Examples) -> None:
        name, metric, epoch = trial_name(values), self.config.search.metric, -1

        def tell(line: Mapping[str, Any]) -> None:
            nonlocal epoch
            if line.get(metric) is not None and line["epoch"] > epoch:
                epoch = line["epoch"]
                report({metric: float(line[metric]), TIME: epoch + 1})

        folder = self.directory / FOLDER / name
        if name in self.ended:
            for line in read_metrics(folder / METRICS):
                if line["event"] == "epoch":
                    tell(line)
            return
        run = {"dir": str(folder), "threads": self.config.run.threads, "launcher": "inline"}
        config = self.config.trial(values, run | {"checkpoint_every": self.config.run.checkpoint_every})
        try:
            with joined(Place()) as ranks:
                TrainWork(config, on_epoch=tell, examples=shared)(ranks, lambda: False)
        except DistlfmError as error:
            worst = WORST if self.config.search.mode == "min" else -WORST
            report({metric: worst, TIME: epoch + 2, "failure": str(error)})


def tune(config: TuneConfig | Path | str, overrides: Sequence[str] = (), reporter: Reporter | None = None) -> TuneRun:
    """Search for settings. The same call again goes on with a sweep that was stopped or killed.

    The folder has config.yaml, trials.json and trials.csv, trials/NAME/ (a run of `distlfm train` each), report.html,
    and best.yaml, a config for `distlfm train`.
    """
    config = load(TuneConfig, config, overrides)
    if config.run.dir is None:
        raise UsageError("No folder is given for the sweep.", "Give --out DIR, or set run.dir in the config.")
    directory, reporter = config.run.dir.resolve(), reporter or Silent()
    refuse_others(directory)
    config = config.model_copy(update={"train": config.train.resolved()})
    refuse_unscored(config, open_examples(config.train))  # what is wrong with them is reported now
    begin(directory, FOLDER)
    with driver_lock(directory, "tune"):
        ledger = TrialLog(config, directory)
        ledger.resume(reporter)
        write_config(directory, config)
        if len(ledger.done) < config.search.trials:
            _sweep(config, directory, ledger, reporter)
        return _conclude(config, directory, ledger, reporter)


def refuse_others(directory: Path) -> None:
    """Refuse a folder with files that a sweep would write over, and that are not of one."""
    refuse_other_verbs(directory, "tune", (TRIALS, TABLE, BEST, REPORT))


def refuse_unscored(config: TuneConfig, examples: Examples) -> None:
    """Refuse a search by a figure that no epoch will have: few instances may all be on one side of the split."""
    if config.search.metric.startswith(VALIDATION) and not len(split(examples.ids, config.train.split).validation):
        raise UsageError(
            f"None of {len(examples)} instances is in the validation split, which {config.search.metric} is about.",
            "Give more instances, or a larger train.split.validation.",
        )


def _sweep(config: TuneConfig, directory: Path, ledger: TrialLog, reporter: Reporter) -> None:
    from distlfm.cluster.ray.session import ray_session

    require("optuna", extra="ray")  # before a cluster is started for nothing
    ended = frozenset(ledger.done)
    known = [one.values for one in ledger.trials]
    plan = SweepPlan(config.space, config.search, config.asha, config.train.loop.epochs, known)
    with Stop() as stop, ray_session(config.run.address) as session:
        room = sum(cpus // config.run.threads for cpus in session.node_cpus().values())
        if not room:
            raise UsageError(f"No node has {config.run.threads} CPUs for a trial.", "Give fewer run.threads.")
        concurrent = min(config.run.workers or room, room, config.search.trials)
        reporter.say(f"Ray Tune: {concurrent} trials at a time on {session.words}")
        with reporter.task("tune", config.search.trials - len(ended)) as task:
            ledger.task = task
            sweep(
                session,
                TrialWork(config, directory, ended),
                plan,
                ledger,
                stop,
                concurrent=concurrent,
                cpus=config.run.threads,
                scratch=directory / SCRATCH,
                shared=open_examples(config.train).in_memory(),
            )
    done = len(ledger.done)
    if stop.requested and done < config.search.trials:
        again = f"distlfm tune {directory / CONFIG}"
        raise Stopped(stop.signal or signal.SIGINT, f"after {done} of {config.search.trials} trials", again)


def _conclude(config: TuneConfig, directory: Path, ledger: TrialLog, reporter: Reporter) -> TuneRun:
    run = TuneRun(config, directory, ledger.trials)
    if all(one.best is None for one in run.trials):
        reason = next((one.failure for one in run.trials if one.failure), "")
        raise WorkError(f"None of {len(run.trials)} trials gave a figure.", reason)
    reporter.table("", ("trial", "status", "epochs", config.search.metric, *config.space), list(table(run)))
    winner = run.winner
    head = f"# The best of {len(run.trials)} trials: {config.search.metric} {winner.best:.6g} at epoch {winner.at}.\n"
    with storing(BEST, directory):
        put_all({directory / BEST: (head + dump(run.best)).encode()})
        search, work = config.search, json.dumps(config.work(), sort_keys=True)
        more = {"sampler": search.sampler, "stopped early by": "asynchronous successive halving"}
        provenance = Provenance(dump(config), versions(), search.seed, digest(work), more=more)
        tune_page(directory / REPORT, search.metric, search.mode, run.trials, provenance)
    reporter.say(f"The best settings are in {directory / BEST}: distlfm train {directory / BEST} --out DIR")
    return run


class TrialLog(SweepWatch):
    """What is known of the trials, in trials.json and trials.csv."""

    def __init__(self, config: TuneConfig, directory: Path) -> None:
        self.config, self.directory = config, directory
        self.trials: list[Trial] = []
        self.task: Task | None = None

    @property
    def done(self) -> list[str]:
        """Names of the trials that have ended."""
        return [one.name for one in self.trials if one.done]

    def resume(self, reporter: Reporter) -> None:
        """Read what an earlier call has left."""
        path = self.directory / TRIALS
        if not path.exists():
            return
        saved = json.loads(path.read_text(encoding="utf-8"))
        refuse_changed(self.directory, saved["config"], self.config.work())
        self.trials = [Trial(**one) for one in saved["trials"]]
        reporter.say(f"{len(self.done)} of {self.config.search.trials} trials are done already.")

    def began(self, values: Values) -> None:
        self._trial(values)
        self._write()

    def reported(self, values: Values, report: Mapping[str, Any]) -> None:
        one, metric = self._trial(values), self.config.search.metric
        if one.done or metric not in report:
            return
        if report.get("failure"):
            one.failure = str(report["failure"])
            return
        one.epochs, value = max(one.epochs, int(report[TIME])), float(report[metric])
        if math.isfinite(value) and (one.best is None or (value < one.best) == (self.config.search.mode == "min")):
            one.best, one.at = value, int(report[TIME])
        self._write()

    def ended(self, values: Values, failure: str) -> None:
        one = self._trial(values)
        if one.done:
            return
        one.failure = one.failure or failure
        whole = one.epochs >= self.config.trial(values).loop.epochs
        one.status = FAILED if one.failure else FINISHED if whole else STOPPED
        self._write()
        if self.task is not None:
            best = ranked(self.trials, self.config.search.mode)[0].best
            self.task.advance(1, "" if best is None else f"best {self.config.search.metric} {best:.4g}")

    def _trial(self, values: Values) -> Trial:
        name = trial_name(values)
        if name not in [one.name for one in self.trials]:
            self.trials.append(Trial(name, dict(values)))
        return next(one for one in self.trials if one.name == name)

    def _write(self) -> None:
        content = {"config": self.config.work(), "trials": [asdict(one) for one in self.trials]}
        text, space = io.StringIO(), self.config.space
        writer = csv.writer(text)
        writer.writerow(["trial", "status", "epochs", self.config.search.metric, "epoch", *space, "failure"])
        for one in self.trials:
            chosen = [json.dumps(one.values[key]) for key in space]
            writer.writerow([one.name, one.status, one.epochs, one.best, one.at, *chosen, one.failure])
        with storing("the trials", self.directory):
            files = {TRIALS: json.dumps(content, indent=1), TABLE: text.getvalue()}
            put_all({self.directory / name: file.encode() for name, file in files.items()})


def table(run: TuneRun) -> Iterator[list[str]]:
    """Rows for people, the best first."""
    for one in ranked(run.trials, run.config.search.mode):
        values = [one.values[key] for key in run.config.space]
        chosen = [f"{value:.4g}" if isinstance(value, float) else str(value) for value in values]
        yield [one.name, one.status, str(one.epochs), "–" if one.best is None else f"{one.best:.5g}", *chosen]
