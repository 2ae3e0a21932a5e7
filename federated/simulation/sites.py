"""The sites of a simulation: a base operator, one folder per site with its patients, keys and policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flwr.app.user_config import UserConfig

from distlfm.config import apply_overrides, build, dump, read_yaml
from distlfm.data import catalog
from distlfm.errors import UsageError
from distlfm.federated.secure.keys import public_hex
from distlfm.federated.settings import FederatedConfig, PrivacyConfig, SimulatedSite, SiteConfig
from distlfm.federated.setup.homes import SiteHome
from distlfm.federated.setup.identity import load_signing_key, make_signing_key
from distlfm.federated.site.policy import POLICY, SitePolicy
from distlfm.federated.site.work import Site, open_operator, write_site
from distlfm.lfo import Operator
from distlfm.runs import OPERATOR
from distlfm.runtime.reporting import Reporter
from distlfm.store.files import put_quickly
from distlfm.verbs.generate import generate
from distlfm.verbs.train import train

PATIENTS = 24
"""Number of patients of a generated site by default."""

MOST_EXAMPLES = 10**6

LIMITS: dict[str, Any] = {
    "min_examples": 1,
    "exact": ["train", "evaluate", "query"],
    "rounds_a_day": 10**6,
    "refusals_a_day": 10**6,
    "queries_a_day": 10**6,
    "votes_a_day": 10**6,
    "bytes_a_day": 10**12,
    "weights": "patients",
    "most_examples": MOST_EXAMPLES,
    "figure_bound": 1e4,
    "task": {
        "lr": 10.0,
        "steps": 10**6,
        "batch": 10**6,
        "clip": None,
        "seconds": 10**6,
        "drift": 10.0**6,
        "effective": 1.0,
    },
}
"""Limits of a simulation, which does not wait for the next day, and whose coordinator is the one who runs the sites."""


def base_operator(config: FederatedConfig, folder: Path, reporter: Reporter) -> Operator:
    """The operator that all begin with; what was learned of it before is kept."""
    base = config.base
    if base.operator is not None:
        return open_operator(base.operator)
    assert base.generate is not None
    assert base.train is not None
    store = folder / "generated.zarr"
    generate(base.generate, [*base.generate_with, f"run.dir={store}"], reporter)
    where = [f"data.stores=[{store}]", f"run.dir={folder / 'base'}", "run.launcher=inline", "run.tensorboard=false"]
    if not (folder / "base" / OPERATOR).exists():
        train(base.train, [*base.train_with, *where, f"run.threads={config.run.threads}"], reporter)
    return open_operator(folder / "base" / OPERATOR)


def uses_datasets(config: FederatedConfig) -> bool:
    """Whether the sites' patients are those of reference sets."""
    wanted = [site.dataset for site in config.sites]
    there = set(catalog.available())
    return config.data == "auto" and config.fit is not None and all(name in there for name in wanted)


def make_sites(config: FederatedConfig, operator: Operator, folder: Path, reporter: Reporter) -> dict[str, Site]:
    """Folders of all sites, with their patients fitted and each other's keys pinned."""
    real = uses_datasets(config)
    found: dict[str, Site] = {}
    for number, one in enumerate(config.sites):
        home = folder / "sites" / one.name
        made = _fitted(config, one) if real else _generated(config, one, number, home)
        made |= config.model_dump(include={"test", "choose", "seed", "privacy"})
        made |= {"name": one.name, "threads": config.run.threads, "batch_seed": config.seed}
        settings = build(SiteConfig, made)
        found[one.name] = write_site(home, settings, operator)
        if real:
            reporter.say(f"{one.name}: its patients are fitted")
        found[one.name].prepare(reporter)
    pin_all(found, config.programme.min_sites, config.privacy)
    return found


def pin_all(sites: Mapping[str, Site], min_cohort: int, privacy: PrivacyConfig | None = None) -> None:
    """Make each site's signing key, and a policy that knows the keys of all."""
    keys = {name: _key(SiteHome(site.folder)) for name, site in sites.items()}
    budget = {} if privacy is None else privacy.model_dump(include={"epsilon", "delta"})
    for name, site in sites.items():
        policy = build(SitePolicy, {"site": name, "peers": keys, "min_cohort": min_cohort, **budget, **LIMITS})
        put_quickly(site.folder / POLICY, dump(policy).encode())


def nodes_of(sites: Mapping[str, Site]) -> dict[int, UserConfig]:
    """The config of the nodes of a local grid: where their folder and policy are."""
    return {
        number: {"site": str(site.folder), "name": name, "policy": str(site.folder / POLICY)}
        for number, (name, site) in enumerate(sites.items(), 1)
    }


def _fitted(config: FederatedConfig, site: SimulatedSite) -> dict[str, Any]:
    assert config.fit is not None
    chosen = [f"data.dataset={site.dataset}", "run.executor=serial", "run.keep=none", *config.fit_with]
    content = apply_overrides(read_yaml(config.fit), chosen)
    return {"fit": content, "windows": config.windows, "patients": config.patients}


def _generated(config: FederatedConfig, site: SimulatedSite, number: int, home: Path) -> dict[str, Any]:
    if config.base.generate is None:
        raise UsageError(
            "The sites' data are not here, and the config does not say how to generate patients.",
            f"Set {catalog.DATA_DIR_VARIABLE}, or base.generate.",
        )
    store = home / "generated.zarr"
    home.mkdir(parents=True, exist_ok=True)
    count = config.patients or PATIENTS
    # Seeds far from the base's own, so that no site has a patient of the generated set.
    seed = 1_000_003 * (config.seed + 1) + number
    chosen = [f"instances={count}", f"seed={seed}", *site.generate_with, f"run.dir={store}", "run.executor=serial"]
    generate(config.base.generate, chosen)
    return {"store": store.name}


def _key(home: SiteHome) -> str:
    """The site's public signing key; made once."""
    if home.signing_key.exists():
        return public_hex(load_signing_key(home.signing_key))
    return make_signing_key(home)
