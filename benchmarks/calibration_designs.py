"""Coverage of linear fits with sharp data: few and many times, half of the span, absent genes, a wrong prior of noise.

Instances are drawn from the priors of `configs/generate/transcription.yaml`, each with the same truth in every design.
Every instance counts, whatever its status. Standard errors are over instances, whose times are not independent.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks.goals import at_most, between
from distlfm.config import build
from distlfm.fleets.fit_job import model_of
from distlfm.inference.findings.scores import coverage, q2
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.instance import Instance
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from

INSTANCES, BATCH = 500, 50
SHIPPED = Path(__file__).resolve().parents[1] / "configs/generate/transcription.yaml"
DESIGNS = {"12 times": 12, "40 times": 40, "111 times": 111, "first half": 111, "two genes absent": 111, "noise": 111}
RANGES = {68: (0.65, 0.71), 95: (0.93, 0.97)}
SECONDS = 1.0


def run(quick: bool = False) -> dict[str, Any]:
    """Fit every design; one figure for each level, and the processor's seconds an instance."""
    count = 10 if quick else INSTANCES
    figures: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, points in DESIGNS.items():
        found = _design(name, points, count)
        for level, limits in RANGES.items():
            figures[f"{name}: force, {level} % intervals cover"] = between(float(found[level].mean()), *limits)
        figures[f"{name}: CPU seconds of an instance"] = at_most(found["seconds"], SECONDS)
        rest[name] = {
            "standard errors": {level: float(found[level].std() / np.sqrt(count)) for level in RANGES},
            "worst instances, 95 %": np.sort(found[95])[:5].tolist(),
            **{key: found[key] for key in ("statuses", "force Q², mean", "force Q², worst")},
        }
    return {"figures": figures, "instances": count, "designs": rest}


def _design(name: str, points: int, count: int) -> dict[Any, Any]:
    shipped = yaml.safe_load(SHIPPED.read_text())
    priors = {key: shipped[key] for key in ("mechanism", "force", "likelihood")}
    drawn = {**priors, "instances": count, "points": points, "truth_points": points, "num_outputs": 5, "stop": 11.0}
    instances = [_observed(name, one) for one in simulate_from(build(SimulateConfig, {**drawn, "seed": 0}))]
    if name == "noise":
        priors["likelihood"] = {"shared": True, "prior": {"kind": "lognormal", "median": 0.1, "spread": 1.0}}
    model = model_of(build(FitConfig, priors), instances)
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
    return {**covered, "seconds": seconds, "statuses": statuses, **figures}


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
