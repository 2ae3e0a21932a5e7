"""p53 in MCF7 cells: the inferred force oscillates with its known period."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import find_peaks

from benchmarks.goals import between
from distlfm.config import load
from distlfm.instance import FloatArray
from distlfm.runs.settings import FitConfig
from distlfm.verbs.fit import fit

CONFIG = Path("configs/fit/hafner.yaml")


def run(quick: bool = False) -> dict[str, Any]:
    overrides = ["inference.variational.iterations=50"] if quick else []
    done = fit(load(FitConfig, CONFIG, overrides))
    periods = {
        result.id: period(result.grid.times, result.grid.force.mean[0], result.grid.force.sd[0])
        for result in done.results
    }
    figures = {f"period of replicate {name}, h": between(value, 4.5, 6.5) for name, value in periods.items()}
    return {"figures": figures, "instances": done.summary["instances"]}


def period(times: FloatArray, force: FloatArray, sd: FloatArray) -> float:
    """Mean distance between consecutive maxima [N] that stand out by two of their own standard deviations."""
    places, shape = find_peaks(force, prominence=0)
    peaks = times[places[shape["prominences"] >= 2 * sd[places]]]
    return float(np.diff(peaks).mean()) if len(peaks) > 1 else float("inf")
