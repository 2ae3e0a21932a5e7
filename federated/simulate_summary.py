"""What summary.json says of a simulated federation: means over held-out patients, and how sure they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distlfm.config import fingerprint
from distlfm.federated.compare import Comparison, everybody, gain_share, of_others, standard_error
from distlfm.federated.rounds import State
from distlfm.federated.simulate_settings import FederatedConfig
from distlfm.federated.simulate_sites import uses_datasets
from distlfm.federated.site_work import Site

Patients = dict[str, dict[str, NDArray[np.float64]]]
"""By model, then by site: a number a held-out patient."""


def summary(config: FederatedConfig, sites: Mapping[str, Site], state: State, found: Comparison) -> dict[str, Any]:
    """standard_errors: of each mean. advantage: how much less the loss of the common model is than that of each site's.

    The same patients are asked of both, so that an advantage is surer than the means that it is between.
    """
    figure = "loss" if config.programme.task.kind == "pairs" else "reconstruction"
    elsewhere, own = _elsewhere(found, list(sites), figure), _own(found, list(sites), figure)
    return {
        **_means(elsewhere),
        "own": _means(own),
        "standard_errors": {**_errors(elsewhere), "own": _errors(own)},
        "advantage": _advantage(elsewhere),
        "epsilon": {name: _spent(site) for name, site in sites.items()},
        "rounds": state.done,
        "kept_round": state.kept_round if state.kept is not None else state.done,
        "bytes": state.closing + sum(int(line.get("bytes", 0)) for line in state.history),
        "figure": f"{figure} on held-out patients of the other sites; less is better",
        "gain_share": gain_share(found, figure),
        "everybody": {
            model: {key: everybody(one, key) for key in next(iter(one.values()))}
            for model, one in (("base", found.base), ("federated", found.federated), ("pooled", found.pooled))
        },
        "patients": {name: len(values[figure]) for name, values in found.base.items()},
        "data": "reference sets" if uses_datasets(config) else "generated",
        "strategy": config.programme.strategy.kind,
        "history": state.history,
        "config_hash": fingerprint(config.work()),
    }


def _elsewhere(found: Comparison, names: list[str], figure: str) -> Patients:
    """On the patients of the other sites."""
    common = {"federated": found.federated, "pooled": found.pooled, "base": found.base}
    told = {model: {name: of_others(one, name, figure) for name in names} for model, one in common.items()}
    return {"local": {name: of_others(found.local[name], name, figure) for name in names}, **told}


def _own(found: Comparison, names: list[str], figure: str) -> Patients:
    """On those of the site itself."""
    common = {"federated": found.federated, "pooled": found.pooled, "base": found.base}
    told = {model: {name: one[name][figure] for name in names} for model, one in common.items()}
    alone = {name: found.local[name][name][figure] for name in names}
    return {"local": alone, **told, "personal": {name: one[figure] for name, one in found.personal.items()}}


def _means(patients: Patients) -> dict[str, dict[str, float]]:
    return {model: {name: float(np.nanmean(one)) for name, one in by.items()} for model, by in patients.items()}


def _errors(patients: Patients) -> dict[str, dict[str, float | None]]:
    return {model: {name: standard_error(one) for name, one in by.items()} for model, by in patients.items()}


def _advantage(patients: Patients) -> dict[str, dict[str, float | None]]:
    less = {name: alone - patients["federated"][name] for name, alone in patients["local"].items()}
    return {name: {"mean": float(np.nanmean(one)), "standard_error": standard_error(one)} for name, one in less.items()}


def _spent(site: Site) -> float | None:
    ledger = site.ledger
    return None if ledger is None else ledger.spent
