"""False alarms: how often an answer is called unreliable whose model is the one that the data were drawn from.

Every fleet is drawn from the priors that it is fitted with, so that each `unreliable` is one too many, but for answers
that missed by chance: `right by their own claim` counts how many of those called unreliable hold the truth of the force
within their 95 % band at most times. Fits that did not settle are counted apart.
"""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from benchmarks.calibration_nonlinear import GENES, PREDATORS
from benchmarks.counts import model as counts
from benchmarks.goals import at_most
from distlfm.config import build
from distlfm.fleets.fit_job import model_of
from distlfm.inference.findings.scores import coverage
from distlfm.inference.fit import fit_instances
from distlfm.inference.result import UNRELIABLE
from distlfm.inference.survey import settle_fleet
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.verbs.demo import FIELD, MODEL

MOST = 0.02
"""Share of false alarms."""

BATCH, HELD, WORDS = 32, 0.85, 160
SHIPPED = Path(__file__).resolve().parents[1] / "configs/generate"


def _shipped(name: str) -> dict[str, Any]:
    content = yaml.safe_load((SHIPPED / name).read_text())
    return {key: content[key] for key in ("mechanism", "force", "likelihood")}


DAY = {"points": 97, "stop": 1440.0, "missing": 0.02}
"""A day of glucose, a value each quarter of an hour."""

FLEETS: dict[str, tuple[dict[str, Any], dict[str, Any], int]] = {
    "genes, 12 times": (MODEL, {"points": 12}, 400),
    "genes, 40 times": (MODEL, {"points": 40}, 200),
    "genes, 111 times": (_shipped("transcription.yaml"), {"points": 111, "num_outputs": 5, "stop": 11.0}, 100),
    "glucose, a day": (_shipped("glucose.yaml"), DAY, 100),
    "softplus genes, 12 times": (GENES, {"points": 12}, 96),
    "predators, 16 times": (PREDATORS, {"points": 16, "stop": 8.0}, 96),
    "counts, Poisson": (counts("poisson"), {"points": 24}, 48),
    "counts, negative binomial": (counts("negative_binomial"), {"points": 24}, 48),
    "fields": (FIELD, {"stop": 1.0, "points": 9, "places": 9, "missing": 0.3}, 48),
}
"""Model, when it is observed, and how many instances."""


def run(quick: bool = False) -> dict[str, Any]:
    """Fit every fleet; one figure for each."""
    figures: dict[str, Any] = {}
    fleets: dict[str, Any] = {}
    for name, (content, observed, whole) in FLEETS.items():
        found = measure(content, observed, 2 if quick else whole)
        fleets[name] = found
        figures[f"{name}: share called unreliable"] = at_most(
            found["statuses"].get(UNRELIABLE, 0) / found["instances"], MOST
        )
    return {"figures": figures, "fleets": fleets}


def measure(content: dict[str, Any], observed: dict[str, Any], count: int) -> dict[str, Any]:
    """Statuses of a fleet, and the reasons of those that are unreliable."""
    drawn = simulate_from(build(SimulateConfig, {**content, **observed, "instances": count, "seed": 23}))
    instances = [one.observed() for one in drawn]
    config = build(FitConfig, content)
    model = model_of(config, instances)
    options = settle_fleet(model, instances, config.inference)
    statuses: Counter[str] = Counter()
    reasons: dict[str, str] = {}
    right, start = 0, time.process_time()
    for first in range(0, count, BATCH):
        for result in fit_instances(model, instances[first : first + BATCH], options):
            statuses[result.status] += 1
            if result.status == UNRELIABLE:
                truth = result.instance.truth
                assert truth is not None
                assert truth.force is not None
                force = result.predict(truth.times, truth.positions).force
                right += int(coverage(force, truth.force, 95) >= HELD)
                reasons[result.id] = result.advice[:WORDS]
    return {
        "instances": count,
        "statuses": dict(statuses),
        "unreliable, and right by their own claim": right,
        "reasons": reasons,
        "CPU seconds an instance": (time.process_time() - start) / count,
    }
