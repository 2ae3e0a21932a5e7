"""The operator of glucose, learned from generated days alone, asked of real patients and compared with their fits."""

from __future__ import annotations

from typing import Any

from benchmarks.goals import at_least
from benchmarks.lfo_shared import FRESH, TRAINING, Workshop, agreement, scored
from distlfm.data import catalog
from distlfm.fleets.sources import windows
from distlfm.instance import Instance
from distlfm.lfo import Operator
from distlfm.store import Store

INSTANCES, OTHERS = 2000, 500
DAY, DAYS = 1440.0, 3
"""Minutes of a day, and how many of each patient's are fitted and asked."""

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
    """Fits of the first days of all patients of a site."""
    every = catalog.load(site).instances
    found: list[Instance] = []
    for patient in every[:2] if shop.quick else every:
        found += list(windows([patient], DAY))[:DAYS]
    return shop.fitted(f"fits-{site}", found)
