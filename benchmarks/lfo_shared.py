"""What the operator's benchmarks share: stores, fits and operators of the shipped configs, and progress on stderr.

They are kept in runs/benchmarks/lfo, in folders that are named after the code and the configs: a part that is run
again, or another one, takes what this very code has made, and a benchmark that was killed goes on. Remove it to begin
anew. Of a training the weights are kept; calibration and novelty score are made anew each time.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.config import load
from distlfm.inference.findings.scores import q2
from distlfm.instance import Instance
from distlfm.lfo import Examples, Operator, OperatorAnswer, Training, finish, load_checkpoint
from distlfm.lfo.checkpoint import TRAINING as TRAINING_STATE
from distlfm.queries.asking import renamed
from distlfm.runs.settings import GenerateConfig
from distlfm.runtime.reporting import Plain
from distlfm.store import Store, find_store
from distlfm.training.work import CHECKPOINTS, LAST
from distlfm.verbs.fit import fit
from distlfm.verbs.generate import generate
from distlfm.verbs.train import train

RUNS = Path("runs/benchmarks/lfo")
FIT = Path("configs/fit/glucose.yaml")
DATA = ("equations", "gp", "inference", "mechanisms", "solvers", "simulation", "verbs/generate.py")
"""What stores and fits follow from."""

AFTERWARDS = {"__init__", "answer", "calibrate", "checkpoint", "finish", "novelty", "operator"}
"""Modules of distlfm.lfo that change no weight."""

TRAINING, FRESH, CALM = 61_803, 27_182, 14_142
"""Seeds of what is learned from, of what is scored, and of what is held against strange things. None was used to choose
anything."""

_begun = time.monotonic()


def say(text: str) -> None:
    print(f"[{time.monotonic() - _begun:6.0f} s] {text}", file=sys.stderr, flush=True)


@cache
def made_by(*more: Path) -> str:
    """A hash of the code that stores and fits follow from, and of other files."""
    folders = [path for name in DATA for path in Path("distlfm").glob(name)]
    files = [file for path in folders for file in ([path] if path.is_file() else path.rglob("*.py"))]
    told = hashlib.sha256()
    for file in [*sorted(files), *more]:
        told.update(file.read_bytes())
    return told.hexdigest()[:10]


def learned_by(config: Path) -> str:
    """The same, with the code and the config of a training."""
    code = sorted(file for file in Path("distlfm/lfo").glob("*.py") if file.stem not in AFTERWARDS)
    return made_by(*code, config)


@dataclass(frozen=True)
class Workshop:
    """Makes stores, fits and operators, each once."""

    quick: bool

    def place(self, label: str, key: str) -> Path:
        return RUNS / "made" / f"{label}-{key}{'-quick' if self.quick else ''}"

    def few(self, count: int) -> int:
        """A small part of a count, for trying."""
        return max(40, count // 40) if self.quick else count

    def generated(self, name: str, label: str, count: int, seed: int, more: Sequence[str] = ()) -> Store:
        """A store of the shipped config `name`."""
        config = Path(f"configs/generate/{name}.yaml")
        path = self.place(label, made_by(config))
        overrides = [f"instances={self.few(count)}", f"seed={seed}", f"run.dir={path}", "run.executor=serial", *more]
        if not path.exists():
            say(f"{label}: {self.few(count)} instances of {config}")
        return generate(load(GenerateConfig, config, overrides))

    def fits(self, label: str) -> Path:
        """The folder of such a fleet."""
        return self.place(label, made_by(FIT))

    def fitted(self, label: str, data: Path | Sequence[Instance]) -> Store:
        """The store of a fleet of glucose fits, of days."""
        folder = self.fits(label)
        if not (folder / "summary.json").exists():
            say(f"{label}: fits of {data if isinstance(data, Path) else len(data)} days by {FIT}")
            fit(FIT, data, [f"run.dir={folder}", "run.executor=serial", "data.window=null"], Plain(sys.stderr))
        return Store.open(find_store(folder))

    def operator(self, name: str, label: str, store: Store, more: Sequence[str] = ()) -> Operator:
        """An operator of the shipped config `name`; the validation split chooses its weights."""
        config = Path(f"configs/train/{name}.yaml")
        folder = self.place(label, learned_by(config))
        epochs = ["loop.epochs=3"] if self.quick else []
        overrides = [f"data.stores={json.dumps([str(store.path)])}", f"run.dir={folder}", "run.log_every=1000", *epochs]
        if not (folder / "summary.json").exists():
            say(f"{label}: a training by {config}")
        found = train(config, [*overrides, *more], Plain(sys.stderr))
        say(f"{label}: {found.summary['seconds']:.0f} s of training, best {_short(found.summary['best'])}")
        examples = Examples([store])
        training = Training(found.config.settings, examples.schema, examples)
        training.load_state_dict(load_checkpoint(folder / CHECKPOINTS / LAST, TRAINING_STATE)["training"])
        return finish(training)


def _short(best: dict[str, Any] | None) -> str:
    return f"epoch {best['epoch']}, validation Q² {best['validation_q2']:.4f}" if best else "unknown"


def scored(operator: Operator, instances: Sequence[Instance]) -> dict[str, Any]:
    """The figures of a fit, for an operator's answers to instances whose truth is known."""
    answers = operator([one.blind() for one in instances])
    every = [_one(operator, answer, one) for answer, one in zip(answers, instances, strict=True)]
    found: dict[str, Any] = {name: float(np.mean([one[name] for one in every])) for name in every[0]}
    latent = [one["latent Q²"] for one in every]
    found["latent Q², median and 5 %"] = [float(np.quantile(latent, share)) for share in (0.5, 0.05)]
    found["instances"] = len(every)
    return found


def _one(operator: Operator, answer: OperatorAnswer, one: Instance) -> dict[str, float]:
    truth = one.truth
    assert truth is not None
    assert truth.force is not None
    here = answer.at(truth.times, truth.positions)
    found = {"latent Q²": q2(here["mean"], truth.force)}
    for level in (68, 95):
        inside = (truth.force >= here[f"lower{level}"]) & (truth.force <= here[f"upper{level}"])
        found[f"{level} % coverage"] = float(inside.mean())
    known = {**operator.schema.fixed, **{estimate.name: estimate.mean for estimate in answer.estimates}}
    kinds = {estimate.name: estimate.kind for estimate in answer.estimates}
    errors: dict[str, list[float]] = {}
    for name, values in truth.parameters.items():
        labels = [f"{name}[{output}]" for output in one.outputs] if len(values) > 1 else [name]
        if kinds.get(labels[-1]) == "mechanism":
            errors[name] = [abs(known[label] - value) for label, value in zip(labels, np.ravel(values), strict=True)]
    found["sum of parameter errors"] = float(sum(np.mean(each) for each in errors.values()))
    found |= {f"error of {name}": float(np.mean(each)) for name, each in errors.items()}
    found["novelty above 1"] = float(answer.novelty > 1)
    return found


def agreement(operator: Operator, fits: Store) -> dict[str, float]:
    """How an operator's forces correlate with those of fits, at the times that were observed of each instance.

    Mean and 5 % of the correlations of instances, and the correlation of all their points together.
    """
    instances = [one for one in fits.instances(answers=True) if one.truth is not None]
    answers = operator([renamed(one.blind(), {}, operator.schema.outputs) for one in instances])
    mine, theirs, alone, strange = [], [], [], []
    for one, answer in zip(instances, answers, strict=True):
        truth = one.truth
        assert truth is not None
        assert truth.force is not None
        there = np.isfinite(truth.force[0]) & (truth.times >= one.times[0]) & (truth.times <= one.times[-1])
        mine.append(answer.at(truth.times[there])["mean"][0])
        theirs.append(truth.force[0, there])
        alone.append(float(np.corrcoef(mine[-1], theirs[-1])[0, 1]))
        strange.append(answer.novelty > 1)
    return {
        "r, mean of instances": float(np.mean(alone)),
        "r, 5 % of instances": float(np.quantile(alone, 0.05)),
        "r, all points together": float(np.corrcoef(np.concatenate(mine), np.concatenate(theirs))[0, 1]),
        "instances": len(alone),
        "unlike the training data": float(np.mean(strange)),
    }
