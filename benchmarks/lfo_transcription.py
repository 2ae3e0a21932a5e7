"""The operator of transcription, learned from 2,000 generated instances: force, parameters and coverage on others."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.goals import at_least, at_most, between
from distlfm.config import build, load
from distlfm.data import catalog
from distlfm.inference.metrics import q2
from distlfm.instance import Instance
from distlfm.lfo import Answer, Examples, Operator, Training, TrainSettings, finish
from distlfm.pipeline.generate import generate
from distlfm.pipeline.generate_settings import GenerateConfig
from distlfm.store import Store

INSTANCES, FRESH = 2000, 600
SETTINGS: dict[str, Any] = {
    "operator": {"points": 48},
    "augment": {"recombine": 1.0, "mix": 0.7},
    "optimiser": {"lr": 3e-3},
    "loop": {"epochs": 70, "batch": 64},
}
"""Architecture and weights were chosen on the validation split; the epochs after seeing scores of other seeds too."""


def run(quick: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        operator = trained(Path(folder), quick=quick)
        seconds = time.perf_counter() - begun
        found = figures(operator, Path(folder), quick)
    found["seconds to train"] = seconds
    return found


def quickly(quick: bool, count: int) -> int:
    """A tenth of a count, for trying."""
    return max(40, count // 10) if quick else count


def generated(name: str, path: Path, count: int, seed: int, more: Sequence[str] = ()) -> Store:
    """A new store of a shipped config."""
    overrides = [f"instances={count}", f"seed={seed}", f"run.dir={path}", "run.executor=serial", *more]
    return generate(load(GenerateConfig, Path(f"configs/generate/{name}.yaml"), overrides))


def trained(folder: Path, quick: bool = False, name: str = "transcription", settings: Any = None) -> Operator:
    """An operator of a shipped config, from generated instances; the validation split chooses its weights."""
    store = generated(name, folder / "training", quickly(quick, INSTANCES), 0)
    chosen = dict(settings or SETTINGS)
    if quick:
        chosen["loop"] = {**chosen["loop"], "epochs": 4}
    return learned([store], chosen)


def learned(stores: Sequence[Store], settings: dict[str, Any]) -> Operator:
    examples = Examples(stores)
    training = Training(build(TrainSettings, settings), examples.schema, examples)
    training.run()
    return finish(training)


def figures(operator: Operator, folder: Path, quick: bool) -> dict[str, Any]:
    """Scored on fresh instances of another seed, and on the five reference sets."""
    fresh = scored(operator, generated("transcription", folder / "fresh", quickly(quick, FRESH), 777).instances())
    toy = scored(operator, list(catalog.load("transcription_toy").instances))
    return {
        "figures": {
            "latent Q², fresh instances, mean": at_least(fresh["latent Q²"], 0.98),
            "latent Q², reference sets, mean": at_least(toy["latent Q²"], 0.98),
            "sum of parameter errors, fresh": at_most(fresh["sum of parameter errors"], 0.2),
            "sum of parameter errors, reference": at_most(toy["sum of parameter errors"], 0.2),
            "95 % coverage, fresh": between(fresh["95 % coverage"], 0.93, 0.97),
        },
        "fresh": fresh,
        "reference": toy,
        "training": {key: operator.training[key] for key in ("seconds", "best", "coverage", "instances")},
    }


def scored(operator: Operator, instances: Sequence[Instance]) -> dict[str, Any]:
    """The figures of a fit, for an operator's answers."""
    answers = operator(list(instances))
    every = [_one(operator, answer, one) for answer, one in zip(answers, instances, strict=True)]
    found: dict[str, Any] = {name: float(np.mean([one[name] for one in every])) for name in every[0]}
    latent = [one["latent Q²"] for one in every]
    found["latent Q², median and 5 %"] = [float(np.quantile(latent, share)) for share in (0.5, 0.05)]
    found["instances"] = len(every)
    return found


def _one(operator: Operator, answer: Answer, one: Instance) -> dict[str, float]:
    truth = one.truth
    assert truth is not None
    assert truth.force is not None
    here = answer.at(truth.times, truth.positions)
    found = {"latent Q²": q2(here["mean"], truth.force)}
    for level in (68, 95):
        inside = (truth.force >= here[f"lower{level}"]) & (truth.force <= here[f"upper{level}"])
        found[f"{level} % coverage"] = float(inside.mean())
    known = {**operator.schema.fixed, **{estimate.name: estimate.mean for estimate in answer.parameters}}
    kinds = {estimate.name: estimate.kind for estimate in answer.parameters}
    errors: dict[str, list[float]] = {}
    for name, values in truth.parameters.items():
        labels = [f"{name}[{output}]" for output in one.outputs] if len(values) > 1 else [name]
        if kinds.get(labels[-1]) == "mechanism":
            errors[name] = [abs(known[label] - value) for label, value in zip(labels, np.ravel(values), strict=True)]
    found["sum of parameter errors"] = float(sum(np.mean(each) for each in errors.values()))
    found |= {f"error of {name}": float(np.mean(each)) for name, each in errors.items()}
    found["novelty above 1"] = float(answer.novelty > 1)
    return found
