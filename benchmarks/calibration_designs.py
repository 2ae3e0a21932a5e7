"""Coverage of linear fits with sharp data: few and many times, half of the span, absent genes, a wrong prior of noise.

Instances are drawn from the priors of `configs/generate/transcription.yaml`, each with the same truth in every design.
Every instance counts, whatever its status. Standard errors are over instances, whose times are not independent.

Ranks of the truth within the posterior are uniform if it is right (Talts et al. 2018): each unknown and the force at
five times are tested in each design, and the smallest p-value is multiplied by the number of tests.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from scipy import stats

from benchmarks.goals import at_least, at_most, between
from distlfm.config import build
from distlfm.fleets.fit_job import model_of
from distlfm.inference.findings.scores import coverage, q2
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import Model
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray, Instance
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from

INSTANCES, BATCH = 500, 50
SHIPPED = Path(__file__).resolve().parents[1] / "configs/generate/transcription.yaml"
DESIGNS = {"12 times": 12, "40 times": 40, "111 times": 111, "first half": 111, "two genes absent": 111, "noise": 111}
RANGES = {68: (0.65, 0.71), 95: (0.93, 0.97)}
SECONDS = 1.0
SURPRISE = 0.01
"""Smallest p-value of a test of ranks times the number of tests."""

RANKED_TIMES = 5


def run(quick: bool = False) -> dict[str, Any]:
    """Fit every design; one figure for each level, and the processor's seconds an instance."""
    count = 10 if quick else INSTANCES
    figures: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    chances: dict[str, float] = {}
    for name in DESIGNS:
        found = _design(name, count)
        for level, limits in RANGES.items():
            figures[f"{name}: force, {level} % intervals cover"] = between(float(found[level].mean()), *limits)
        figures[f"{name}: CPU seconds of an instance"] = at_most(found["seconds"], SECONDS)
        rest[name] = {
            "standard errors": {level: float(found[level].std() / np.sqrt(count)) for level in RANGES},
            "worst instances, 95 %": np.sort(found[95])[:5].tolist(),
            **{key: found[key] for key in ("statuses", "force Q², mean", "force Q², worst", "trust")},
        }
        chances |= {f"{name}: {what}": float(stats.kstest(ranks, "uniform").pvalue) for what, ranks in found["ranks"]}
    least = min(chances, key=lambda one: chances[one])
    figures["ranks: smallest p × number of tests"] = at_least(chances[least] * len(chances), SURPRISE)
    rest["ranks"] = {"tests": len(chances), "least uniform": dict(sorted(chances.items(), key=lambda one: one[1])[:8])}
    return {"figures": figures, "instances": count, "designs": rest}


def drawn(name: str, count: int) -> tuple[Model, list[Instance]]:
    """The model of a design, and its first instances."""
    shipped, points = yaml.safe_load(SHIPPED.read_text()), DESIGNS[name]
    priors = {key: shipped[key] for key in ("mechanism", "force", "likelihood")}
    wanted = {**priors, "instances": count, "points": points, "truth_points": points, "num_outputs": 5, "stop": 11.0}
    instances = [_observed(name, one) for one in simulate_from(build(SimulateConfig, {**wanted, "seed": 0}))]
    if name == "noise":
        priors["likelihood"] = {"shared": True, "prior": {"kind": "lognormal", "median": 0.1, "spread": 1.0}}
    return model_of(build(FitConfig, priors), instances), instances


def _design(name: str, count: int) -> dict[Any, Any]:
    model, instances = drawn(name, count)
    options = InferenceConfig(grid_points=len(instances[0].times))
    start, results = time.process_time(), []
    for first in range(0, count, BATCH):
        results += fit_instances(model, [one.blind() for one in instances[first : first + BATCH]], options)
    seconds = (time.process_time() - start) / count
    truths = [one.truth.force for one in instances if one.truth is not None and one.truth.force is not None]
    scores = [q2(one.force.mean, true) for one, true in zip(results, truths, strict=True)]
    covered = {
        level: np.array([coverage(one.force, true, level) for one, true in zip(results, truths, strict=True)])
        for level in RANGES
    }
    statuses = dict(Counter(one.status for one in results))
    figures = {"force Q², mean": float(np.mean(scores)), "force Q², worst": float(np.min(scores))}
    trust = {
        "effective draws, 0, 5, 50 %": np.quantile([one.effective_draws for one in results], [0, 0.05, 0.5]).tolist(),
        "Pareto k, 50, 95, 100 %": np.quantile([one.tail for one in results], [0.5, 0.95, 1]).tolist(),
    }
    ranks = np.array([_ranks(one, instance) for one, instance in zip(results, instances, strict=True)])
    named = [*model.space.free_names, *(f"force at {time:.3g}" for time in _ranked_times(instances[0]))]
    found = {"seconds": seconds, "statuses": statuses, "trust": trust, "ranks": list(zip(named, ranks.T, strict=True))}
    return {**covered, **found, **figures}


def _ranked_times(one: Instance) -> FloatArray:
    assert one.truth is not None
    return one.truth.times.take(np.linspace(0, len(one.truth.times) - 1, RANKED_TIMES).astype(int))


def _ranks(result: FitResult, instance: Instance) -> FloatArray:
    """Share of the posterior below the truth: of each unknown, then of the force."""
    truth, space, unknowns = instance.truth, result.posterior.model.space, result.posterior.unknowns()
    assert truth is not None
    assert truth.force is not None
    values = space.unpack(unknowns.proposals[:, result.row])
    weights = unknowns.weights[:, result.row]
    found = [
        float(weights[values[one.name][:, i] < float(np.ravel(truth.parameters[one.name])[i])].sum())
        for one in space.parameters
        for i in one.free
    ]
    times = torch.from_numpy(_ranked_times(instance)).unsqueeze(0)
    with torch.no_grad():
        force = result.posterior.predict(torch.tensor([result.row]), times).force
    true = torch.from_numpy(np.interp(times[0].numpy(), truth.times, truth.force[0]))
    below = torch.special.ndtr((true - force.means[:, 0, 0]) / force.variances[:, 0, 0].sqrt()).mean(0)
    return np.array([*found, *below.tolist()])


def _observed(name: str, one: Instance) -> Instance:
    """What a design shows of an instance."""
    assert one.truth is not None
    assert one.truth.force is not None
    if name == "two genes absent":
        return replace(one, mask=one.mask & (np.arange(len(one.outputs)) < 3)[:, None])
    if name != "first half":
        return one
    half = (len(one.times) + 1) // 2
    truth = replace(one.truth, times=one.truth.times[:half], force=one.truth.force[:, :half], outputs=None, scored=None)
    return replace(one, times=one.times[:half], values=one.values[:, :half], mask=one.mask[:, :half], truth=truth)
