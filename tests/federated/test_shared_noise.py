"""Noise that the sites bring together, through the real app: once in the sum, paid by each, and never too little."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distlfm.config import dump, load
from distlfm.federated.audit import verify
from distlfm.federated.codec import Vector
from distlfm.federated.refused import Reason
from distlfm.federated.rounds import run_rounds
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.settings import PrivacyConfig, ProgrammeConfig, SiteConfig
from distlfm.federated.site.accounting import Cost, epsilon
from distlfm.federated.site.policy import POLICY, SitePolicy, load_policy
from distlfm.federated.site.work import Site, codec_of
from distlfm.federated.strategy import TooFewSites
from distlfm.lfo import Operator
from tests.support.site_toy import make_federation, make_grid, make_programme

CONFIGS = Path(__file__).parents[2] / "configs"
BUDGET = PrivacyConfig(epsilon=50.0, mechanism="shared")

OPEN: dict[str, Any] = {"fixed_cohort": (), "min_difference": 1}
"""Parts of a policy under which a sum may lose a site."""


def programme(rounds: int = 1, multiplier: float = 1.0, **noise: Any) -> ProgrammeConfig:
    task = {"steps": 2, "adapter": "head", "lr": 0.05, "noise": {"multiplier": multiplier, "clip": 0.1, **noise}}
    return make_programme(rounds=rounds, task=task)


def change(operator: Operator, sites: dict[str, Site], asked: ProgrammeConfig, folder: Path) -> Vector:
    """What the rounds did to the weights, [D]."""
    codec = codec_of(operator.model, asked.task)
    found = run_rounds(SecureGrid(make_grid(sites), min_sites=3), operator, codec, asked, folder)
    return found.vector - codec.encode(operator.model.state_dict())


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> tuple[Operator, dict[str, Site]]:
    return make_federation(tmp_path_factory.mktemp("shared"), privacy=BUDGET.model_copy(update={"epsilon": 1e12}))


def test_without_noise_a_round_is_the_mean_of_all_patients_updates(
    federation: tuple[Operator, dict[str, Site]], tmp_path: Path
) -> None:
    operator, sites = federation
    asked = programme(multiplier=1e-5)
    found = change(operator, sites, asked, tmp_path / "run")
    before = codec_of(operator.model, asked.task).encode(operator.model.state_dict())
    alone = [site.train(before, asked.round_task(1)) for site in sites.values()]
    total = sum((one.vector - before) * one.num_patients for one in alone)
    assert found == pytest.approx(total / sum(one.num_patients for one in alone), abs=1e-6)


def test_the_model_pays_for_the_noise_once_and_not_once_a_site(
    federation: tuple[Operator, dict[str, Site]], tmp_path: Path
) -> None:
    operator, sites = federation
    quiet = change(operator, sites, programme(multiplier=1e-5), tmp_path / "quiet")
    noise = np.concatenate(
        [change(operator, sites, programme(multiplier=5.0), tmp_path / f"run-{i}") - quiet for i in range(3)]
    )
    patients = 4 * 8
    once = 5.0 * 0.1 * np.sqrt(4 / 3) / patients  # of four sites one may be lost
    assert noise.std() == pytest.approx(once, rel=0.15)
    assert noise.std() < 0.7 * 5.0 * 0.1 * np.sqrt(4) / patients, "what four sites with noise of their own would bring"


def test_with_the_budget_of_a_new_policy_alone_sites_bring_their_noise_together(tmp_path: Path) -> None:
    """Nothing else has to be set at a site; and the patients count, though sites count alike in all else."""
    operator, sites = make_federation(tmp_path)
    for site in sites.values():
        path = site.folder / POLICY
        told = {"epsilon": 4.0, "exact": (), "weights": "equal", "min_examples": 5, "task": {"lr": 0.5}}
        path.write_text(dump(SitePolicy.model_validate({**load_policy(path).model_dump(), **told})))
    asked = programme(multiplier=3.0).model_copy(update={"most_examples": None})
    assert np.linalg.norm(change(operator, sites, asked, tmp_path / "run")) > 0
    for site in sites.values():
        entries = verify(site.folder / "audit.jsonl").entries
        [paid] = [one["facts"] for one in entries if one["event"] == "privacy"]
        assert 0 < paid["epsilon"] < 4.0
    with pytest.raises(TooFewSites, match="a task outside of what this site allows"):
        change(operator, sites, make_programme(rounds=1, lost=0, task={"adapter": "head"}), tmp_path / "exact")


def test_each_site_pays_for_what_the_task_says_and_stops_when_its_budget_is_spent(tmp_path: Path) -> None:
    limit = epsilon([Cost(1.0, 0.5, 2)], 1e-5) * 1.01
    operator, sites = make_federation(tmp_path, privacy=BUDGET.model_copy(update={"epsilon": limit}))
    with pytest.raises(TooFewSites, match=Reason.BUDGET.value.split()[0]):
        change(operator, sites, programme(rounds=3, sample=0.5), tmp_path / "run")
    for site in sites.values():
        assert site.ledger is not None
        assert [(one.what, one.noise, one.rate, one.steps) for one in site.ledger.charges] == [
            ("shared", 1.0, 0.5, 1)
        ] * 2


def test_noise_that_colluders_could_take_off_is_refused(
    federation: tuple[Operator, dict[str, Site]], tmp_path: Path
) -> None:
    operator, sites = federation
    with pytest.raises(TooFewSites, match=Reason.TASK.value.split(",")[0]):
        change(operator, sites, programme(lost=0), tmp_path / "run")


def test_a_round_without_noise_is_refused_by_sites_that_share_it(
    federation: tuple[Operator, dict[str, Site]], tmp_path: Path
) -> None:
    operator, sites = federation
    asked = make_programme(rounds=1, task={"steps": 2, "adapter": "head", "lr": 0.05})
    with pytest.raises(TooFewSites, match=Reason.TASK.value.split(",")[0]):
        change(operator, sites, asked, tmp_path / "run")


@pytest.mark.parametrize("noise", [{"clip": 2.0**-47, "multiplier": 10.0}, {"clip": 1e200, "multiplier": 1e200}])
def test_noise_finer_than_the_grid_of_the_sum_is_refused_before_it_is_paid_for(
    noise: dict[str, float], tmp_path: Path
) -> None:
    """The sites would send exact sums, and the ledger would count the noise that was asked for."""
    operator, sites = make_federation(tmp_path, privacy=BUDGET)
    with pytest.raises(TooFewSites, match=Reason.TASK.value.split(",")[0]):
        change(operator, sites, programme(**noise), tmp_path / "run")
    assert all(site.ledger is not None and not site.ledger.charges for site in sites.values())


def test_a_site_that_brings_no_share_of_the_noise_does_not_count_among_those_that_do(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path, privacy=BUDGET)
    alone = sites["north"].folder / "site.yaml"
    other = BUDGET.model_copy(update={"mechanism": "patients"})
    alone.write_text(dump(load(SiteConfig, alone).model_copy(update={"privacy": other})))
    with pytest.raises(TooFewSites, match=Reason.TASK.value.split(",")[0]):
        change(operator, sites, programme(), tmp_path / "run")
    refused = [one["facts"] for one in verify(alone.parent / "audit.jsonl").entries if one["event"] == "refused"]
    assert "would bring none" in refused[-1]["detail"]


@pytest.mark.parametrize(("lost", "opened"), [(1, False), (2, True)])
def test_a_sum_in_which_more_noise_is_missing_than_stated_is_not_opened(
    lost: int, opened: bool, tmp_path: Path
) -> None:
    """One of four sites is lost after it masked. With one colluder among the rest, noise must bear two."""
    operator, sites = make_federation(tmp_path, privacy=BUDGET)
    for site in sites.values():
        policy = load_policy(site.folder / POLICY)
        (site.folder / POLICY).write_text(dump(policy.model_copy(update={"colluders": 1, **OPEN})))
    asked = programme(lost=lost).model_copy(update={"lost": 0})
    codec = codec_of(operator.model, asked.task)

    def lose(reply: Any) -> Any:
        """The masked vector of one site never arrives."""
        record = reply.content.config_records.get("secagg") if reply.has_content() else None
        return None if record is not None and record["stage"] == "mask" and reply.metadata.src_node_id == 1 else reply

    grid = SecureGrid(make_grid(sites, lose), min_sites=3)
    if opened:
        assert run_rounds(grid, operator, codec, asked, tmp_path / "run").done == 1
    else:
        with pytest.raises(TooFewSites, match=Reason.SURVIVORS.value.split(",")[0]):
            run_rounds(grid, operator, codec, asked, tmp_path / "run")


def test_rates_and_limits_decay_together_and_the_shipped_programme_costs_what_it_says() -> None:
    """Noise is in units of the limit, so a smaller limit costs the same ε."""
    shipped = load(ProgrammeConfig, CONFIGS / "programme" / "glucose_private.yaml")
    first, third = shipped.round_task(1), shipped.round_task(3)
    assert first.noise is not None
    assert third.noise is not None
    assert third.lr / first.lr == pytest.approx(shipped.task.decay**2)
    assert third.noise.clip / first.noise.clip == pytest.approx(shipped.task.decay**2)
    assert first.noise.multiplier == third.noise.multiplier
    spent = epsilon([Cost(first.noise.multiplier, first.noise.sample, shipped.rounds)], 1e-5)
    assert 3.9 < spent <= 4.0
    assert not shipped.evaluate, "figures would cost more"
