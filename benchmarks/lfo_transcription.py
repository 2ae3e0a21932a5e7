"""The operator of transcription, learned from 2,000 generated instances: force, parameters and coverage on others."""

from __future__ import annotations

from typing import Any

from benchmarks.goals import at_least, at_most, between
from benchmarks.lfo_shared import FRESH, TRAINING, Workshop, scored
from distlfm.data import catalog
from distlfm.lfo import Operator

INSTANCES, OTHERS = 2000, 1000


def run(quick: bool = False) -> dict[str, Any]:
    """Scored on fresh instances of another seed, and on the five reference sets."""
    shop = Workshop(quick)
    operator = trained(shop)
    fresh = scored(operator, shop.generated("transcription", "genes-fresh", OTHERS, FRESH).instances())
    toy = scored(operator, list(catalog.load("transcription_toy").instances))
    return {
        "figures": {
            "latent Q², fresh instances, mean": at_least(fresh["latent Q²"], 0.98),
            "latent Q², reference sets, mean": at_least(toy["latent Q²"], 0.98),
            "sum of parameter errors, fresh": at_most(fresh["sum of parameter errors"], 0.2),
            "sum of parameter errors, reference": at_most(toy["sum of parameter errors"], 0.2),
            "95 % coverage, fresh": between(fresh["95 % coverage"], 0.93, 0.97),
        },
        "fresh": fresh,
        "reference": toy,
        "training": {key: operator.training[key] for key in ("seconds", "best", "coverage", "instances")},
    }


def trained(shop: Workshop) -> Operator:
    """The operator of configs/train/transcription.yaml."""
    return shop.operator("transcription", "genes", shop.generated("transcription", "genes-train", INSTANCES, TRAINING))
