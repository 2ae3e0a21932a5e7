"""Which model is kept, and what is said of it."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from distlfm.federated.codec import weights_digest
from distlfm.federated.rounds import run_rounds
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.simulation.compare import Comparison, Scores, gain_share, tuned_alone
from distlfm.federated.simulation.run import gain_words
from distlfm.federated.site.work import BASE, OWN, codec_of, open_operator, own_checkpoint
from distlfm.lfo import Operator
from tests.support.site_toy import make_federation, make_grid, make_programme

HARM = {"steps": 1, "lr": 2.0}
"""A step so long that any model is worse after it."""


@pytest.mark.slow
def test_a_round_that_does_harm_is_not_kept(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    programme = make_programme(rounds=1, evaluate=True, task=HARM)
    codec = codec_of(operator.model, programme.task)
    grid = make_grid(sites)
    state = run_rounds(SecureGrid(grid, min_sites=3), operator, codec, programme, tmp_path / "run")
    before = codec.encode(operator.model.state_dict())
    assert (state.done, state.kept_round, state.chosen) == (1, 0, True)
    assert np.array_equal(state.result, before)
    assert np.array_equal(state.vector, before)  # all sites have voted against it
    assert state.last is not None
    assert state.last["loss"] > state.loss
    grid.wire.clear()
    again = run_rounds(SecureGrid(grid, min_sites=3), operator, codec, programme, tmp_path / "run")
    assert grid.wire == []  # what was chosen stays, and nobody is asked again
    assert np.array_equal(again.result, before)


def test_the_best_model_may_be_the_last_one(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    programme = make_programme(rounds=1, evaluate=True, task={"steps": 5, "lr": 0.02})
    codec = codec_of(operator.model, programme.task)
    state = run_rounds(SecureGrid(make_grid(sites), min_sites=3), operator, codec, programme, tmp_path / "run")
    assert state.kept_round == 1
    assert np.array_equal(state.result, state.vector)
    assert state.loss is not None
    assert state.loss < state.history[0]["loss"]
    assert state.last is not None
    assert state.last["loss"] == state.loss


def test_a_site_alone_keeps_the_first_operator_too_where_tuning_harms(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path, counts=(12,))
    programme = make_programme(rounds=1, evaluate=True, task=HARM)
    codec = codec_of(operator.model, programme.task)
    alone = tuned_alone(sites["east"], programme)
    assert np.array_equal(codec.encode(alone.model.state_dict()), codec.encode(operator.model.state_dict()))


def test_a_site_says_in_its_log_that_an_update_is_no_good_for_its_patients(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    operator, sites = make_federation(tmp_path, counts=(12,))
    for task, lines in ((make_programme(task={"lr": 0.01}).task, 0), (make_programme(task=HARM).task, 1)):
        vector = codec_of(operator.model, task).encode(operator.model.state_dict())
        caplog.clear()
        with caplog.at_level(logging.WARNING, "distlfm.federated.site.work"):
            sites["east"].train(vector, task)
        told = [record.getMessage() for record in caplog.records if "worse than the first operator" in record.message]
        assert len(told) == lines


@pytest.mark.slow
def test_clinicians_ask_the_best_copy_after_a_harmful_round_and_the_runs_model_at_its_end(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    good, harm = (make_programme(rounds=1, task=task) for task in ({"steps": 5, "lr": 0.02}, HARM))
    codec = codec_of(operator.model, good.task)
    grid = SecureGrid(make_grid(sites), min_sites=3)
    better = run_rounds(grid, operator, codec, good, tmp_path / "good").result
    digests = {name: weights_digest(Operator.load(own_checkpoint(site.folder)).model) for name, site in sites.items()}
    assert len(set(digests.values())) == 4  # each site has tuned the run's model further
    for site in sites.values():
        copies = [open_operator(site.folder / name) for name in (BASE, BASE, OWN)]
        codec.load(copies[1].model, better)
        base, common, own = (site.chooses(one, "pairs") for one in copies)
        assert own <= min(base, common)
    codec.load(operator.model, better)
    for site in sites.values():
        operator.save(site.folder / BASE)
    base = weights_digest(operator.model)
    run_rounds(grid, operator, codec, harm, tmp_path / "harm")
    assert {weights_digest(Operator.load(own_checkpoint(site.folder)).model) for site in sites.values()} == {base}


@pytest.mark.parametrize(("federated", "pooled", "share"), [(2.0, 1.0, 0.5), (1.0, 1.0, 1.0), (2.0, 4.0, None)])
def test_a_share_of_the_gain_is_told_only_where_there_is_one(
    federated: float, pooled: float, share: float | None
) -> None:
    def of(loss: float) -> Scores:
        return {"east": {"loss": np.array([loss, loss])}, "west": {"loss": np.array([loss])}}

    found = gain_share(Comparison(of(3.0), {}, of(federated), of(pooled), {}), "loss")
    assert found == share
    assert ("gains nothing" in gain_words({"gain_share": found})) == (share is None)
