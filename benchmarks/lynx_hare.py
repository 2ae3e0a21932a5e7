"""Lynx only is given: how well the inferred prey follows the hare that was counted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.goals import at_least
from distlfm.config import load
from distlfm.runs.settings import FitConfig
from distlfm.verbs.fit import fit

CONFIG = Path("configs/fit/lynx_hare.yaml")


def run(quick: bool = False) -> dict[str, Any]:
    overrides = ["inference.variational.iterations=50"] if quick else []
    done = fit(load(FitConfig, CONFIG, overrides))
    (row,) = done.figures
    return {
        "figures": {"correlation with the hare": at_least(row["latent_correlation"], 0.88)},
        "instances": done.summary["instances"],
    }
