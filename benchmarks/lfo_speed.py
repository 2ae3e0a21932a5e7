"""Answers a second of an operator, against a fit of the same instance, and training steps against another library's.

Our own fits see every tenth time, as their config says; the operator and the reference fit see all.

The other library is a dependency of this benchmark alone (the extra `bench`). It is kept apart from the environment,
which it would change, and without most of what it asks for:

    pip install --no-deps --target .cache/bench neuraloperator==2.0.0 tensorly==0.10.0 tensorly-torch==0.5.0 \\
        opt-einsum==3.4.0
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.generate import one_core
from benchmarks.goals import at_least, at_most
from benchmarks.lfo_shared import TRAINING, Workshop, say
from benchmarks.reference import EPOCHS, fit_reference
from distlfm.config import load
from distlfm.fleets.fit_job import model_of
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.instance import Instance
from distlfm.lfo import Examples, Operator, Training, TrainSettings, finish
from distlfm.lfo.loss import losses
from distlfm.runs.settings import FitConfig
from distlfm.training.settings import TrainConfig

TOGETHER = 512
REPEATS = 30
FIT, TRAIN = Path("configs/fit/transcription_toy.yaml"), Path("configs/train/transcription.yaml")
PACKAGES = Path(".cache/bench")
"""Where neuraloperator is, if it is."""


def run(quick: bool = False) -> dict[str, Any]:
    with one_core():
        examples = Examples([Workshop(quick).generated("transcription", "genes-speed", TOGETHER, TRAINING)])
        operator = untrained(examples)
        instances = [one.blind() for one in examples.stores[0].instances()]
        found = query_figures(operator, instances, quick)
        steps = step_figures(examples, quick)
    return {"figures": {**found.pop("figures"), **steps.pop("figures")}, **found, **steps}


def shipped(*more: str) -> TrainSettings:
    return load(TrainConfig, TRAIN, more).settings


def untrained(examples: Examples) -> Operator:
    """The shipped operator after one epoch: its speed does not depend on the weights."""
    training = Training(shipped("loop.epochs=1"), examples.schema, examples)
    training.run()
    with tempfile.TemporaryDirectory() as folder:
        return Operator.load(finish(training).save(Path(folder) / "operator.pt"))


def query_figures(operator: Operator, instances: list[Instance], quick: bool) -> dict[str, Any]:
    one = fastest({"one": lambda: operator(instances[0])}, REPEATS)["one"]
    many = fastest({"many": lambda: operator(instances)}, 5)["many"] / len(instances)
    say(f"a query takes {1e3 * one:.2f} ms, or {1e3 * many:.3f} ms among {len(instances)}; now fits of one instance")
    epochs = 7 if quick else EPOCHS // 10
    reference = once(lambda: fit_reference(instances[0], instances[0].times, epochs)) * EPOCHS / epochs
    say(f"a reference fit would take {reference:.0f} s; now our own")
    config = load(FitConfig, FIT)
    seen = [one.thinned(config.data.stride) for one in instances[:16]]
    model, options = model_of(config, seen), InferenceConfig()
    ours = once(lambda: fit_instances(model, seen[:1], options))
    batched = once(lambda: fit_instances(model, seen, options)) / len(seen)
    say(f"our own takes {ours:.1f} s alone, and {batched:.1f} s among 16")
    return {
        "figures": {
            "query of one instance, ms": at_most(1e3 * one, 5.0),
            "queries a second, batched": at_least(1 / many, 2000.0),
            "one query against the reference fit, times faster": at_least(reference / one, 1e4),
            "batched query against the reference fit, times faster": at_least(reference / many, 1e4),
        },
        "one query against our own fit of one, times faster": ours / one,
        "batched query against our own fit in a batch of 16, times faster": batched / many,
        "seconds of the reference fit": reference,
        "seconds of our own fit of one": ours,
    }


def step_figures(examples: Examples, quick: bool) -> dict[str, Any]:
    """Samples a second of training steps, forward to optimiser, on the data's grid and on the network's own.

    Beside them, without a goal: whole steps of the shipped loop, which takes its batch together, solves the equation
    for instances with each other's parameters, draws noise, and averages weights; the other library does none of it.
    """
    settings = shipped()
    batch = examples.batch(np.arange(min(settings.loop.batch, len(examples))))
    steps: dict[str, Callable[[], object]] = {
        "on the data's grid": our_step(examples, shipped("operator.points=null")),
        "as shipped": our_step(examples, settings),
        "as shipped, with augmentation and averaging": whole_step(examples, settings),
    }
    if PACKAGES.is_dir():
        sys.path.append(str(PACKAGES.resolve()))
    there = importlib.util.find_spec("neuralop") is not None
    if there:
        sizes = (settings.operator.layers, settings.operator.width, settings.operator.modes_of(1)[0])
        steps["neuraloperator"] = its_step(batch.values, batch.force, *sizes)
        steps["neuraloperator, without channel MLP"] = its_step(
            batch.values, batch.force, *sizes, use_channel_mlp=False
        )
    rates = {name: len(batch) / seconds for name, seconds in fastest(steps, 3 if quick else 15).items()}
    # What was not compared has missed its goal.
    over = {name: rate / rates["neuraloperator"] if there else 0.0 for name, rate in rates.items()}
    told: dict[str, Any] = {
        "figures": {
            f"training step {ours}, samples a second over neuraloperator's": at_least(over[ours], 1.3)
            for ours in ("as shipped", "on the data's grid")
        },
        "samples a second": rates,
    }
    if there:
        told["samples a second over neuraloperator's"] = over
    else:
        told["neuraloperator"] = "not installed: see the head of benchmarks/lfo_speed.py"
    return told


def our_step(examples: Examples, settings: TrainSettings) -> Callable[[], None]:
    """A step of forces and parameters, with their variances."""
    training = Training(settings, examples.schema, examples)
    batch = examples.batch(np.arange(min(settings.loop.batch, len(examples))))

    def step() -> None:
        training.optimiser.zero_grad(set_to_none=True)
        found = losses(training.model(batch.values, batch.mask), batch, training.model.normal, settings.loss, 0.5)
        found["total"].mean().backward()
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.optimiser.step()

    return step


def whole_step(examples: Examples, settings: TrainSettings) -> Callable[[], object]:
    """A step as the training loop takes it."""
    training = Training(settings, examples.schema, examples)
    indices = np.arange(min(settings.loop.batch, len(examples)))
    return lambda: training._step(indices)


def its_step(
    values: torch.Tensor, force: torch.Tensor, layers: int, width: int, modes: int, **more: Any
) -> Callable[[], None]:
    """A step of its FNO with as many layers, channels and modes, on the same data, for the force's squared error."""
    network = importlib.import_module("neuralop.models").FNO

    both = 2 * modes - 2  # it counts negative ones too
    channels = values.shape[1]
    model = network(
        n_modes=(both,), in_channels=channels, out_channels=2, hidden_channels=width, n_layers=layers, **more
    )
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        (model(values)[:, :1] - force).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return step


def once(work: Callable[[], object]) -> float:
    """Seconds of what takes long enough not to be done twice."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def fastest(works: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of the fastest of some repeats of each, in turn, after one to warm up."""
    found: dict[str, float] = dict.fromkeys(works, float("inf"))
    for work in works.values():
        work()
    for _ in range(repeats):
        for name, work in works.items():
            begun = time.perf_counter()
            work()
            found[name] = min(found[name], time.perf_counter() - begun)
    return found
