"""Counts: the force behind simulated Poisson and negative-binomial observations."""

from __future__ import annotations

from typing import Any

from benchmarks.goals import at_least, between
from distlfm.config import build
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.verbs.fit import fit

KINDS = ("poisson", "negative_binomial")


def model(kind: str) -> dict[str, Any]:
    """Five genes with tens to hundreds of counts, driven by a positive force."""
    return {
        "mechanism": {
            "kind": "transcription",
            "response": {"kind": "softplus"},
            "fixed": {"sensitivity": {"output_0": 50.0}},
            "priors": {
                "basal": {"kind": "lognormal", "median": 5.0, "spread": 0.5},
                "sensitivity": {"kind": "lognormal", "median": 50.0, "spread": 0.4},
                "decay": {"kind": "lognormal", "median": 0.5, "spread": 0.3},
            },
        },
        "force": {
            "priors": {
                "lengthscale": {"kind": "lognormal", "median": 1.8, "spread": 0.2},
                "variance": {"kind": "lognormal", "median": 2.0, "spread": 0.3},
            }
        },
        "likelihood": {"kind": kind, "dispersion": {"kind": "lognormal", "median": 0.02, "spread": 0.3}},
    }


def run(quick: bool = False) -> dict[str, Any]:
    figures, instances = {}, {}
    for kind in KINDS:
        drawn = simulate_from(build(SimulateConfig, {**model(kind), "instances": 2 if quick else 6, "points": 24}))
        summary = fit(build(FitConfig, model(kind)), data=drawn).summary
        instances[kind] = summary["instances"]
        figures[f"{kind}: latent Q², mean"] = at_least(summary["mean"]["latent_q2"], 0.9)
        figures[f"{kind}: 95 % bands of the force cover, mean"] = between(
            summary["mean"]["latent_coverage_95"], 0.85, 1.0
        )
    return {"figures": figures, "instances": instances}
