"""The paper's transcription sets: latent and output Q², parameter errors, for every method; and nonlinear responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.goals import at_least, at_most
from distlfm.config import build, load
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.verbs.fit import FitRun, fit

CONFIG = Path("configs/fit/transcription_toy.yaml")
RESPONSES: dict[str, dict[str, Any]] = {
    "softplus": {"response": {"kind": "softplus"}},
    # The shape of the Hill curve is taken as known: with it free, force and curve can trade places.
    "hill": {
        "response": {"kind": "hill"},
        "fixed_all": {"hill_weight": 2.0, "hill_bias": 0.0},
    },
}
NUM_SIMULATED = 5


def run(quick: bool = False) -> dict[str, Any]:
    methods = {
        name: fit(load(FitConfig, CONFIG, [f"inference.method={name}"]))
        for name in ("collapsed", "exact", "variational")
    }
    collapsed = methods["collapsed"].summary
    figures = {
        "output Q², worst set": at_least(collapsed["worst"]["output_q2"], 0.999),
        "latent Q², worst set": at_least(collapsed["worst"]["latent_q2"], 0.99),
        "sum of parameter errors, worst set": at_most(collapsed["worst"]["parameter_mae_sum"], 0.1),
        "variational latent Q², mean": at_least(methods["variational"].summary["mean"]["latent_q2"], 0.97),
    }
    nonlinear = {}
    for name, options in RESPONSES.items():
        nonlinear[name] = _simulated(options, 2 if quick else NUM_SIMULATED)
        figures[f"{name} latent Q², mean"] = at_least(nonlinear[name].summary["mean"]["latent_q2"], 0.95)
    every = {**methods, **nonlinear}
    return {"figures": figures, "instances": {name: done.summary["instances"] for name, done in every.items()}}


def _simulated(options: dict[str, Any], count: int) -> FitRun:
    """Noisy instances of five genes at 12 times with another response, fitted with the priors they come from."""
    genes = [f"output_{i}" for i in range(5)]
    fixed = {name: dict.fromkeys(genes, value) for name, value in options.get("fixed_all", {}).items()}
    model = {
        "mechanism": {
            "kind": "transcription",
            "response": options["response"],
            "fixed": {"sensitivity": {"output_0": 1.0}, **fixed},
            "priors": {
                "basal": {"kind": "lognormal", "median": 0.1, "spread": 0.5},
                "sensitivity": {"kind": "lognormal", "median": 1.0, "spread": 0.5},
                "decay": {"kind": "lognormal", "median": 0.4, "spread": 0.3},
            },
        },
        "force": {
            "priors": {
                "lengthscale": {"kind": "lognormal", "median": 1.8, "spread": 0.2},
                "variance": {"kind": "lognormal", "median": 2.0, "spread": 0.3},
            }
        },
        "likelihood": {"shared": True, "prior": {"kind": "lognormal", "median": 0.005, "spread": 0.3}},
    }
    instances = simulate_from(build(SimulateConfig, {**model, "instances": count, "seed": 7}))
    return fit(build(FitConfig, model), data=instances)
