"""The operator of glucose, learned from generated days alone, asked of real patients and compared with their fits."""

from __future__ import annotations

from typing import Any

from benchmarks.goals import at_least
from benchmarks.lfo_shared import FRESH, TRAINING, Workshop, agreement, scored
from distlfm.lfo import Operator
from distlfm.store import Store

INSTANCES, OTHERS = 2000, 500
SITES = ("azt1d", "bigideas", "hupa")
LOOKED_AT = "hall2018"
"""The site whose fits were looked at when configs/generate/glucose.yaml was chosen; those of the others were not."""


def run(quick: bool = False) -> dict[str, Any]:
    shop = Workshop(quick)
    operator, found = trained(shop), {}
    for site in (*SITES, LOOKED_AT):
        found[site] = agreement(operator, patients(shop, site))
    days = sum(found[site]["instances"] for site in SITES)
    mean = sum(found[site]["r, mean of instances"] * found[site]["instances"] for site in SITES) / days
    least = min(found[site]["r, all points together"] for site in SITES)
    return {
        "figures": {
            "r of operator and fit, mean over the days of three sites": at_least(mean, 0.9),
            "r of operator and fit, all points, worst of three sites": at_least(least, 0.9),
        },
        "sites": found,
        "fresh generated days": scored(operator, fresh(shop).instances()),
        "training": {key: operator.training[key] for key in ("seconds", "best", "coverage", "instances")},
    }


def days(shop: Workshop) -> Store:
    """Generated days to learn from."""
    return shop.generated("glucose", "days-train", INSTANCES, TRAINING)


def fresh(shop: Workshop) -> Store:
    return shop.generated("glucose", "days-fresh", OTHERS, FRESH)


def trained(shop: Workshop) -> Operator:
    """The operator of configs/train/glucose.yaml."""
    return shop.operator("glucose", "days", days(shop))


def patients(shop: Workshop, site: str) -> Store:
    """Fits of all days of a site's patients."""
    limit = ['data.only=["1", "2"]'] if shop.quick else []
    return shop.fitted(f"fits-{site}", None, [f"data.dataset={site}", *limit])
