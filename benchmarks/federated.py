"""Four glucose sites: alone, federated, pooled, on each other's held-out patients; strategies; ε against accuracy."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.goals import at_least
from distlfm.config import load
from distlfm.federated.settings import (
    FedAdamConfig,
    FederatedConfig,
    FedProxConfig,
    PrivacyConfig,
    ProgrammeConfig,
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
BUDGETS = {1.0: 0.6, 4.0: 0.9}
"""Goals of the share of the pooled gain, by ε."""
DELTA, DRAWS, MASKED = 1e-5, 5, 0.95
PRIVATE = Path("configs/programme/glucose_private.yaml")
"""Its rounds and its task, with the noise of each budget in place of its own. They were chosen on generated cohorts."""
SMALL_BUDGET = ("rounds=6", "task.lr=6.7", "task.decay=0.6", "task.noise.clip=2.0")
"""What that file says of ε 1."""


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
    curve, shares = {}, {}
    for budget, goal in BUDGETS.items():
        private = load(ProgrammeConfig, PRIVATE, SMALL_BUDGET if budget == 1.0 else ())
        noise = noise_for(budget, DELTA, 1.0, private.rounds)
        assert private.task.noise is not None
        shared = private.task.noise.model_copy(update={"multiplier": noise})
        programme = private.model_copy(update={"task": private.task.model_copy(update={"noise": shared})})
        privacy = PrivacyConfig(epsilon=budget, delta=DELTA, mechanism="shared")
        found = [
            again(folder / f"epsilon-{budget:g}-{draw}", config, sites, programme, privacy)
            for draw in range(1 if quick else DRAWS)
        ]
        gains = [gained(one["loss"]) for one in found]
        deviation = float(np.std(gains, ddof=1)) if len(gains) > 1 else 0.0
        curve[f"{budget:g}"] = {"noise": noise, "draws": found, "shares": gains, "deviation": deviation}
        shares[f"share of the pooled gain, ε {budget:g}, mean of {len(gains)} draws"] = at_least(
            float(np.mean(gains)), goal
        )
    adapter = again(folder / "adapter", config, sites, load(ProgrammeConfig, PRIVATE))
    return {
        "figures": {
            "least advantage over a site alone, on the others' patients": at_least(worst, 0.0),
            "share of the pooled gain": at_least(told["gain_share"] or 0.0, MASKED),
            **shares,
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
