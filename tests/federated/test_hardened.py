"""Noise on a whole update, as a site's policy asks for it: how long, how loud, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from distlfm.config import dump
from distlfm.federated.audit import verify
from distlfm.federated.codec import Codec, Vector
from distlfm.federated.rounds import run_rounds
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.settings import PrivacyConfig, ProgrammeConfig
from distlfm.federated.site.accounting import Cost, epsilon
from distlfm.federated.site.ledger import Ledger
from distlfm.federated.site.policy import POLICY, load_policy
from distlfm.federated.site.work import LEDGER, Site, codec_of
from distlfm.lfo import Operator
from tests.support.site_toy import make_federation, make_grid, make_programme

pytestmark = pytest.mark.slow

CLIP = 0.01
ONE_STEP = {"steps": 1, "lr": 0.05}
COUNTS = (8, 12, 16, 24)
ONE_ROUND = make_programme(rounds=1, task=ONE_STEP)


def harden(sites: dict[str, Site], noise: float) -> None:
    """Each policy clips the update to CLIP and adds noise of so many clips."""
    for site in sites.values():
        file = site.folder / POLICY
        policy = load_policy(file).model_copy(update={"clip": CLIP, "noise_multiplier": noise})
        file.write_text(dump(policy))


def run(operator: Operator, sites: dict[str, Site], programme: ProgrammeConfig, folder: Path) -> tuple[Codec, Vector]:
    """What the rounds did to the weights, [D]."""
    codec = codec_of(operator.model, programme.task)
    grid = SecureGrid(make_grid(sites), min_sites=3)
    found = run_rounds(grid, operator, codec, programme, folder)
    return codec, found.vector - codec.encode(operator.model.state_dict())


@dataclass(frozen=True)
class Known:
    """A federation, and what a round makes of it without noise: the mean of the updates, each shortened to CLIP."""

    operator: Operator
    sites: dict[str, Site]
    counts: list[int]
    mean: Vector


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    operator, sites = make_federation(tmp_path_factory.mktemp("hardened"), COUNTS)
    codec = codec_of(operator.model, ONE_ROUND.task)
    before = codec.encode(operator.model.state_dict())
    alone = [Site(site.folder).train(before, ONE_ROUND.round_task(1)) for site in sites.values()]
    changes = np.array([one.vector - before for one in alone])
    lengths = np.linalg.norm(changes, axis=1, keepdims=True)
    assert lengths.min() > 2 * CLIP
    counts = [one.num_patients for one in alone]
    return Known(operator, sites, counts, np.average(changes * CLIP / lengths, axis=0, weights=counts))


def test_each_sites_update_is_shortened_before_it_is_summed(known: Known, tmp_path: Path) -> None:
    harden(known.sites, noise=1e-6)
    _, change = run(known.operator, known.sites, ONE_ROUND, tmp_path / "run")
    assert np.abs(change - known.mean).max() < 1e-5 * CLIP


def test_the_sums_noise_is_that_of_the_sites_weighted_as_they_are(known: Known, tmp_path: Path) -> None:
    assert len(set(known.counts)) == 4
    harden(known.sites, noise=3.0)
    codec, change = run(known.operator, known.sites, ONE_ROUND, tmp_path / "run")
    noise = change - known.mean
    expected = 3.0 * CLIP * np.linalg.norm(known.counts) / sum(known.counts)
    assert noise.std() == pytest.approx(expected, rel=0.06)
    assert abs(noise.mean()) < 5 * expected / np.sqrt(noise.size)
    for name, part in codec.decode(noise).items():
        assert bool((part != 0).all()), name
        if name.endswith("spectral.weight"):
            for one in part.unbind(1):  # real and imaginary
                assert float(one.std()) == pytest.approx(expected, rel=0.15)


def test_what_noised_updates_cost_is_written_down_and_counts_towards_a_later_budget(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    harden(sites, noise=8.0)
    run(operator, sites, make_programme(rounds=2, task=ONE_STEP), tmp_path / "run")
    for site in sites.values():
        charges = Ledger(site.folder / LEDGER, 1.0, 1e-5).charges
        assert [(one.what, one.noise, one.rate, one.steps) for one in charges] == [("update", 4.0, 1.0, 1)] * 2
        told = [
            entry["facts"]["epsilon"]
            for entry in verify(site.folder / "audit.jsonl").entries
            if entry["event"] == "privacy"
        ]
        assert told == pytest.approx([epsilon([Cost(4.0, 1.0, rounds)], 1e-5) for rounds in (1, 2)])
        later = Site(site.folder, budget=(1.0, 1e-5)).ledger
        assert later is not None
        assert later.spent == pytest.approx(epsilon([Cost(4.0, 1.0, 2)], 1e-5))


def test_figures_beside_noised_updates_have_noise_and_are_counted_too(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    harden(sites, noise=8.0)
    programme = make_programme(rounds=1, evaluate=True, task=ONE_STEP)
    codec = codec_of(operator.model, programme.task)
    grid = SecureGrid(make_grid(sites), min_sites=3)
    [line] = run_rounds(grid, operator, codec, programme, tmp_path / "run").history
    before = codec.encode(operator.model.state_dict())
    exact = [site.evaluate(before, programme.task, part="choose")[0]["loss"] for site in sites.values()]
    assert abs(line["loss"] - np.mean(exact)) > 1.0
    for site in sites.values():
        charges = Ledger(site.folder / LEDGER, 1.0, 1e-5).charges
        assert [(one.what, one.noise, one.steps) for one in charges] == [
            ("figures", 20.0, 5),
            ("update", 4.0, 1),
            ("figures", 20.0, 5),
        ]


def test_noise_on_top_of_private_work_costs_no_more(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path, privacy=PrivacyConfig(epsilon=20.0, noise=2.0, sample=0.5))
    harden(sites, noise=8.0)
    task = {"steps": 2, "adapter": "shift"}
    run(operator, sites, make_programme(rounds=1, task=task), tmp_path / "run")
    for site in sites.values():
        ledger = Site(site.folder).ledger
        assert ledger is not None
        assert [(one.what, one.noise, one.steps) for one in ledger.charges] == [("train", 2.0, 2)]
