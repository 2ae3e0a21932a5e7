"""What the toy field's 68 % band can be held to where its rates are learned: other fields of the same rates.

Fields are drawn as the toy was (its rates, lengthscales, noise, and share of the points), and fitted by its config. A
force inferred with unknown rates is off, all over, by what the rates are off: within one field its points lie in the
band together or outside together, so that the share of one field says little, and only the mean over fields is held to
anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.goals import between
from distlfm.config import build, load
from distlfm.fleets.fit_job import model_of
from distlfm.inference.findings.scores import coverage, q2
from distlfm.inference.fit import fit_instances
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from

CONFIG = Path("configs/fit/reaction_diffusion_noisy.yaml")
RATES = {"decay": 0.1, "diffusion": 0.01}
SURE = 1e-3
FIELDS = 20


def drawn(count: int) -> SimulateConfig:
    """Fields whose hyperparameters are the toy's."""
    shipped = load(FitConfig, CONFIG)
    mechanism = {**shipped.mechanism, "fixed": {"sensitivity": 1.0, **RATES}}

    def at(value: float) -> dict[str, Any]:
        return {"kind": "lognormal", "median": value, "spread": SURE}

    return build(
        SimulateConfig,
        {
            "mechanism": mechanism,
            "force": {"kernel": {"kind": "rbf"}, "priors": {"lengthscale": at(0.212), "variance": at(1.0)}},
            "likelihood": {"prior": at(0.008)},
            "instances": count,
            "stop": 1.0,
            "points": 41,
            "places": 41,
            "missing": 0.7,
            "seed": 11,
        },
    )


def run(quick: bool = False) -> dict[str, Any]:
    rows = []
    config = load(FitConfig, CONFIG)
    for one in simulate_from(drawn(2 if quick else FIELDS)):
        instance = one.observed()
        [result] = fit_instances(model_of(config, [instance]), [instance], config.inference)
        truth = instance.truth
        assert truth is not None
        assert truth.force is not None
        force = result.predict(truth.times, truth.positions).force
        row = {f"within {level} %": coverage(force, truth.force, level) for level in (68, 95)}
        row["latent Q²"] = q2(force.mean, truth.force)
        for found in result.estimates:
            if found.name in RATES:
                row |= {f"{found.name}": found.mean, f"{found.name}, deviations off": _off(found)}
        rows.append(row)
    shares = np.array([row["within 68 %"] for row in rows])
    return {
        "figures": {"68 % coverage of the force, mean over fields": between(float(shares.mean()), 0.60, 0.76)},
        "standard error": float(shares.std(ddof=1) / np.sqrt(len(shares))),
        "a tenth of the fields below, above": [float(np.quantile(shares, share)) for share in (0.1, 0.9)],
        "fields": rows,
    }


def _off(found: Any) -> float:
    return float((found.mean - RATES[found.name]) / found.sd)
