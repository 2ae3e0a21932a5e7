"""The last act of `make demo`: four sites tune an operator on their patients, who stay home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from distlfm.federated.simulate import PICTURE, gain_words, simulate
from distlfm.runtime.reporting import Reporter
from distlfm.store.files import put_quickly, storing

TITLE = "let four hospitals tune an operator for glucose without sharing a patient"

FORCE = {
    "kernel": {"kind": "matern52"},
    "priors": {
        "lengthscale": {"kind": "lognormal", "median": 40, "spread": 0.5},
        "variance": {"kind": "lognormal", "median": 0.3, "spread": 0.6},
    },
}
NOISE = {"prior": {"kind": "lognormal", "median": 2.0, "spread": 0.5}}


def mechanism(level: float, spread: float) -> dict[str, Any]:
    """Glucose that goes back to a level, mg/dL and minutes."""
    return {
        "kind": "glucose",
        "initial": "free",
        "priors": {
            "return_rate": {"kind": "lognormal", "median": 0.02, "spread": 0.3},
            "base_level": {"kind": "lognormal", "median": level, "spread": spread},
            "initial": {"kind": "lognormal", "median": level, "spread": 0.3},
        },
    }


FILES: dict[str, dict[str, Any]] = {
    "generate.yaml": {
        "verb": "generate",
        "instances": 600,
        "stop": 1440.0,
        "points": 289,
        "missing": 0.02,
        "gaps": {"number": 1.0, "length": 40.0},
        "mechanism": mechanism(120, 0.2),
        "force": FORCE,
        "likelihood": NOISE,
    },
    "train.yaml": {
        "verb": "train",
        "operator": {"modes": 16, "points": 73, "width": 32, "layers": 3},
        "augment": {"missing": 0.2},
        "loop": {"epochs": 15, "batch": 64},
    },
    "fit.yaml": {
        "verb": "fit",
        "data": {"window": 1440},
        "mechanism": mechanism(105, 0.15),
        "force": FORCE,
        "likelihood": NOISE,
    },
    "federated.yaml": {
        "verb": "federated",
        "base": {"generate": "generate.yaml", "train": "train.yaml"},
        "fit": "fit.yaml",
        "windows": 1,
        "patients": 8,
        "sites": [
            {
                "name": name,
                "dataset": name,
                "generate_with": [
                    f"mechanism.priors.base_level.median={level}",
                    f"force.priors.variance.median={variance}",
                ],
            }
            for name, level, variance in (
                ("hall2018", 100, 0.1),
                ("azt1d", 145, 0.6),
                ("hupa", 150, 0.9),
                ("bigideas", 110, 0.15),
            )
        ],
        # So few patients can move a few weights, and bear noise on them.
        "programme": {
            "rounds": 4,
            "evaluate": False,
            "task": {"steps": 3, "batch": 0, "lr": 0.3, "optimiser": "sgd", "adapter": "shift"},
        },
        "privacy": {"epsilon": 20.0, "noise": 1.2, "sample": 1.0},
    },
}


def act(out: Path, reporter: Reporter) -> str:
    """Play it in a folder of its own, with all configs in it; a sentence about what came out."""
    with storing("the configs of the federation", out):
        out.mkdir(parents=True, exist_ok=True)
        for name, content in FILES.items():
            put_quickly(out / name, yaml.safe_dump(content, sort_keys=False).encode())
    told = simulate(out / "federated.yaml", out=out / "federation", reporter=reporter)
    spent = max(value for value in told["epsilon"].values())
    better = sum(told["federated"][name] < told["local"][name] for name in told["local"])
    return (
        f"on the other sites' patients ({told['data']}) the common model is better than {better} of "
        f"{len(told['local'])} sites' own, with noise for ε {spent:.1f}; {gain_words(told)}; "
        f"picture: {out / 'federation' / PICTURE}"
    )
