"""The last act of `make demo`: four sites tune an operator on their patients, who stay home."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from distlfm.federated.simulate import PICTURE, gain_words, simulate
from distlfm.pipeline.run_files import REPORT
from distlfm.report.demo_page import Showing
from distlfm.report.federation_page import sites_figure
from distlfm.runtime.reporting import Reporter
from distlfm.store.files import put_quickly, storing

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
                # Where the studies are not there: patients unlike the generated set, as real ones are.
                "generate_with": [
                    "instances=24",
                    f"mechanism.priors.base_level.median={level}",
                    f"mechanism.priors.return_rate.median={rate}",
                    f"force.priors.variance.median={variance}",
                    "force.priors.lengthscale.median=22",
                    "likelihood.prior.median=4",
                ],
            }
            for name, level, rate, variance in (
                ("hall2018", 100, 0.035, 0.2),
                ("azt1d", 145, 0.03, 0.6),
                ("hupa", 150, 0.03, 0.9),
                ("bigideas", 110, 0.035, 0.3),
            )
        ],
        "programme": {"rounds": 6, "task": {"steps": 5, "batch": 16, "lr": 3.0e-4}},
    },
}


def act(out: Path, reporter: Reporter) -> Showing:
    """Play it in a folder of its own, with all configs in it."""
    with storing("the configs of the federation", out):
        out.mkdir(parents=True, exist_ok=True)
        for name, content in FILES.items():
            put_quickly(out / name, yaml.safe_dump(content, sort_keys=False).encode())
    folder = out / "federation"
    told = simulate(out / "federated.yaml", out=folder, reporter=reporter)
    base, common, pooled = (told["everybody"][model]["loss"] for model in ("base", "federated", "pooled"))
    better = sum(told["federated"][name] < told["local"][name] for name in told["local"])
    line = (
        f"{told['data']}: only masked sums left a site, and the loss of patients whom nobody learned from goes from "
        f"{base:.2f} to {common:.2f} (pooled: {pooled:.2f}); on the others' patients that beats {better} of "
        f"{len(told['local'])} sites tuned alone; {gain_words(told)}"
    )
    return Showing(line, [sites_figure(told, folder / PICTURE)], {"The report of the federation": folder / REPORT})
