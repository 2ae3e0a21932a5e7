"""Lotka–Volterra with unseen prey: what a periodic and an RBF kernel make of the second half, which is not shown."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.integrate import solve_ivp

from benchmarks.goals import at_least
from distlfm.config import load
from distlfm.inference.findings.scores import q2
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.runs.settings import FitConfig
from distlfm.verbs.fit import fit

CONFIG = Path("configs/fit/lotka_volterra.yaml")
END, SHOWN, NOISE = 30.0, 15.0, 0.02
RATES = ((2 / 3, 4 / 3), (1.1, 1.2), (0.8, 1.0), (1.0, 0.9))
"""Growth of prey and predation; the predator grows on prey and dies at rate 1, which the fit knows."""

FLOOR = -1.0
"""Q² is unbounded below: for the comparison of kernels, worse than this is not told apart."""


def system(number: int) -> Instance:
    """A predator and its prey, of which the predator is seen up to half the time."""
    birth, eaten = RATES[number]

    def flow(_: float, state: FloatArray) -> list[float]:
        prey, predator = state
        return [birth * prey - eaten * prey * predator, prey * predator - predator]

    times = np.linspace(0, END, 301)
    prey, predator = solve_ivp(flow, (0, END), [1.4, 0.8], t_eval=times, rtol=1e-9, atol=1e-9).y
    shown = np.flatnonzero(times <= SHOWN)[::4]
    noise = NOISE * np.random.default_rng(number).standard_normal(len(shown))
    truth = Truth(times, prey[None], predator[None])
    values = (predator[shown] + noise)[None]
    return Instance(
        f"system_{number}", ("predator",), times[shown], values, np.ones_like(values, dtype=bool), truth=truth
    )


def run(quick: bool = False) -> dict[str, Any]:
    instances = [system(i) for i in range(1 if quick else len(RATES))]
    scores = {}
    for kernel in ("periodic", "rbf"):
        overrides = [f"force.kernel.kind={kernel}", f"inference.until={END}"]
        if kernel == "rbf":
            overrides.append("force.priors={lengthscale: {kind: lognormal, median: 1.5, spread: 0.5}}")
        done = fit(load(FitConfig, CONFIG, overrides), data=instances)
        scores[kernel] = [_second_half(result) for result in done.results]
    predator = {kernel: [row["predator"] for row in rows] for kernel, rows in scores.items()}
    prey = {kernel: [row["prey"] for row in rows] for kernel, rows in scores.items()}
    gain = {
        name: float(np.mean(np.maximum(found["periodic"], FLOOR)) - np.mean(np.maximum(found["rbf"], FLOOR)))
        for name, found in (("predator", predator), ("prey", prey))
    }
    figures = {
        "periodic: predator Q² on the unseen half, worst": at_least(min(predator["periodic"]), 0.9),
        "periodic: prey Q² on the unseen half, worst": at_least(min(prey["periodic"]), 0.9),
        "gain over RBF, predator, mean": at_least(gain["predator"], 0.2),
        "gain over RBF, prey, mean": at_least(gain["prey"], 0.2),
    }
    return {"figures": figures, "scores": scores}


def _second_half(result: Any) -> dict[str, Any]:
    truth = result.instance.truth
    later = truth.times > SHOWN
    found = result.predict(truth.times[later])
    return {
        "predator": q2(found.outputs.mean, truth.outputs[:, later]),
        "prey": q2(found.force.mean, truth.force[:, later]),
        "status": result.status,
        "parameters": {one.name: [one.mean, one.sd] for one in result.estimates},
    }
