"""Small sites with known content: folders, an operator that was never trained, and a grid that joins them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from distlfm.federated.client_app import app
from distlfm.federated.settings import PrivacyConfig, ProgrammeConfig, SiteConfig
from distlfm.federated.simulation.grid import Hook, LocalGrid
from distlfm.federated.simulation.sites import nodes_of, pin_all
from distlfm.federated.site.cohort import Cohort
from distlfm.federated.site.work import Site, write_site
from distlfm.lfo import Batch, Calibration, Examples, FourierOperator, Operator, OperatorConfig
from distlfm.lfo.inputs import set_normal
from distlfm.store import Store
from tests.support.lfo_toy import make_store

NAMES = ("east", "north", "south", "west")
SMALL = OperatorConfig(
    layers=2, width=8, modes=4, head=8, pooled=4, regressions=2, regressors=2, points=17, slopes=(0.1,)
)


def make_operator(store: Store, seed: int = 0) -> Operator:
    """A network with random weights; its normalisation is that of the store."""
    examples = Examples([store])
    torch.manual_seed(seed)
    model = FourierOperator(SMALL, examples.schema)
    set_normal(model.normal, examples.batch(range(len(examples))))
    none = Calibration.none(len(examples.schema.forces), len(examples.schema.parameters))
    return Operator(examples.schema, SMALL, model.eval().requires_grad_(False), none)


def make_batch(folder: Path, windows: Sequence[int], count: int = 16) -> tuple[Operator, Batch]:
    """An operator, and a batch of patients with so many windows each."""
    store = make_store(folder / "base.zarr", count)
    ids = [f"p{patient}/{number}" for patient, many in enumerate(windows) for number in range(many)]
    operator = make_operator(store)
    batch = Examples([store], operator.schema).batch(range(len(ids)))
    return operator, replace(batch, ids=tuple(ids))


def even_seed(store: Path, choose: float, test: float) -> int:
    """The first seed by which as many of a store's patients choose and measure as their shares say."""
    names = [one.id for one in Store.open(store).instances(0, Store.open(store).spec.instances)]
    wanted = [max(1, round(share * len(names))) if share else 0 for share in (choose, test)]
    for seed in range(10_000):
        found = Cohort.draw(names, choose, test, seed)
        if [len(found.choose), len(found.test)] == wanted:
            return seed
    raise AssertionError("no seed divides them so")


def make_federation(
    folder: Path,
    counts: Sequence[int] = (12, 12, 12, 12),
    privacy: PrivacyConfig | None = None,
    test: float = 0.125,
    choose: float = 0.125,
    min_cohort: int = 3,
    seeds: Sequence[int] | None = None,
    batch_seed: int | None = 0,
) -> tuple[Operator, dict[str, Site]]:
    """Sites that pin each other, each with its own patients; and the operator that they begin with."""
    operator = make_operator(make_store(folder / "base.zarr", 24, seed=99))
    sites: dict[str, Site] = {}
    for number, (name, count) in enumerate(zip(NAMES, counts, strict=False)):
        home = folder / "sites" / name
        home.mkdir(parents=True)
        make_store(home / "pairs.zarr", count, seed=number if seeds is None else seeds[number])
        config = SiteConfig(
            name=name,
            store=Path("pairs.zarr"),
            test=test,
            choose=choose,
            seed=even_seed(home / "pairs.zarr", choose, test),
            privacy=privacy,
            batch_seed=batch_seed,
        )
        sites[name] = write_site(home, config, operator)
    pin_all(sites, min_cohort, privacy)
    return operator, sites


def make_grid(sites: dict[str, Site], on_reply: Hook | None = None) -> LocalGrid:
    return LocalGrid(app, nodes_of(sites), on_reply=on_reply)


def make_programme(**told: Any) -> ProgrammeConfig:
    """Two rounds of two full-batch steps without figures, if nothing else is said."""
    task = {"steps": 2, "batch": 0, "optimiser": "sgd", "lr": 0.01, "clip": None, **told.pop("task", {})}
    fixed = {"rounds": 2, "deadline": 60.0, "evaluate": False, "most_examples": 1000, "task": task}
    return ProgrammeConfig.model_validate({**fixed, **told})
