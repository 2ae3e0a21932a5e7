"""The intended road: an operator that learned from 2,000 fits of glucose days, beside one that learned their truth."""

from __future__ import annotations

from typing import Any

from benchmarks.goals import at_least
from benchmarks.lfo_glucose import SITES, days, fresh, patients, trained
from benchmarks.lfo_shared import Workshop, agreement, scored


def run(quick: bool = False) -> dict[str, Any]:
    """Both see the same observations. One is told the force that made them, the other what a fit found, with its

    variance. Both are scored against the truth of fresh days, and against the fits of real patients.
    """
    shop = Workshop(quick)
    fits = shop.fitted("days-fitted", days(shop).path)
    operators = {"generated": trained(shop), "fitted": shop.operator("glucose", "days-of-fits", fits)}
    others = fresh(shop).instances()
    found: dict[str, Any] = {name: scored(operator, others) for name, operator in operators.items()}
    for name, operator in operators.items():
        found[name]["patients"] = {site: agreement(operator, patients(shop, site)) for site in SITES}
        found[name]["training"] = {key: operator.training[key] for key in ("seconds", "best", "coverage", "instances")}
    real = [found["fitted"]["patients"][site]["r, mean of instances"] for site in SITES]
    return {
        "figures": {
            "operator of fits and fits of patients, r, mean of days, worst of three sites": at_least(min(real), 0.9)
        },
        **found,
    }
