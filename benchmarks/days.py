"""What the filter gains over dense matrices for days of glucose with 97 values, and what irregular times cost."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.goals import at_least, at_most
from distlfm.config import build, load
from distlfm.fleets.fit_job import model_of
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import Model
from distlfm.instance import Instance
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from

CONFIG = Path(__file__).parent.parent / "configs" / "fit" / "glucose.yaml"
DAYS, POINTS = 32, 97


def run(quick: bool = False) -> dict[str, Any]:
    config = load(FitConfig, CONFIG)
    shared = {"mechanism": config.mechanism, "force": config.force, "likelihood": config.likelihood}
    about = {"instances": 4 if quick else DAYS, "stop": 1440.0, "points": POINTS, "seed": 3}
    regular = simulate_from(build(SimulateConfig, {**_plain(shared), **about}))
    irregular = [_shifted(day, number) for number, day in enumerate(regular)]
    model = model_of(config, regular)
    fit_instances(model, regular[:1], InferenceConfig())  # what is done once in a process
    seconds = {
        "filter": _seconds(model, regular, "filter"),
        "collapsed": _seconds(model, regular, "collapsed"),
        "irregular": _seconds(model, irregular, "filter"),
    }
    figures = {
        "days fitted by the filter, over dense matrices": at_least(seconds["collapsed"] / seconds["filter"], 2.0),
        "irregular times over regular ones, cost": at_most(seconds["irregular"] / seconds["filter"], 3.0),
    }
    return {"figures": figures, "days": len(regular), "seconds of each": seconds}


def _plain(sections: dict[str, Any]) -> dict[str, Any]:
    return {name: one if isinstance(one, dict) else one.model_dump() for name, one in sections.items()}


def _shifted(day: Instance, number: int) -> Instance:
    """The same values at times of its own, each up to three minutes later."""
    late = np.random.default_rng(number).uniform(0.0, 3.0, len(day.times))
    return replace(day, times=day.times + late, truth=None)


def _seconds(model: Model, days: Sequence[Instance], method: str) -> float:
    start = time.perf_counter()
    fit_instances(model, days, build(InferenceConfig, {"method": method}))
    return time.perf_counter() - start
