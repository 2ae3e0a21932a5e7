"""Instances a second in a batch of 128 against the same fits one by one, on one core, and how cost and memory grow."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.goals import at_least, at_most, between
from benchmarks.reference import COARSE_STEP, EPOCHS, fit_reference
from distlfm.config import build
from distlfm.fleets.fit_job import model_of
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray, Instance
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.verbs.demo import MODEL
from distlfm.verbs.fit import fit

BATCH = 128
ONE_BY_ONE = 3
FLEETS = (128, 512)
FLEET_BATCH = 32
"""Fleets of small instances whose peak memory is compared, both in batches of the same size."""


def run(quick: bool = False) -> dict[str, Any]:
    batch, singles, epochs = (16, 1, 20) if quick else (BATCH, ONE_BY_ONE, EPOCHS)
    content = {**MODEL, "instances": batch, "points": 23, "num_outputs": 5, "seed": 3}
    full = simulate_from(build(SimulateConfig, content))
    # Without the truth, as data have none: where it is known, a fit is also predicted at it.
    train = [instance.thinned(2).blind() for instance in full]
    model = model_of(build(FitConfig, MODEL), train)
    options = InferenceConfig()

    timings = {}
    results: list[FitResult] = []
    for size in (batch // 4, batch):
        start = time.perf_counter()
        results = fit_instances(model, train[:size], options)
        timings[size] = time.perf_counter() - start
    ours = [_held_out(full[i], *_ours(results[i], _held_times(full[i]))) for i in range(batch)]

    start = time.perf_counter()
    reference = []
    for instance, whole in zip(train[:singles], full[:singles], strict=True):
        found = fit_reference(instance, _held_times(whole), epochs)
        reference.append(_held_out(whole, found.mean, found.variance))
    reference_seconds = (time.perf_counter() - start) / singles
    rate = batch / timings[batch]
    begun = time.perf_counter()
    fit_reference(train[0], _held_times(full[0]), epochs, step=COARSE_STEP)
    coarse_seconds = time.perf_counter() - begun
    peaks = [peak_of(count // 4 if quick else count) for count in FLEETS]
    figures = {
        "speed-up over one by one": at_least(rate * reference_seconds, 60),
        "held-out log-density, ours minus the reference's": at_least(
            float(np.mean(ours[:singles]) - np.mean(reference)), 0.0
        ),
        "cost of four times the instances": between(timings[batch] / timings[batch // 4], 1.0, 4.4),
        "peak memory of the larger fleet over that of the smaller": at_most(peaks[1] / peaks[0], 1.15),
    }
    return {
        "figures": figures,
        "instances a second": rate,
        "reference seconds an instance": reference_seconds,
        "reference seconds with a step of 0.5": coarse_seconds,
        "speed-up over one by one with a step of 0.5": rate * coarse_seconds,
        "held-out log-density of each instance": {"ours": ours[:singles], "reference": reference},
        "held-out log-density over the whole batch": float(np.mean(ours)),
        "peak memory of the fleets, MB": peaks,
        "peak memory for each further instance, MB": (peaks[1] - peaks[0]) / (FLEETS[1] - FLEETS[0]),
    }


def peak_of(count: int) -> float:
    """Peak memory, in MB, of a process of its own that simulates and fits `count` instances into a run directory.

    The least of three: the same run has been seen to peak a quarter higher at times, by how memory was handed out.
    """
    program = f"from benchmarks.speed import fit_fleet; fit_fleet({count})"
    command = [sys.executable, "-c", program]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True) for _ in range(3)]
    return min(float(done.stdout.split()[-1]) for done in runs)


def fit_fleet(count: int) -> None:
    """What `peak_of` runs: prints its own peak memory in MB."""
    small = {"num_outputs": 2, "points": 6, "truth_points": 6}
    instances = simulate_from(build(SimulateConfig, {**MODEL, **small, "instances": count, "seed": 3}))
    with tempfile.TemporaryDirectory() as out:
        run = {"dir": out, "batch": FLEET_BATCH, "executor": "serial"}
        fit(build(FitConfig, {**MODEL, "run": run, "inference": {"grid_points": 20}}), instances)
    # Not ru_maxrss: a child inherits that of the process which started it.
    status = Path("/proc/self/status").read_text(encoding="ascii")
    print(next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM")) / 1024)


def _held_times(instance: Instance) -> FloatArray:
    """The times between those that are fitted."""
    return instance.times[1::2]


def _ours(result: FitResult, query: FloatArray) -> tuple[FloatArray, FloatArray]:
    assert result.noise_sd is not None
    band = result.predict(query).outputs
    return band.mean, band.sd**2 + result.noise_sd[:, None] ** 2


def _held_out(instance: Instance, mean: FloatArray, variance: FloatArray) -> float:
    """Mean log-density of the measurements between the fitted ones."""
    left = replace(instance, truth=None).values[:, 1::2]
    return float((-0.5 * ((left - mean) ** 2 / variance + np.log(2 * math.pi * variance))).mean())
