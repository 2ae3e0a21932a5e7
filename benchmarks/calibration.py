"""Simulation-based calibration: how often intervals hold the truth, over instances drawn from the fit's own priors."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from benchmarks.goals import between
from distlfm.config import build
from distlfm.fleets.fit_job import model_of
from distlfm.inference.findings.scores import coverage
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.result import FitResult
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.verbs.demo import MODEL

INSTANCES = 2048
BATCH = 128
TIMES = 34
RANGES = {68: (0.65, 0.71), 95: (0.93, 0.97)}


def run(quick: bool = False) -> dict[str, Any]:
    count = 128 if quick else INSTANCES
    instances = simulate_from(build(SimulateConfig, {**MODEL, "instances": count, "truth_points": TIMES, "seed": 11}))
    model = model_of(build(FitConfig, MODEL), instances)
    options = InferenceConfig(grid_points=TIMES)
    hits: dict[str, list[float]] = defaultdict(list)
    statuses: dict[str, int] = defaultdict(int)
    effective: list[float] = []
    for start in range(0, count, BATCH):
        for result in fit_instances(model, instances[start : start + BATCH], options):
            statuses[result.status] += 1
            effective.append(result.effective_draws)
            count_hits(result, hits)
    figures = {}
    for name, found in sorted(hits.items()):
        kind, level = name.rsplit(" ", 1)
        figures[f"{kind}, {level} % intervals cover"] = between(float(np.mean(found)), *RANGES[int(level)])
    return {
        "figures": figures,
        "instances": count,
        "statuses": dict(statuses),
        "effective draws, quantiles 0, 10, 50 %": [float(x) for x in np.quantile(effective, [0, 0.1, 0.5])],
    }


def count_hits(result: FitResult, hits: dict[str, list[float]]) -> None:
    """Every instance counts, whatever its status."""
    truth = result.instance.truth
    assert truth is not None
    assert truth.force is not None
    assert np.allclose(result.grid.times, truth.times)
    labels = {parameter.name: parameter.labels for parameter in result.posterior.model.space.parameters}
    for level in RANGES:
        hits[f"force {level}"].append(coverage(result.grid.force, truth.force, level))
        for one in result.estimates:
            if one.parameter not in truth.parameters:
                continue
            place = labels[one.parameter].index(one.label) if one.label else 0
            true = float(np.ravel(truth.parameters[one.parameter])[place])
            inside = getattr(one, f"lower{level}") <= true <= getattr(one, f"upper{level}")
            hits[f"{one.parameter} {level}"].append(float(inside))
