"""What each rank of a training does: the loop of `distlfm.lfo`, and, on the first rank, all that is written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from distlfm.cluster.machine import usable_cpus
from distlfm.cluster.ranks.group import RankTask
from distlfm.config import digest
from distlfm.errors import DistlfmError, OtherWork, UsageError, WorkError
from distlfm.lfo import Examples, OperatorSchema, Ranks, Training, finish, load_checkpoint, save_checkpoint
from distlfm.lfo.checkpoint import TRAINING
from distlfm.mechanisms.build import import_plugins
from distlfm.runs import OPERATOR, REPORT, SUMMARY
from distlfm.runs.folder import ELSEWHERE, begin, refuse_changed, refuse_other_verbs, versions, write_config
from distlfm.runtime.process import torch_threads
from distlfm.store import Store, driver_lock
from distlfm.store.files import put_quickly, remove, storing
from distlfm.training.log import METRICS, RunLog
from distlfm.training.settings import TrainConfig
from distlfm.training.start import examples_after, open_start

CHECKPOINTS, LAST = "checkpoints", "last.pt"
Line = dict[str, Any]
Watch = Callable[[Line], None]


def nobody(line: Line) -> None:
    """Looks at no line."""
    del line


@dataclass(frozen=True)
class TrainWork(RankTask):
    """Train, in the folder `config.run.dir`, where the run goes on if it was begun.

    examples: read already by whoever asks. watch: sees each line of metrics.jsonl, on the first rank; on_epoch: the
    reports of all epochs, those of before too, on every rank.
    """

    config: TrainConfig
    watch: Watch = nobody
    on_epoch: Watch = nobody
    examples: Examples | None = None

    def __call__(self, ranks: Ranks, stop: Callable[[], bool]) -> dict[str, Any]:
        directory = self.config.run.dir
        assert directory is not None
        import_plugins(self.config.plugins)  # in another process, nothing has checked the config
        with torch_threads(self.config.run.threads or max(1, usable_cpus() // ranks.world)), _writing(directory, ranks):
            examples = self.examples or open_examples(self.config)
            training = Training(self.config.settings, examples.schema, examples, ranks, open_start(self.config))
            identity = {"config": self.config.work(), "data": fingerprint_of(examples)}
            last = directory / CHECKPOINTS / LAST
            if last.exists():
                training.load_state_dict(same_run(last, identity)["training"])
            together(training)  # before the first one writes another
            for line in training.history:
                self.on_epoch(line)
            scribe = _Scribe(self, training, identity, directory) if ranks.is_main else None
            finished = _train(training, scribe, self.on_epoch, stop)
            ranks.barrier()
        return {"finished": finished, "step": training.step, "total": training.total_steps, "world": ranks.world}


def together(training: Training) -> None:
    """Refuse ranks that do not begin at the same step: some nodes do not see the checkpoint that others see."""
    ranks, step = training.ranks, torch.tensor(float(training.step), dtype=torch.float64)
    differs = ranks.sum(step) != ranks.world * step
    if ranks.sum(differs.double()) > 0:  # to some the mean may seem to be their own
        raise WorkError(
            f"The ranks do not go on from the same checkpoint: rank {ranks.rank} is at step {training.step}.",
            "Give a run.dir that all nodes see alike, on a shared file system.",
        )


def _train(training: Training, scribe: _Scribe | None, on_epoch: Watch, stop: Callable[[], bool]) -> bool:
    ranks = training.ranks

    def between() -> bool:
        """Between two steps, when the state of the training is whole."""
        if scribe is not None:
            scribe.between()
        return bool(ranks.sum(torch.tensor(float(stop()))) > 0)

    def at_epoch(line: Line) -> None:
        if scribe is not None:
            scribe.tell("epoch", line)
        on_epoch(line)

    if scribe is None:
        return training.run(on_epoch=at_epoch, stop=between).finished
    with closing(scribe.log):
        outcome = training.run(on_step=scribe.step, on_epoch=at_epoch, stop=between)
        scribe.save()
        if outcome.finished:
            scribe.finish()
    return outcome.finished


class _Scribe:
    """The first rank's writing: config.yaml, metrics.jsonl, checkpoints; at the end operator.pt and summary.json."""

    def __init__(self, work: TrainWork, training: Training, identity: Mapping[str, Any], directory: Path) -> None:
        self.work, self.training, self.identity, self.directory = work, training, identity, directory
        self._saved_step, self._saved = training.step, time.monotonic()
        there = all((directory / name).exists() for name in (OPERATOR, SUMMARY))
        self._was_finished = there and training.step == training.total_steps
        write_config(directory, work.config)
        self.log = RunLog(directory, training.step, work.config.run.tensorboard)
        self.tell("start", {"step": training.step, "total": training.total_steps, "world": training.ranks.world})

    def step(self, report: Line) -> None:
        if report["step"] % self.work.config.run.log_every == 0 or report["step"] == self.training.total_steps:
            self.tell("step", report)

    def between(self) -> None:
        """A checkpoint, if it is time for one."""
        if time.monotonic() - self._saved >= self.work.config.run.checkpoint_every:
            self.save()

    def save(self) -> None:
        if self.training.step != self._saved_step:
            content = {"training": self.training.state_dict(), "identity": dict(self.identity)}
            save_checkpoint(self.directory / CHECKPOINTS / LAST, content, TRAINING)
        self._saved_step, self._saved = self.training.step, time.monotonic()

    def finish(self) -> None:
        """operator.pt, then summary.json, which tells that all is there; nothing, if it was before."""
        if self._was_finished:
            return
        operator = finish(self.training)
        operator.training = {**operator.training, "plugins": list(self.work.config.plugins)}
        operator.save(self.directory / OPERATOR)
        summary = summary_of(self.work.config, self.training, self.identity)
        summary |= {"coverage": operator.training.get("coverage"), "notices": list(operator.notices)}
        with storing(SUMMARY, self.directory):
            put_quickly(self.directory / SUMMARY, (json.dumps(summary, indent=2) + "\n").encode())

    def tell(self, event: str, report: Line) -> None:
        """One line more in the log, for those who watch too."""
        self.log.write(event, report)
        self.work.watch({"event": event, **report})


def open_examples(config: TrainConfig) -> Examples:
    """The examples of a config's stores, and of its observations."""
    if not config.data.stores and config.data.observations is None:
        raise UsageError("There are no data to learn from.", "Give --data STORE, or set data.stores in the config.")
    stores = [Store.open(path) for path in config.data.stores]
    start = open_start(config)
    if start is not None:
        return examples_after(start, stores, config)
    return Examples(stores, OperatorSchema.of(stores), config.loop.memory)


def fingerprint_of(examples: Examples) -> str:
    """A hash that tells whether the same instances of the same stores are learned from, wherever these lie."""
    return digest("\n".join(examples.sources))


def same_run(last: Path, identity: Mapping[str, Any]) -> dict[str, Any]:
    """The content of a checkpoint; refused if it was begun with other settings or data, naming what differs."""
    content = load_checkpoint(last, TRAINING)
    run = last.parent.parent
    refuse_changed(run, content["identity"]["config"], identity["config"])
    if content["identity"]["data"] != identity["data"]:
        raise OtherWork(f"{run} was begun with other data.", ELSEWHERE)
    return content


def summary_of(config: TrainConfig, training: Training, identity: Mapping[str, Any]) -> dict[str, Any]:
    """What summary.json says of a run that has ended."""
    examples = training.step * config.loop.batch
    return {
        "verb": "train",
        "title": config.title,
        "mechanism": training.schema.mechanism.get("kind"),
        "best": training.best,
        "last": training.history[-1] if training.history else None,
        "epochs": training.epoch,
        "steps": training.step,
        "seconds": training.seconds,
        "samples_per_second": examples / max(training.seconds, 1e-9),
        "weights": sum(one.numel() for one in training.model.parameters()),
        "instances": {part: len(getattr(training.split, part)) for part in ("train", "validation", "calibration")},
        "workers": training.ranks.world,
        "device": training.ranks.device.type,
        "data": identity["data"],
        "versions": versions(),
    }


def refuse_others(directory: Path) -> None:
    """Refuse a folder with files that a training would write over, and that are not of one."""
    written = (METRICS, OPERATOR, SUMMARY, REPORT)
    refuse_other_verbs(directory, "train", written, begun=f"{CHECKPOINTS}/{LAST}")


@contextmanager
def _writing(directory: Path, ranks: Ranks) -> Iterator[None]:
    """The first rank has the right to write, or no rank begins."""
    refusal: DistlfmError | None = None
    with ExitStack() as stack:
        if ranks.is_main:
            try:
                refuse_others(directory)
                begin(directory, CHECKPOINTS)
                stack.enter_context(driver_lock(directory, "train"))
                # What killed writers had not finished: whoever holds the lock is the only writer, on any host.
                for draft in (*directory.glob(".*.part"), *(directory / CHECKPOINTS).glob(".*.part")):
                    remove(draft)
            except DistlfmError as error:
                refusal = error
        if ranks.sum(torch.tensor(float(refusal is not None))) > 0:
            raise refusal or WorkError("The first rank could not begin.", "It says why.")
        yield
