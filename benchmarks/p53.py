"""p53 after irradiation: data within the curves, kinetics over ten starts beside the analytic ones, one early peak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.goals import at_least, between
from distlfm.config import load
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray
from distlfm.runs.settings import FitConfig
from distlfm.verbs.fit import fit

CONFIG = Path("configs/fit/p53.yaml")
KINETICS = ("basal", "sensitivity", "decay")


def run(quick: bool = False) -> dict[str, Any]:
    starts = 3 if quick else 10
    ours = fit(load(FitConfig, CONFIG)).results
    analytic = fit(load(FitConfig, CONFIG, ["inference.method=exact"])).results
    variational = [
        fit(
            load(FitConfig, CONFIG, ["inference.method=variational", f"run.seed={seed}", "inference.restarts=2"])
        ).results
        for seed in range(1 if quick else 2)
    ]
    by_start = [
        fit(load(FitConfig, CONFIG, [f"run.seed={seed}", "inference.random_start=true"])).results
        for seed in range(starts)
    ]
    within = np.mean([_within(result) for result in ours])
    peaks = [_peak(result) for result in ours]
    agreement = min(_agreement(result, oracle) for result, oracle in zip(ours, analytic, strict=True))
    through = min(
        _agreement(result, oracle) for run in variational for result, oracle in zip(run, analytic, strict=True)
    )
    maxima = max(num_peaks(result.grid.force.mean[0]) for result in ours)
    figures = {
        "data within 2 sd": at_least(float(within), 0.95),
        "earliest peak of p53, h": between(min(peaks), 2, 5),
        "latest peak of p53, h": between(max(peaks), 2, 5),
        "mean force within the analytic 95 % band, share of times, worst replicate": at_least(agreement, 0.95),
        "the same through the solver": at_least(through, 0.95),
        "most local maxima above half the peak": between(maxima, 1, 1),
    }
    return {
        "figures": figures,
        "kinetics by start": [[_kinetics(result) for result in results] for results in by_start],
        "kinetics analytic": [_kinetics(result) for result in analytic],
    }


def _within(result: FitResult) -> float:
    """Share of the data within 2 sd (curve and measurement) of the fitted curve."""
    instance, band = result.instance, result.at_data.outputs
    assert instance.variance is not None
    sd = np.sqrt(band.sd**2 + instance.variance)
    return float((np.abs(instance.values - band.mean) <= 2 * sd)[instance.mask].mean())


def _peak(result: FitResult) -> float:
    return float(result.grid.times[np.argmax(result.grid.force.mean[0])])


def num_peaks(force: FloatArray) -> int:
    """Local maxima of a force [N] above half its peak."""
    inner = (force[1:-1] > force[:-2]) & (force[1:-1] > force[2:]) & (force[1:-1] > 0.5 * force.max())
    return int(inner.sum())


def _agreement(result: FitResult, oracle: FitResult) -> float:
    mean, band = result.grid.force.mean, oracle.grid.force
    return float(((mean >= band.lower95) & (mean <= band.upper95)).mean())


def _kinetics(result: FitResult) -> dict[str, list[float]]:
    return {one.name: [one.mean, one.sd] for one in result.estimates if one.parameter in KINETICS}
