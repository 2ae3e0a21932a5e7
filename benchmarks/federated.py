"""Four glucose sites: alone, federated, pooled, on each other's held-out patients; strategies; ε against accuracy."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from benchmarks.goals import at_least
from distlfm.federated.settings import (
    FedAdamConfig,
    FederatedConfig,
    FedProxConfig,
    PrivacyConfig,
    ProgrammeConfig,
    RoundTask,
    read_config,
)
from distlfm.federated.simulation.compare import everybody, scores
from distlfm.federated.simulation.run import run_sites, simulate
from distlfm.federated.simulation.sites import pin_all
from distlfm.federated.site.accounting import noise_for
from distlfm.federated.site.data import site_store
from distlfm.federated.site.work import BASE, Site, codec_of, open_operator, write_site
from distlfm.runtime.reporting import Silent, reporter_for

CONFIG = Path("configs/federated/glucose.yaml")
QUICK = (
    "data=generated",
    "patients=9",
    "base.generate_with=[instances=300]",
    "base.train_with=[operator.points=25, operator.width=16, operator.modes=8, loop.epochs=3]",
    "programme.rounds=2",
)
BUDGETS = (1.0, 2.0, 4.0, 8.0, 16.0)
DELTA = 1e-5
PRIVATE_TASK = RoundTask(steps=8, adapter="shift", optimiser="sgd", lr=0.12)
PRIVATE_ROUNDS, SAMPLE, CLIP = 5, 0.5, 1.0
"""Chosen with an inner split of the patients that are learned from; those that measure had no part in it."""


def run(quick: bool = False) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        return measure(Path(folder), quick)


def measure(folder: Path, quick: bool) -> dict[str, Any]:
    """All runs in one folder; the main one is resumed if it is there."""
    config = read_config(CONFIG, QUICK if quick else ())
    told = simulate(config, out=folder / "fedavg", reporter=reporter_for())
    sites = {name: Site(folder / "fedavg" / "sites" / name) for name in told["local"]}
    worst = min(told["local"][name] - told["federated"][name] for name in sites)
    base, pooled = (float(told["everybody"][model]["loss"]) for model in ("base", "pooled"))

    def gained(loss: float) -> float:
        return (base - loss) / (base - pooled)

    strategies = {"fedavg": told["everybody"]["federated"]}
    for strategy in (FedProxConfig(mu=0.1), FedAdamConfig(lr=1e-3)):
        programme = config.programme.model_copy(update={"strategy": strategy})
        strategies[strategy.kind] = again(folder / strategy.kind, config, sites, programme)
    curve = {}
    for budget in BUDGETS if not quick else BUDGETS[-1:]:
        steps = PRIVATE_ROUNDS * PRIVATE_TASK.steps
        noise = noise_for(budget, DELTA, SAMPLE, steps)
        privacy = PrivacyConfig(epsilon=budget, delta=DELTA, noise=noise, clip=CLIP, sample=SAMPLE)
        update = {"task": PRIVATE_TASK, "rounds": PRIVATE_ROUNDS, "evaluate": False}
        programme = config.programme.model_copy(update=update)
        found = again(folder / f"epsilon-{budget:g}", config, sites, programme, privacy)
        curve[f"{budget:g}"] = {**found, "noise": noise, "share of the pooled gain": gained(found["loss"])}
    without = config.programme.model_copy(update={"task": PRIVATE_TASK, "rounds": PRIVATE_ROUNDS})
    adapter = again(folder / "adapter", config, sites, without)
    return {
        "figures": {
            "least advantage over a site alone, on the others' patients": at_least(worst, 0.0),
            "share of the pooled gain": at_least(told["gain_share"] or 0.0, 0.9),
        },
        "data": told["data"],
        "sites": {key: told[key] for key in ("base", "local", "federated", "pooled", "own", "patients")},
        "everybody": told["everybody"],
        "strategies": strategies,
        "epsilon and accuracy": curve,
        "the adapter without noise": {**adapter, "share of the pooled gain": gained(adapter["loss"])},
        "bytes": told["bytes"],
    }


def again(
    folder: Path,
    config: FederatedConfig,
    sites: dict[str, Site],
    programme: ProgrammeConfig,
    privacy: PrivacyConfig | None = None,
) -> dict[str, float]:
    """Another programme with the same patients; figures of its model over all held-out patients."""
    operator = open_operator(next(iter(sites.values())).folder / BASE)
    others = {}
    for name, site in sites.items():
        store = site_store(site.folder, site.config).path.resolve()
        settings = site.config.model_copy(update={"fit": None, "store": store, "privacy": privacy})
        others[name] = write_site(folder / "sites" / name, settings, operator)
    pin_all(others, programme.min_sites, privacy)
    state = run_sites(config.model_copy(update={"programme": programme}), operator, others, folder / "rounds", Silent())
    codec_of(operator.model, programme.task).load(operator.model, state.result)
    found = scores(operator, sites, "pairs")
    told = {figure: everybody(found, figure) for figure in ("loss", "force_loss", "force_q2", "parameter_error")}
    if privacy is not None:
        ledgers = [site.ledger for site in others.values()]
        told["epsilon spent"] = max(ledger.spent for ledger in ledgers if ledger is not None)
    return told
