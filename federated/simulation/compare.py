"""What a federation is worth: the same tuning by each site alone, by all together, and on all data in one place.

All of it is measured on patients that nobody learns from. Only a simulation can do this: sites do not see each other.
`summary` makes what summary.json says: means over held-out patients, and how sure they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from distlfm.config import fingerprint
from distlfm.federated.codec import Vector
from distlfm.federated.rounds import RunState
from distlfm.federated.settings import FederatedConfig, ProgrammeConfig
from distlfm.federated.simulation.sites import uses_datasets
from distlfm.federated.site.tuning import names_of, patient_figures, tune
from distlfm.federated.site.work import BASE, Site, codec_of, open_operator
from distlfm.lfo import Batch, Operator
from distlfm.runtime.process import torch_threads

Scores = dict[str, dict[str, NDArray[np.float64]]]
"""By site, then by figure: a number a held-out patient."""
COMMON = ("federated", "pooled", "base")
"""Models that are the same at all sites."""


@dataclass
class Comparison:
    """base: before any tuning. local: the model of each site alone, by that site. federated, pooled: one model.

    personal: the common model, tuned further by each site for itself; on the site's own patients.
    """

    base: Scores
    local: dict[str, Scores]
    federated: Scores
    pooled: Scores
    personal: Scores


def tuned_alone(site: Site, programme: ProgrammeConfig) -> Operator:
    """As many rounds as the federation has, with no other site; nothing leaves, so there is no noise."""
    batch = site.windows(programme.task.kind)
    return _best(site.folder / BASE, batch, programme, [site])


def tuned_pooled(sites: Sequence[Site], programme: ProgrammeConfig) -> Operator:
    """All patients in one place; each step sees as many windows as all sites together see in one of theirs."""
    whole = joined([site.windows(programme.task.kind) for site in sites])
    task = programme.task.model_copy(update={"batch": programme.task.batch * len(sites)})
    return _best(sites[0].folder / BASE, whole, programme.model_copy(update={"task": task}), sites)


def _best(base: Path, batch: Batch, programme: ProgrammeConfig, choosing: Sequence[Site]) -> Operator:
    """Tuned by rounds; the best one is kept by the same rule, and the same kind of patients, as in the federation."""
    operator, kind = open_operator(base), programme.task.kind

    def loss() -> float:
        weights = [site.count(kind, "choose") for site in choosing]
        return float(np.average([site.chooses(operator, kind) for site in choosing], weights=weights))

    best, least = copy.deepcopy(operator), loss() if programme.evaluate else float("inf")
    for number in range(1, programme.rounds + 1):
        task = programme.round_task(number).model_copy(update={"mu": 0.0})
        names = codec_of(operator.model, task).names
        tune(operator, names, names, batch, task, torch.Generator().manual_seed(task.seed))
        now = loss() if programme.evaluate else -float(number)
        if now < least:
            best, least = copy.deepcopy(operator), now
    return best


def joined(batches: Sequence[Batch]) -> Batch:
    """Windows of several sites as one batch; the sites' names keep patients apart."""
    tensors = {name: torch.cat([one.tensors[name] for one in batches]) for name in batches[0].tensors}
    ids = tuple(f"{number}:{name}" for number, one in enumerate(batches) for name in one.ids)
    return Batch(**tensors, ids=ids)


def scores(operator: Operator, sites: Mapping[str, Site], kind: str) -> Scores:
    """Figures of a model for the held-out patients of each site."""
    return {name: patient_figures(operator, site.windows(kind, "test"), names_of(kind)) for name, site in sites.items()}


def compare(sites: Mapping[str, Site], programme: ProgrammeConfig, vector: Vector, personal: int) -> Comparison:
    """Tune and measure all of it; `vector` is what the federation found."""
    kind = programme.task.kind
    first = next(iter(sites.values()))
    base, common = open_operator(first.folder / BASE), open_operator(first.folder / BASE)
    codec_of(common.model, programme.task).load(common.model, vector)
    own: Scores = {}
    with torch_threads(first.config.threads):
        further = programme.round_task(programme.rounds + 1).model_copy(update={"steps": personal})
        for name, site in sites.items() if personal else ():
            own |= scores(open_operator(site.personalise(vector, further)), {name: site}, kind)
        return Comparison(
            base=scores(base, sites, kind),
            local={name: scores(tuned_alone(site, programme), sites, kind) for name, site in sites.items()},
            federated=scores(common, sites, kind),
            pooled=scores(tuned_pooled(list(sites.values()), programme), sites, kind),
            personal=own,
        )


def of_others(found: Scores, site: str, figure: str) -> NDArray[np.float64]:
    """A figure of the held-out patients of all other sites, one after the other; NaN where it is not known."""
    return np.concatenate([values[figure] for name, values in found.items() if name != site])


def everybody(found: Scores, figure: str) -> float:
    """The mean over the held-out patients of all sites."""
    return float(np.nanmean(np.concatenate([values[figure] for values in found.values()])))


def standard_error(values: NDArray[np.float64]) -> float | None:
    """Standard error of the mean of a figure over patients; None for fewer than two."""
    known = values[~np.isnan(values)]
    return float(known.std(ddof=1) / np.sqrt(len(known))) if len(known) > 1 else None


def gain_share(comparison: Comparison, figure: str) -> float | None:
    """How much of what pooling would gain the federation gains, 1 is all of it; None where pooling gains nothing."""
    base = everybody(comparison.base, figure)
    pooled = base - everybody(comparison.pooled, figure)
    return (base - everybody(comparison.federated, figure)) / pooled if pooled > 0 else None


def summary(config: FederatedConfig, sites: Mapping[str, Site], state: RunState, found: Comparison) -> dict[str, Any]:
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
        "epsilon": {name: None if site.ledger is None else site.ledger.spent for name, site in sites.items()},
        "rounds": state.done,
        "kept_round": state.kept_round if state.kept is not None else state.done,
        "bytes": state.closing + sum(int(line.get("bytes", 0)) for line in state.history),
        "figure": f"{figure} on held-out patients of the other sites; less is better",
        "gain_share": gain_share(found, figure),
        "everybody": {
            model: {key: everybody(getattr(found, model), key) for key in next(iter(found.base.values()))}
            for model in ("base", "federated", "pooled")
        },
        "patients": {name: len(values[figure]) for name, values in found.base.items()},
        "data": "reference sets" if uses_datasets(config) else "generated",
        "strategy": config.programme.strategy.kind,
        "history": state.history,
        "config_hash": fingerprint(config.work()),
    }


def _elsewhere(found: Comparison, names: list[str], figure: str) -> Scores:
    """On the patients of the other sites."""
    return _by_model(found, names, lambda one, name: of_others(one, name, figure))


def _own(found: Comparison, names: list[str], figure: str) -> Scores:
    """On those of the site itself."""
    personal = {name: one[figure] for name, one in found.personal.items()}
    return {**_by_model(found, names, lambda one, name: one[name][figure]), "personal": personal}


def _by_model(found: Comparison, names: list[str], pick: Callable[[Scores, str], NDArray[np.float64]]) -> Scores:
    """What is picked of the scores of each model for each site."""
    models = {model: dict.fromkeys(names, getattr(found, model)) for model in COMMON}
    return {
        model: {name: pick(by[name], name) for name in names} for model, by in {"local": found.local, **models}.items()
    }


def _means(patients: Scores) -> dict[str, dict[str, float]]:
    return {model: {name: float(np.nanmean(one)) for name, one in by.items()} for model, by in patients.items()}


def _errors(patients: Scores) -> dict[str, dict[str, float | None]]:
    return {model: {name: standard_error(one) for name, one in by.items()} for model, by in patients.items()}


def _advantage(patients: Scores) -> dict[str, dict[str, float | None]]:
    less = {name: alone - patients["federated"][name] for name, alone in patients["local"].items()}
    return {name: {"mean": float(np.nanmean(one)), "standard_error": standard_error(one)} for name, one in less.items()}
