"""p53 in MCF7 cells: the inferred force oscillates with its known period."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.goals import between
from distlfm.config import load
from distlfm.instance import FloatArray
from distlfm.pipeline.fit import fit
from distlfm.pipeline.settings import FitConfig

CONFIG = Path("configs/fit/hafner.yaml")


def run(quick: bool = False) -> dict[str, Any]:
    overrides = ["inference.variational.iterations=50"] if quick else []
    done = fit(load(FitConfig, CONFIG, overrides))
    periods = {result.id: period(result.grid.times, result.grid.force.mean[0]) for result in done.results}
    figures = {f"period of replicate {name}, h": between(value, 4.5, 6.5) for name, value in periods.items()}
    return {"figures": figures, "instances": done.summary["instances"]}


def period(times: FloatArray, force: FloatArray) -> float:
    """Mean distance between consecutive maxima; infinite where there is only one."""
    inner = (force[1:-1] > force[:-2]) & (force[1:-1] >= force[2:])
    peaks = times[1:-1][inner]
    return float(np.diff(peaks).mean()) if len(peaks) > 1 else float("inf")
