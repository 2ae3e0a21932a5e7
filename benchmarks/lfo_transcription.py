"""The operator of transcription, learned from 2,000 generated instances: force, parameters and coverage on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.goals import at_least, at_most, between
from benchmarks.lfo_shared import FRESH, TRAINING, Workshop, scored
from distlfm.data import catalog
from distlfm.instance import Instance
from distlfm.lfo import Operator

INSTANCES, OTHERS = 2000, 1000
THINNED, FINE = 300, 441
SHARES, IRREGULAR = (0.9, 0.7, 0.5), (111, 60)


def run(quick: bool = False) -> dict[str, Any]:
    """Scored on fresh instances of another seed, on the five reference sets, and on series that are not as in training.

    The latter have no goals: they tell what is lost by missing observations and by irregular times, and who is warned.
    """
    shop = Workshop(quick)
    operator = trained(shop)
    instances = shop.generated("transcription", "genes-fresh", OTHERS, FRESH).instances()
    fine = shop.generated("transcription", "genes-fine", THINNED, FRESH, [f"points={FINE}"]).instances()
    fresh = scored(operator, instances)
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
        "fresh, some of the trained times": {
            f"{share:.0%}": scored(operator, some_times(instances[:THINNED], int(share * operator.schema.dims[0].size)))
            for share in SHARES
        },
        "fresh, irregular times": {str(count): scored(operator, some_times(fine, count)) for count in IRREGULAR},
        "training": {key: operator.training[key] for key in ("seconds", "best", "coverage", "instances")},
    }


def trained(shop: Workshop) -> Operator:
    """The operator of configs/train/transcription.yaml."""
    return shop.operator("transcription", "genes", shop.generated("transcription", "genes-train", INSTANCES, TRAINING))


def some_times(instances: Sequence[Instance], count: int) -> list[Instance]:
    """The instances at random times of theirs, other ones for each."""
    random = np.random.default_rng(0)
    found = []
    for one in instances:
        keep = np.sort(random.choice(len(one.times), count, replace=False))
        found.append(replace(one, times=one.times[keep], values=one.values[:, keep], mask=one.mask[:, keep]))
    return found
