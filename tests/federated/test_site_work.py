"""What a site does with its own patients."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from distlfm.errors import OtherWork, UsageError
from distlfm.federated.codec import Vector, weights_digest
from distlfm.federated.refused import Refused
from distlfm.federated.settings import PrivacyConfig, RoundTask, SiteConfig
from distlfm.federated.site.cohort import Cohort
from distlfm.federated.site.ledger import BudgetSpent
from distlfm.federated.site.tuning import descend, drawn, tune
from distlfm.federated.site.work import LOCAL, OWN, Site, codec_of, open_operator, own_checkpoint, write_site
from distlfm.lfo import Operator
from tests.support.lfo_toy import make_store
from tests.support.site_toy import make_batch, make_federation, make_operator

FEW = RoundTask(steps=3, batch=0, lr=1e-3)
HEADS = FEW.model_copy(update={"local": ("second.estimate.*",)})


def started(site: Site, task: RoundTask) -> Vector:
    return codec_of(site.base.model, task).encode(site.base.model.state_dict())


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return make_federation(tmp_path, counts=(12,))[1]["east"]


def test_tuning_makes_the_loss_of_the_patients_smaller(site: Site) -> None:
    task = RoundTask(steps=30, batch=0, lr=3e-3)
    done = site.train(started(site, task), task)
    before, after = (site.evaluate(one, task, part="train")[0]["loss"] for one in (started(site, task), done.vector))
    assert after < before - 0.05
    assert done.num_patients == 8  # of twelve patients two choose and two measure


def test_a_site_counts_for_as_many_patients_as_it_has_however_many_windows_they_have(site: Site) -> None:
    site._labelled = replace(site._labelled, ids=tuple(f"p{i // 2}/{i % 2}" for i in range(12)))
    parts = [site.count("pairs", part) for part in ("train", "choose", "test")]
    assert sum(parts) == 6
    assert len(site.windows()) == 2 * parts[0]
    assert site.train(started(site, FEW), FEW).num_patients == parts[0]
    assert site.evaluate(started(site, FEW), FEW, part="train")[1] == parts[0]


def test_tuning_that_explodes_ends_with_the_last_step_that_gave_numbers(site: Site) -> None:
    wild = RoundTask(steps=4, batch=0, lr=1e18, optimiser="sgd", clip=1.0)
    sent, first = (site.train(started(site, wild), wild.model_copy(update={"steps": steps})) for steps in (4, 1))
    assert np.array_equal(sent.vector, first.vector)
    assert np.abs(sent.vector - started(site, wild)).max() > 1e9
    assert weights_digest(Operator.load(own_checkpoint(site.folder)).model) == site.digest


def test_a_first_step_that_explodes_is_refused_as_silence_would_leave_the_sum_to_the_others(site: Site) -> None:
    site._labelled = replace(site._labelled, force=torch.full_like(site._labelled.force, 1e30))
    with pytest.raises(Refused, match="not finite"):
        site.train(started(site, FEW), FEW)


def test_a_step_sees_as_many_patients_as_it_can_and_all_come_equally_often() -> None:
    patients, seen = [[0, 1, 2, 3, 4, 5], [6], [7, 8], [9, 10, 11], [12]], Counter[int]()
    owner = {row: number for number, rows in enumerate(patients) for row in rows}
    for size, most in ((3, 3), (5, 5), (7, 5)):
        for rows, _ in zip(drawn(patients, size, torch.Generator().manual_seed(1)), range(50), strict=False):
            assert len(rows) == size
            assert len({owner[row] for row in rows.tolist()}) == most
            seen.update(owner[row] for row in rows.tolist())
    assert max(seen.values()) - min(seen.values()) <= 3
    (whole,) = (set(next(drawn(patients, 0, torch.Generator())).tolist()),)
    assert whole == set(range(13))


def test_the_same_round_gives_the_same_weights(site: Site) -> None:
    found = [site.train(started(site, FEW), FEW).vector for _ in range(2)]
    assert np.array_equal(*found)


def test_own_heads_stay_at_the_site_and_are_used_again(site: Site) -> None:
    vector = started(site, HEADS)
    sent = site.train(vector, HEADS)
    assert len(sent.vector) == len(vector) < len(started(site, FEW))
    kept = torch.load(site.folder / LOCAL, weights_only=True)["weights"]
    assert set(kept) == {"second.estimate.weight", "second.estimate.bias"}
    assert not torch.equal(kept["second.estimate.bias"], site.base.model.get_parameter("second.estimate.bias"))
    without = Site(site.folder)
    figures, _ = without.evaluate(vector, HEADS)
    (site.folder / LOCAL).unlink()
    assert Site(site.folder).evaluate(vector, HEADS)[0]["loss"] != figures["loss"]


def test_what_rides_along_with_the_weights_is_that_of_the_generated_set(site: Site) -> None:
    site.train(started(site, FEW), FEW)
    base, own = site.base, Operator.load(site.folder / OWN)
    for name, buffer in base.model.named_buffers():
        assert torch.equal(buffer, dict(own.model.named_buffers())[name]), name
    assert own.calibration == base.calibration
    assert own.schema == base.schema
    assert weights_digest(own.model) != weights_digest(base.model)


def test_a_patient_is_learned_from_or_chooses_or_measures(site: Site) -> None:
    parts = [set(site.windows(part=part).ids) for part in ("train", "choose", "test")]
    assert [len(part) for part in parts] == [8, 2, 2]
    assert len(set.union(*parts)) == 12


def test_windows_of_a_patient_stay_together() -> None:
    ids = [f"p{i}/{j}" for i in range(10) for j in range(3)]
    cohort = Cohort.draw(sorted({name.split("/")[0] for name in ids}), 0.1, 0.3, 4)
    assert (len(cohort.train), len(cohort.choose), len(cohort.test)) == (6, 1, 3)
    rows = cohort.rows(ids, cohort.test)
    assert {ids[row].split("/")[0] for row in rows} == set(cohort.test)
    assert len(rows) == 3 * len(cohort.test)


def test_a_patient_who_comes_later_changes_no_answer(tmp_path: Path) -> None:
    operator = make_operator(make_store(tmp_path / "base.zarr", 16))
    make_store(tmp_path / "site" / "few.zarr", 10)
    make_store(tmp_path / "site" / "more.zarr", 14)  # the same ten and four others
    config = SiteConfig(name="east", store=Path("few.zarr"))
    before, count = write_site(tmp_path / "site", config, operator).statistics()
    later = write_site(tmp_path / "site", config.model_copy(update={"store": Path("more.zarr")}), operator)
    found, again = later.statistics()
    assert again == count
    assert set(later.windows(part="train").ids) < {f"toy-{i}" for i in range(10)}
    assert found.keys() == before.keys()


def test_a_cohort_whose_patients_are_gone_is_refused(tmp_path: Path) -> None:
    Cohort.open(tmp_path, ["a/0", "b/0", "c/0"], 0.3, 0.3, 0)
    with pytest.raises(OtherWork, match="no fit any more"):
        Cohort.open(tmp_path, ["a/0", "b/0"], 0.3, 0.3, 0)


def test_a_patient_of_the_cohort_who_has_records_and_no_fit_is_not_lost(tmp_path: Path) -> None:
    """As where the cohort was drawn for a question about records, before they were fitted."""
    first = Cohort.open(tmp_path, ["a/0", "b/0", "c/0"], 0.3, 0.3, 0)
    assert Cohort.open(tmp_path, ["a/0", "b/0"], 0.3, 0.3, 0, lambda: ["c/0"]) == first
    with pytest.raises(OtherWork, match="1 patients"):
        Cohort.open(tmp_path, ["a/0"], 0.3, 0.3, 0, lambda: ["c/0"])


def test_without_a_single_label_the_equation_teaches(site: Site) -> None:
    task = RoundTask(kind="physics", steps=30, batch=0, lr=3e-3)
    assert bool(torch.isnan(site.windows("physics").force).all())
    before, _ = site.evaluate(started(site, task), task)
    after, _ = site.evaluate(site.train(started(site, task), task).vector, task)
    assert after["reconstruction"] < 0.8 * before["reconstruction"]


def test_the_proximal_term_is_a_square() -> None:
    weights = {"w": torch.tensor([1.0, -2.0], requires_grad=True)}
    task = RoundTask(steps=2, batch=0, optimiser="sgd", lr=0.1, mu=3.0, clip=None)
    descend(
        weights,
        ["w"],
        lambda rows: weights["w"].sum() * torch.ones(len(rows)),
        [[0, 1], [2, 3]],
        task,
        torch.Generator(),
    )
    # w1 = w0 − lr; then the gradient is 1 + mu (w1 − w0) = 1 − mu lr.
    expected = torch.tensor([1.0, -2.0]) - 0.1 - 0.1 * (1 - 3.0 * 0.1)
    assert torch.allclose(weights["w"].detach(), expected)


def test_steps_are_those_of_torch(tmp_path: Path) -> None:
    for optimiser, reference in (("sgd", torch.optim.SGD), ("adam", torch.optim.Adam)):
        (ours, theirs) = (torch.tensor([1.0, 2.0, 3.0], requires_grad=True) for _ in range(2))
        task = RoundTask.model_validate({"steps": 7, "batch": 0, "lr": 0.05, "clip": None, "optimiser": optimiser})
        descend(
            {"w": ours},
            [],
            lambda rows, w=ours: w.pow(4).sum() * torch.ones(len(rows)),
            [[0, 1, 2]],
            task,
            torch.Generator(),
        )
        stepper = reference([theirs], lr=0.05)
        for _ in range(7):
            stepper.zero_grad()
            theirs.pow(4).sum().backward()
            stepper.step()
        assert torch.allclose(ours.detach(), theirs.detach(), atol=1e-6)


def test_an_adapter_tuned_by_its_features_is_the_network_tuned(tmp_path: Path) -> None:
    operator, batch = make_batch(tmp_path, (2, 2, 2))
    operator.save(tmp_path / "base.pt")
    other = open_operator(tmp_path / "base.pt")
    task = RoundTask(steps=3, batch=0, lr=0.01, optimiser="sgd", adapter="head", clip=None)
    names = codec_of(operator.model, task).names
    by_features, _ = tune(operator, names, names, batch, task, torch.Generator())
    whole, _ = tune(other, names, names, batch, task.model_copy(update={"adapter": "none"}), torch.Generator())
    for name in names:
        assert torch.allclose(by_features[name], whole[name], rtol=1e-4, atol=1e-6)


def test_a_spent_budget_stops_the_site_after_a_restart_too(tmp_path: Path) -> None:
    privacy = PrivacyConfig(epsilon=3.0, noise=2.0, sample=0.5)
    site = make_federation(tmp_path, counts=(12,), privacy=privacy)[1]["east"]
    task = RoundTask(steps=4, adapter="shift", lr=1e-3)
    vector, ledger, rounds = started(site, task), Site(site.folder).ledger, 0
    assert ledger is not None
    with suppress(BudgetSpent):
        while True:
            vector, rounds = site.train(vector, task).vector, rounds + 1
    assert rounds > 0
    assert ledger.spent <= 3.0
    assert len(ledger.charges) == rounds
    own = (site.folder / OWN).read_bytes()
    with pytest.raises(BudgetSpent):
        Site(site.folder).train(vector, task)
    assert (site.folder / OWN).read_bytes() == own


def test_questions_are_paid_for_too(tmp_path: Path) -> None:
    privacy = PrivacyConfig(epsilon=1.0, figures=30.0)
    site = make_federation(tmp_path, counts=(12,), privacy=privacy)[1]["east"]
    task = RoundTask(adapter="shift")
    told = [site.evaluate(started(site, task), task)[0]["loss"], site.statistics()[0]["level"]]
    ledger = site.ledger
    assert ledger is not None
    assert [one.what for one in ledger.charges] == ["figures", "statistics"]
    with suppress(BudgetSpent):
        while True:
            told.append(site.statistics()[0]["level"])
    with pytest.raises(BudgetSpent):
        site.statistics()
    assert len(set(told)) == len(told)


def test_an_update_with_noise_pays_for_twice_its_length(tmp_path: Path) -> None:
    privacy = PrivacyConfig(epsilon=50.0, mechanism="update", noise=2.0, clip=0.1)
    site = make_federation(tmp_path, counts=(12,), privacy=privacy)[1]["east"]
    sent = site.train(started(site, FEW), FEW)
    ledger = site.ledger
    assert ledger is not None
    assert [(one.what, one.noise, one.rate) for one in ledger.charges] == [("update", 1.0, 1.0)]
    change = sent.vector - started(site, FEW)
    assert float(change.std()) == pytest.approx(0.2, rel=0.1)


def test_a_site_with_a_budget_refuses_to_tune_the_whole_network_and_pays_nothing(tmp_path: Path) -> None:
    site = make_federation(tmp_path, counts=(12,), privacy=PrivacyConfig(epsilon=5.0))[1]["east"]
    with pytest.raises(UsageError, match="whole network"):
        site.train(started(site, FEW), FEW)
    ledger = site.ledger
    assert ledger is not None
    assert ledger.charges == []


def test_the_policys_budget_takes_the_place_of_the_sites_own(site: Site) -> None:
    assert site.ledger is None
    strict = Site(site.folder, budget=(0.5, 1e-6)).ledger
    assert strict is not None
    assert (strict.budget, strict.delta) == (0.5, 1e-6)


def test_a_personal_copy_is_better_for_the_sites_own_and_is_what_clinicians_ask(site: Site) -> None:
    vector = started(site, FEW)
    path = site.personalise(vector, RoundTask(steps=30, batch=0, lr=3e-3))
    assert path == site.folder / OWN
    assert weights_digest(Operator.load(own_checkpoint(site.folder)).model) == weights_digest(Operator.load(path).model)
    assert weights_digest(Operator.load(own_checkpoint(site.folder)).model) != site.digest
