"""Calibration of fields: how often intervals hold the truth, over fields drawn from the priors, rates learned."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from benchmarks.goals import between
from distlfm.config import build
from distlfm.fleets.fit_job import model_of
from distlfm.inference.findings.scores import coverage
from distlfm.inference.fit import fit_instances
from distlfm.inference.survey import settle_fleet
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.verbs.demo import FIELD

INSTANCES, BATCH = 192, 16
RANGES = {68: (0.60, 0.76), 95: (0.91, 0.98)}
"""Two standard errors of so few instances to both sides, roughly: a field's points are far from independent."""


def run(quick: bool = False) -> dict[str, Any]:
    count = BATCH if quick else INSTANCES
    content = {**FIELD, "instances": count, "stop": 1.0, "points": 9, "places": 9, "missing": 0.3, "seed": 5}
    instances = [one.observed() for one in simulate_from(build(SimulateConfig, content))]
    config = build(FitConfig, FIELD)
    model = model_of(config, instances)
    options = settle_fleet(model, instances, config.inference)
    hits: dict[str, list[float]] = defaultdict(list)
    statuses: dict[str, int] = defaultdict(int)
    for start in range(0, count, BATCH):
        for result in fit_instances(model, instances[start : start + BATCH], options):
            statuses[result.status] += 1
            truth = result.instance.truth
            assert truth is not None
            assert truth.force is not None
            found = result.predict(truth.times, truth.positions)
            for level in RANGES:
                hits[f"force {level}"].append(coverage(found.force, truth.force, level))
                for one in result.estimates:
                    if one.kind != "mechanism":
                        continue
                    inside = getattr(one, f"lower{level}") <= truth.parameters[one.name][0]
                    inside = inside and truth.parameters[one.name][0] <= getattr(one, f"upper{level}")
                    hits[f"{one.name} {level}"].append(float(inside))
    figures = {
        f"{name.rsplit(' ', 1)[0]}, {name.rsplit(' ', 1)[1]} % intervals cover": between(
            float(np.mean(found)), *RANGES[int(name.rsplit(" ", 1)[1])]
        )
        for name, found in sorted(hits.items())
    }
    return {"figures": figures, "instances": count, "statuses": dict(statuses)}
