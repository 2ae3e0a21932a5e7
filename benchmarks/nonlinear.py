"""Nonlinear series: CPU time of `joint` against `nested`, coverage and ranks of simulated instances, the worst."""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from typing import Any

import numpy as np
from scipy import stats

from benchmarks.calibration import count_hits
from benchmarks.calibration_nonlinear import FORCE, GENES, PREDATORS, TIMES
from benchmarks.goals import at_least, at_most, between
from distlfm.config import build
from distlfm.fleets.fit_job import model_of
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import Model
from distlfm.inference.result import FitResult
from distlfm.instance import Instance
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from

BATCH = 64
SURPRISE = 0.01
"""Smallest p-value of a test of ranks times the number of tests."""

GOALS = {68: (0.65, 0.71), 95: (0.93, 0.97)}
COUNTS: dict[str, Any] = {
    **GENES,
    "mechanism": {**GENES["mechanism"], "fixed": {"sensitivity": 60.0, "basal": 2.0}},
    "likelihood": {"kind": "poisson"},
}
HILL: dict[str, Any] = {
    **GENES,
    "mechanism": {
        **GENES["mechanism"],
        "forces": ["f", "g"],
        "response": {"kind": "hill"},
        "fixed": {"sensitivity": 1.0},
    },
}
PERIODIC: dict[str, Any] = {
    **PREDATORS,
    "force": {
        "kernel": {"kind": "periodic"},
        "priors": {
            "lengthscale": {"kind": "lognormal", "median": 1.5, "spread": 0.3},
            "period_length": {"kind": "lognormal", "median": 4.0, "spread": 0.1},
            "variance": {"kind": "lognormal", "median": 1.0, "spread": 0.3},
        },
    },
}
SETS: dict[str, tuple[dict[str, Any], dict[str, Any], float, int]] = {
    "softplus, 12 times": (GENES, {"points": 12}, 0.1, 500),
    "softplus, 40 times": (GENES, {"points": 40}, 0.5, 64),
    "predator": (PREDATORS, {"points": 16, "stop": 8.0}, 0.1, 500),
    "predator, periodic": (PERIODIC, {"points": 16, "stop": 8.0}, 0.1, 64),
    "predator, 500 times": (PREDATORS, {"points": 500, "stop": 40.0}, 2.0, 8),
    "counts, 24 times": (COUNTS, {"points": 24}, 0.5, 64),
    "hill with two forces": (HILL, {"points": 12}, 2.0, 64),
}
"""Model, when it is observed, CPU seconds an instance that it may take, and how many instances."""

COMPARED = ("softplus, 12 times", "predator")
"""Sets of which `nested` fits some instances too; FEWER of them."""

FEWER, RATIO = 4, 30.0
QUICK, LONG = 4, 100
"""Instances of a set in the small version, which leaves out sets of more times than these."""


def run(quick: bool = False) -> dict[str, Any]:
    """Set DISTLFM_BENCHMARK_INSTANCES for another number of instances than the 500 of the sets with coverage."""
    figures: dict[str, Any] = {}
    told: dict[str, Any] = {}
    for name, (content, observed, goal, whole) in SETS.items():
        if quick and observed["points"] > LONG:
            continue
        count = QUICK if quick else min(whole, int(os.environ.get("DISTLFM_BENCHMARK_INSTANCES", whole)))
        model, instances = _simulated(content, observed, count)
        results, seconds = _fitted(model, instances, "joint")
        figures[f"{name}: CPU s an instance"] = at_most(seconds, goal)
        statuses = Counter(one.status for one in results)
        doubtful = sum(not one.trustworthy for one in results) / count
        figures[f"{name}: share unreliable"] = at_most(doubtful, 0.03)
        hits: dict[str, list[float]] = defaultdict(list)
        for one in results:
            count_hits(one, hits)
        for level, wanted in GOALS.items():
            of_force = float(np.mean(hits[f"{FORCE}{level}"]))
            others = [
                x for key, shares in hits.items() if key.endswith(f" {level}") for x in shares if FORCE not in key
            ]
            figures[f"{name}: force, {level} % bands hold"] = between(of_force, *wanted)
            figures[f"{name}: parameters, {level} % intervals hold"] = between(float(np.mean(others)), *wanted)
        ranks = np.array([_ranks(one, instance) for one, instance in zip(results, instances, strict=True)])
        chances = [float(stats.kstest(column, "uniform").pvalue) for column in ranks.T]
        if chances:
            figures[f"{name}: smallest p of ranks × tests"] = at_least(min(chances) * len(chances), SURPRISE)
        order = np.argsort([one.effective_draws for one in results])[:5]
        told[name] = {
            "instances": count,
            "statuses": dict(statuses),
            "effective draws, quantiles 0, 10, 50 %": [
                float(x) for x in np.quantile([one.effective_draws for one in results], [0, 0.1, 0.5])
            ],
            "worst": [(results[i].id, results[i].effective_draws, results[i].status) for i in order],
        }
        if name in COMPARED:
            _, slower = _fitted(model, instances[: 2 if quick else FEWER], "nested")
            told[name]["CPU s an instance by nested"] = slower
            figures[f"{name}: nested over joint"] = at_least(slower / seconds, RATIO)
    return {"figures": figures, "sets": told}


def _simulated(content: dict[str, Any], observed: dict[str, Any], count: int) -> tuple[Model, list[Instance]]:
    settings = {**content, **observed, "instances": count, "truth_points": TIMES, "seed": 17}
    instances = simulate_from(build(SimulateConfig, settings))
    return model_of(build(FitConfig, content), instances), instances


def _fitted(model: Model, instances: list[Instance], method: str) -> tuple[list[FitResult], float]:
    """Results, and CPU seconds an instance."""
    options = InferenceConfig(method=method, grid_points=TIMES)
    start, found = time.process_time(), []
    for first in range(0, len(instances), BATCH):
        found += fit_instances(model, instances[first : first + BATCH], options)
    return found, (time.process_time() - start) / len(instances)


def _ranks(result: FitResult, instance: Instance) -> list[float]:
    """Share of the posterior below the truth, of each unknown."""
    truth, space, unknowns = instance.truth, result.posterior.model.space, result.posterior.unknowns()
    assert truth is not None
    values, weights = space.unpack(unknowns.proposals[:, result.row]), unknowns.weights[:, result.row]
    return [
        float(weights[values[one.name][:, i] < float(np.ravel(truth.parameters[one.name])[i])].sum())
        for one in space.parameters
        for i in one.free
    ]
