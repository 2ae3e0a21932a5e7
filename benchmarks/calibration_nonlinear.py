"""Simulation-based calibration through the solver: a softplus response, and Lotka–Volterra with its rates unknown."""

from __future__ import annotations

import time
from collections import defaultdict
from itertools import product
from typing import Any

import numpy as np

from benchmarks.calibration import count_hits
from benchmarks.goals import between
from distlfm.config import build
from distlfm.fleets.fit_job import model_of
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.verbs.demo import MODEL, PRIORS

BATCH = 32
FORCE = "force "
TIMES = 34
METHODS = ("auto", "variational")
GOALS = {68: (0.58, 0.78), 95: (0.88, 0.98)}
"""Few instances, each with one force: the share of a hundred of them scatters by some per cent."""

GENES: dict[str, Any] = {
    **MODEL,
    "mechanism": {
        "kind": "transcription",
        "response": {"kind": "softplus"},
        "priors": PRIORS,
        "fixed": {"sensitivity": {"output_0": 1.0}},
    },
    "likelihood": {"shared": True, "prior": {"kind": "lognormal", "median": 0.07, "spread": 0.3}},
}
PREDATORS: dict[str, Any] = {
    "mechanism": {
        "kind": "lotka_volterra",
        "response": {"kind": "softplus"},
        "priors": {
            "growth": {"kind": "lognormal", "median": 0.5, "spread": 0.3},
            "mortality": {"kind": "lognormal", "median": 0.5, "spread": 0.3},
            "initial": {"kind": "lognormal", "median": 1.0, "spread": 0.5},
        },
    },
    "force": {
        "priors": {
            "lengthscale": {"kind": "lognormal", "median": 1.5, "spread": 0.3},
            "variance": {"kind": "lognormal", "median": 1.0, "spread": 0.3},
        }
    },
    "likelihood": {"prior": {"kind": "lognormal", "median": 0.05, "spread": 0.3}},
}
SETS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "softplus": (GENES, {"points": 12}, 96),
    "predator": (PREDATORS, {"points": 16, "stop": 8.0}, 48),
}
"""Model, when it is observed, and how many instances."""


def run(quick: bool = False) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    found: dict[str, Any] = {}
    for (set_name, (content, observed, whole)), method in product(SETS.items(), METHODS):
        name = set_name if method == "auto" else f"{set_name}, {method}"
        count = 16 if quick else whole
        hits, told = measure(content, observed, count, InferenceConfig(method=method))
        found[name] = told
        for key, shares in sorted(hits.items()):
            if not key.startswith(FORCE):
                told["parameters"][key] = float(np.mean(shares))
        for level, goal in GOALS.items():
            force = float(np.mean(hits[f"{FORCE}{level}"]))
            figures[f"{name}: force, {level} % bands hold"] = between(force, *goal)
            every = [
                hit
                for key, shares in hits.items()
                if key.endswith(f" {level}") and not key.startswith(FORCE)
                for hit in shares
            ]
            figures[f"{name}: parameters together, {level} % intervals hold"] = between(float(np.mean(every)), *goal)
    return {"figures": figures, "sets": found}


def measure(
    content: dict[str, Any], observed: dict[str, Any], count: int, options: InferenceConfig | None = None
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Hits by kind and level, and what else there is to tell; every instance counts, whatever its status."""
    settings = {**content, **observed, "instances": count, "truth_points": TIMES, "seed": 17}
    instances = simulate_from(build(SimulateConfig, settings))
    model = model_of(build(FitConfig, content), instances)
    options = (options or InferenceConfig()).model_copy(update={"grid_points": TIMES})
    hits: dict[str, list[float]] = defaultdict(list)
    statuses: dict[str, int] = defaultdict(int)
    seconds, effective = 0.0, []
    for start in range(0, count, BATCH):
        before = time.process_time()
        results = fit_instances(model, instances[start : start + BATCH], options)
        seconds += time.process_time() - before
        for result in results:
            statuses[result.status] += 1
            effective.append(result.effective_draws)
            count_hits(result, hits)
    told = {
        "instances": count,
        "statuses": dict(statuses),
        "CPU seconds an instance": seconds / count,
        "effective draws, quantiles 0, 10, 50 %": [float(x) for x in np.quantile(effective, [0, 0.1, 0.5])],
        "parameters": {},
    }
    return hits, told
