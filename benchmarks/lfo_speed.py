"""Answers a second of an operator, against a fit of the same instance, and training steps against another library's."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.generate import one_core
from benchmarks.goals import at_least, at_most
from benchmarks.lfo_transcription import SETTINGS, generated, quickly
from benchmarks.reference import EPOCHS, fit_reference
from distlfm.config import build, load
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.instance import Instance
from distlfm.lfo import Examples, LoopConfig, Operator, OperatorConfig, Training, TrainSettings, finish
from distlfm.lfo.loss import losses
from distlfm.pipeline.fit_job import model_of
from distlfm.pipeline.settings import FitConfig

LAYERS, WIDTH, MODES, BATCH = 4, 48, 12, 64
TOGETHER = 512
REPEATS = 30
FIT = Path("configs/fit/transcription_toy.yaml")


def run(quick: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, one_core():
        store = generated("transcription", Path(folder) / "store", quickly(quick, TOGETHER), 5)
        examples = Examples([store])
        settings = build(TrainSettings, {**SETTINGS, "loop": {"epochs": 1, "batch": 64}})
        training = Training(settings, examples.schema, examples)  # speed does not depend on the weights
        training.run()
        operator = Operator.load(finish(training).save(Path(folder) / "operator.pt"))
        instances = [one.blind() for one in store.instances()]
        found = query_figures(operator, instances, quick)
        steps = step_figures(examples, quick)
    return {"figures": {**found.pop("figures"), **steps.pop("figures")}, **found, **steps}


def query_figures(operator: Operator, instances: list[Instance], quick: bool) -> dict[str, Any]:
    one = best(lambda: operator(instances[0]), REPEATS)
    many = best(lambda: operator(instances), 5) / len(instances)
    epochs = 7 if quick else EPOCHS // 10
    reference = best(lambda: fit_reference(instances[0], instances[0].times, epochs), 1) * EPOCHS / epochs
    model, options = model_of(load(FitConfig, FIT), instances[:1]), InferenceConfig()
    fast = best(lambda: fit_instances(model, instances[:1], options), 1)
    batched = best(lambda: fit_instances(model, instances[:16], options), 1) / 16
    return {
        "figures": {
            "query of one instance, ms": at_most(1e3 * one, 5.0),
            "queries a second, batched": at_least(1 / many, 2000.0),
            "batched query against the reference fit, times faster": at_least(reference / many, 1e4),
        },
        "one query against the reference fit, times faster": reference / one,
        "one query against our own fit of one, times faster": fast / one,
        "batched query against our own fit in a batch of 16, times faster": batched / many,
        "seconds of the reference fit": reference,
        "seconds of our own fit of one": fast,
    }


def step_figures(examples: Examples, quick: bool) -> dict[str, Any]:
    """Samples a second of whole training steps, forward to optimiser, on the data's grid and on the network's own."""
    batch = examples.batch(np.arange(min(BATCH, len(examples))))
    repeats = 3 if quick else 15
    rates = {}
    for name, points in (("on the data's grid", None), ("as shipped", 48)):
        config = TrainSettings(
            operator=OperatorConfig(layers=LAYERS, width=WIDTH, modes=MODES, points=points),
            loop=LoopConfig(batch=BATCH),
        )
        training = Training(config, examples.schema, examples)

        def step(training: Training = training) -> None:
            training.optimiser.zero_grad(set_to_none=True)
            found = losses(
                training.model(batch.values, batch.mask), batch, training.model.normal, training.config.loss, 0.5
            )
            found["total"].mean().backward()
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
            training.optimiser.step()

        rates[name] = len(batch) / best(step, repeats)
    told: dict[str, Any] = {"figures": {}, "samples a second": rates}
    if importlib.util.find_spec("neuralop") is None:
        told["neuraloperator"] = "not installed: pip install 'distlfm[bench]'"
        return told
    rates["neuraloperator"] = len(batch) / best(neuraloperator_step(batch.values, batch.force), repeats)
    told["figures"] = {
        "training step, samples a second over neuraloperator's": at_least(
            rates["as shipped"] / rates["neuraloperator"], 1.3
        )
    }
    told["the same with the network on the data's grid"] = rates["on the data's grid"] / rates["neuraloperator"]
    return told


def neuraloperator_step(values: torch.Tensor, force: torch.Tensor) -> Callable[[], None]:
    """A step of its FNO with as many layers, channels and modes, on the same data and for a mean squared error."""
    from neuralop.models import FNO

    modes = 2 * MODES - 2  # it counts negative ones too
    model = FNO(n_modes=(modes,), in_channels=values.shape[1], out_channels=2, hidden_channels=WIDTH, n_layers=LAYERS)
    optimiser = torch.optim.AdamW(model.parameters(), 1e-3)

    def step() -> None:
        optimiser.zero_grad(set_to_none=True)
        (model(values)[:, :1] - force).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    return step


def best(work: Callable[[], object], repeats: int) -> float:
    """Seconds of the fastest of some repeats, after one to warm up if there are several."""
    if repeats > 1:
        work()
    found = []
    for _ in range(repeats):
        begun = time.perf_counter()
        work()
        found.append(time.perf_counter() - begun)
    return min(found)
