"""Rounds over secure sums: what the sites' models become."""

from __future__ import annotations

import inspect
import json
import logging
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from flwr.app import Context, Message, RecordDict
from flwr.common.logger import LOGGER_NAME
from flwr.common.serde import message_from_proto
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.serverapp.strategy import FedAvg

from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog, verify
from distlfm.federated.refused import Reason
from distlfm.federated.rounds import RunState, ask, run_rounds
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.secure.messages import Fields
from distlfm.federated.secure.mod import BODY, RECORD
from distlfm.federated.server_app import is_no_count, perform, programme_of, words
from distlfm.federated.server_app import main as server_main
from distlfm.federated.settings import PrivacyConfig, ProgrammeConfig
from distlfm.federated.setup.provision import policy_text
from distlfm.federated.simulation.compare import joined
from distlfm.federated.site.tuning import LABELLED, tune
from distlfm.federated.site.work import Site, codec_of, open_operator
from distlfm.federated.strategy import TooFewSites, wait_for_sites
from distlfm.lfo import Operator
from distlfm.version import __version__
from tests.support.secure_sites import stage_of
from tests.support.site_toy import make_federation, make_grid, make_programme


def run(
    operator: Operator, sites: dict[str, Site], programme: ProgrammeConfig, folder: Path, **more: object
) -> RunState:
    grid = SecureGrid(make_grid(sites), min_sites=programme.min_sites)
    codec = codec_of(operator.model, programme.task)
    return run_rounds(grid, operator, codec, programme, folder, on_round=more.get("on_round"))  # type: ignore[arg-type]


@pytest.mark.slow
def test_one_full_batch_step_of_equal_shards_is_the_step_of_all_data(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    programme = make_programme(rounds=1, task={"steps": 1, "lr": 0.05})
    found = run(operator, sites, programme, tmp_path / "run").vector
    central = open_operator(next(iter(sites.values())).folder / "model/base.pt")
    codec = codec_of(central.model, programme.task)
    before = codec.encode(central.model.state_dict())
    whole = joined([site.windows() for site in sites.values()])
    assert len(whole) == 32
    tune(central, codec.names, codec.names, whole, programme.round_task(1), torch.Generator())
    expected = codec.encode(central.model.state_dict())
    assert np.abs(expected - before).max() > 1e-3
    assert np.abs(found - expected).max() <= 1e-6


def test_unequal_shards_count_by_their_patients(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path, counts=(8, 12, 16, 24))
    programme = make_programme(rounds=1, task={"steps": 1})
    found = run(operator, sites, programme, tmp_path / "run").vector
    codec = codec_of(operator.model, programme.task)
    before = codec.encode(operator.model.state_dict())
    alone = [Site(site.folder).train(before, programme.round_task(1)) for site in sites.values()]
    counts = [one.num_patients for one in alone]
    assert counts == [6, 8, 12, 18]
    expected = np.average([one.vector for one in alone], axis=0, weights=counts)
    assert np.abs(found - expected).max() <= 1e-6 * np.abs(expected - before).max() + 1e-9


@pytest.mark.slow
def test_adam_at_the_server_is_adam_on_the_mean_update(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    mean = run(operator, sites, make_programme(rounds=1), tmp_path / "mean").vector
    told = {"kind": "fedadam", "lr": 0.01, "tau": 1e-3}
    found = run(operator, sites, make_programme(rounds=1, strategy=told), tmp_path / "adam").vector
    codec = codec_of(operator.model, make_programme().task)
    before = codec.encode(operator.model.state_dict())
    change = mean - before
    first, second = 0.1 * change, 0.01 * change**2
    # Flower counts rounds from one, and corrects the bias with one more.
    rate = 0.01 * np.sqrt(1 - 0.99**2) / (1 - 0.9**2)
    assert np.allclose(found, before + rate * first / (np.sqrt(second) + 1e-3), atol=1e-9)


@pytest.mark.slow
def test_a_proximal_term_holds_sites_near_the_common_model(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    task = {"steps": 10, "lr": 0.02}
    codec = codec_of(operator.model, make_programme().task)
    before = codec.encode(operator.model.state_dict())
    free = run(operator, sites, make_programme(rounds=1, task=task), tmp_path / "free").vector
    held = make_programme(rounds=1, task=task, strategy={"kind": "fedprox", "mu": 20.0})
    near = run(operator, sites, held, tmp_path / "held").vector
    assert np.linalg.norm(near - before) < 0.7 * np.linalg.norm(free - before)


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_as_if_it_had_not_been(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    programme = make_programme(rounds=3, strategy={"kind": "fedadam", "lr": 0.01})
    whole = run(operator, sites, programme, tmp_path / "whole").vector

    def die(line: dict[str, object]) -> None:
        if line["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(operator, sites, programme, tmp_path / "killed", on_round=die)
    assert json.loads((tmp_path / "killed" / "state.json").read_text())["done"] == 1
    again = run(operator, sites, programme, tmp_path / "killed")
    assert again.done == 3
    assert [line["round"] for line in again.history] == [1, 2, 3]
    assert np.array_equal(again.vector, whole)


@pytest.mark.slow
def test_a_folder_of_another_programme_is_refused(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    run(operator, sites, make_programme(rounds=1), tmp_path / "run")
    with pytest.raises(UsageError, match="another programme"):
        run(operator, sites, make_programme(rounds=1, task={"lr": 0.5}), tmp_path / "run")
    assert run(operator, sites, make_programme(rounds=2), tmp_path / "run").done == 2


def test_two_runs_under_one_name_do_not_undo_each_others_rounds(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    refused = []

    def second(line: dict[str, object]) -> None:
        with pytest.raises(UsageError, match="in use: federated run"):
            run(operator, sites, make_programme(rounds=2), tmp_path / "run")
        refused.append(line["round"])

    done = run(operator, sites, make_programme(rounds=1), tmp_path / "run", on_round=second)
    assert (refused, done.done) == ([1], 1)


@pytest.mark.parametrize("lost", [2, 3])
def test_too_few_survivors_never_become_the_common_model(tmp_path: Path, lost: int) -> None:
    operator, sites = make_federation(tmp_path)

    def drop(reply: Message) -> Message | None:
        return None if reply.metadata.src_node_id <= lost else reply

    programme = make_programme(lost=1)
    grid = SecureGrid(make_grid(sites, on_reply=drop), min_sites=3)
    codec = codec_of(operator.model, programme.task)
    lines: list[dict[str, object]] = []
    with pytest.raises(TooFewSites, match="was lost 2 times"):
        run_rounds(grid, operator, codec, programme, tmp_path / "run", on_round=lines.append)
    assert [line["round"] for line in lines] == [1, 1]
    assert not (tmp_path / "run" / "state.json").exists()


def test_a_run_that_loses_a_site_for_good_ends_and_says_what_to_do(tmp_path: Path) -> None:
    """All sites train together or none does: sums over four and over three of them would show one site."""
    operator, sites = make_federation(tmp_path)

    def drop(reply: Message) -> Message | None:
        return None if reply.metadata.src_node_id == 2 else reply

    programme = make_programme(rounds=1, lost=1)
    grid = SecureGrid(make_grid(sites, on_reply=drop), min_sites=3)
    with pytest.raises(TooFewSites, match="was lost 2 times") as caught:
        run_rounds(grid, operator, codec_of(operator.model, programme.task), programme, tmp_path / "run")
    assert "Start the missing sites" in caught.value.fix


def test_a_round_waits_for_a_site_that_was_lost(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    lost: list[str] = []

    def drop(reply: Message) -> Message | None:
        if reply.metadata.src_node_id == 2 and stage_of(reply) == "mask" and not lost:
            lost.append("once")
            return None
        return reply

    programme = make_programme(rounds=1)
    grid = SecureGrid(make_grid(sites, on_reply=drop), min_sites=3)
    found = run_rounds(grid, operator, codec_of(operator.model, programme.task), programme, tmp_path / "run")
    assert [line["sites"] for line in found.history] == [4]
    assert len([report for report in grid.reports if report.purpose == "train"]) == 3  # lost, whole, handed out


def test_a_run_goes_on_with_covering_noise_where_the_policies_say_so(tmp_path: Path) -> None:
    """Each of the three sites that are left adds noise of its own, and counts as much as the others."""
    operator, sites = make_federation(tmp_path)
    clip, noise = 0.05, 2.0
    for site in sites.values():
        path = site.folder / "policy.yaml"
        changes = {"fixed_cohort": ["evaluate", "query"], "clip": clip, "cover_noise": noise, "min_examples": 1}
        path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))

    def drop(reply: Message) -> Message | None:
        return None if reply.metadata.src_node_id == 2 else reply

    programme = make_programme(rounds=2)
    grid = SecureGrid(make_grid(sites, on_reply=drop), min_sites=3)
    codec = codec_of(operator.model, programme.task)
    found = run_rounds(grid, operator, codec, programme, tmp_path / "run")
    assert [line["sites"] for line in found.history] == [3, 3]
    moved = found.vector - codec.encode(operator.model.state_dict())
    assert np.std(moved) == pytest.approx(noise * clip * np.sqrt(2 / 3), rel=0.05)
    masked = [one["facts"] for one in verify(sites["east"].folder / "audit.jsonl").entries if one["event"] == "mask"]
    assert [one["covered"] for one in masked] == [True] * 3


def test_a_server_does_not_wait_for_ever(tmp_path: Path) -> None:
    _, sites = make_federation(tmp_path, counts=(8, 8))
    with pytest.raises(TooFewSites, match="Only 2 of at least 3"):
        wait_for_sites(make_grid(sites), 3, 0.05)


def test_sites_with_another_operator_refuse(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    other = open_operator(next(iter(sites.values())).folder / "model/base.pt")
    other.model.normal.value_mean.add_(1.0)
    with pytest.raises(TooFewSites):
        run(other, sites, make_programme(lost=0), tmp_path / "run")
    assert run(operator, sites, make_programme(rounds=1), tmp_path / "right").done == 1


@pytest.mark.slow
def test_figures_of_a_round_are_means_over_the_federation(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path, counts=(8, 12, 16, 24))
    programme = make_programme(rounds=1, evaluate=True)
    line = run(operator, sites, programme, tmp_path / "run").history[0]
    codec = codec_of(operator.model, programme.task)
    before = codec.encode(operator.model.state_dict())
    figures = [site.evaluate(before, programme.task, part="choose")[0]["loss"] for site in sites.values()]
    weights = [site.count("pairs", "choose") for site in sites.values()]
    assert weights == [1, 2, 2, 3]
    assert line["loss"] == pytest.approx(np.average(figures, weights=weights), abs=1e-6)
    assert set(line) == {"round", "sites", "seconds", *LABELLED}


def test_what_leaves_in_a_round_is_the_update_and_how_many_patients_it_is_of(tmp_path: Path) -> None:
    """Exact losses beside an update with noise would be outside of any budget."""
    operator, sites = make_federation(tmp_path)
    grid = make_grid(sites)
    programme = make_programme(rounds=1)
    run_rounds(SecureGrid(grid), operator, codec_of(operator.model, programme.task), programme, tmp_path / "run")
    masked = [frame for frame in grid.wire if (frame.direction, frame.stage) == ("to server", "mask")]
    told = [message_from_proto(ProtoMessage.FromString(frame.payload)).content[RECORD][BODY] for frame in masked]
    forms = [tuple(part[:2] for part in Fields.from_bytes(body).parts) for body in told]
    count = ("num-examples", "weight")
    assert forms == [(count, ("shared", "difference"))] * 4 + [(count,)] * 4  # and at the end that the site was there


@pytest.mark.parametrize("mechanism", ["patients", "update"])
@pytest.mark.slow
def test_a_site_with_a_budget_is_in_the_model_of_sites_without_one(tmp_path: Path, mechanism: str) -> None:
    operator, sites = make_federation(tmp_path)
    privacy = f"privacy: {{epsilon: 20, mechanism: {mechanism}}}"
    for file, before, now in (("policy", "epsilon: null", "epsilon: 20.0"), ("site", "privacy: null", privacy)):
        path = sites["north"].folder / f"{file}.yaml"
        path.write_text(path.read_text().replace(before, now))
    grid = SecureGrid(make_grid(sites), min_sites=3)
    programme = make_programme(rounds=1, evaluate=True, task={"adapter": "shift"})
    state = run_rounds(grid, operator, codec_of(operator.model, programme.task), programme, tmp_path / "run")
    assert [report.survivors for report in grid.reports] == [tuple(sites)] * 4  # figures, round, figures, the end
    assert state.history[0]["sites"] == 4
    assert "loss" in state.history[0]
    ledger = Site(sites["north"].folder, (20.0, 1e-5)).ledger
    assert ledger is not None
    work = {"patients": "train", "update": "update"}[mechanism]
    assert [one.what for one in ledger.charges] == ["figures", work, "figures"]


@pytest.mark.slow
def test_a_site_with_few_patients_that_choose_tells_no_figures_and_learns_all_the_same(tmp_path: Path) -> None:
    """Under the policy of a new site without its budget: five patients behind answers, and all sites behind figures."""
    operator, sites = make_federation(tmp_path, counts=(40, 40, 48, 16))
    for name, site in sites.items():
        peers = yaml.safe_load((site.folder / "policy.yaml").read_text())["peers"]
        text = policy_text(name, __version__).replace("peers: {}", f"peers: {json.dumps(peers)}")
        text = text.replace("epsilon: 4.0", "epsilon: null").replace("exact: []", "exact: [train, evaluate]")
        (site.folder / "policy.yaml").write_text(text)
    assert [site.count("pairs", "choose") for site in sites.values()] == [5, 5, 6, 2]
    grid = SecureGrid(make_grid(sites), min_sites=3, audit=AuditLog(tmp_path / "link.jsonl"))
    programme = make_programme(rounds=1, evaluate=True, task={"clip": 1.0})
    state = run_rounds(grid, operator, codec_of(operator.model, programme.task), programme, tmp_path / "run")
    assert grid.reports[0].dropped[4] == Reason.EXAMPLES.value
    told = verify(tmp_path / "link.jsonl").entries[0]["facts"]["dropped"]
    few = list(sites)[3]  # by the site's name, not by its node's number; the others answer with all or not at all
    reasons = {name: Reason.EXAMPLES if name == few else Reason.COHORT_FIXED for name in sites}
    assert sorted(told) == sorted(f"{name}: {reason.value}" for name, reason in reasons.items())
    assert set(state.history[0]) == {"round", "sites", "seconds"}
    assert (state.history[0]["sites"], state.kept) == (4, None)
    assert words(state.history[0], measured=True).startswith(
        "round 1: 4 sites, the model before it: not measured: not all sites answered ("
    )


@pytest.mark.slow
def test_a_round_that_is_asked_for_again_does_not_ask_for_figures_again(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    lost: list[int] = []

    def drop(reply: Message) -> Message | None:
        if reply.metadata.message_type == "train" and len(lost) < 2:
            lost.append(reply.metadata.src_node_id)
            return None
        return reply

    grid = SecureGrid(make_grid(sites, drop), min_sites=3)
    programme = make_programme(rounds=1, evaluate=True)
    lines: list[dict[str, object]] = []
    codec = codec_of(operator.model, programme.task)
    run_rounds(grid, operator, codec, programme, tmp_path / "run", on_round=lines.append)
    assert [report.purpose for report in grid.reports] == ["evaluate", "train", "train", "evaluate", "train"]
    said = [words(line, measured=True) for line in lines]
    assert ", lost (" in said[0]
    assert said[1].startswith("round 1: 4 sites, the model before it: coverage_95 ")
    assert said[2].startswith("after round 1: coverage_95 ")
    assert said[2].endswith("the model of round 1 is kept")


@pytest.mark.parametrize("question", ["model", "cohort"])
@pytest.mark.slow
def test_a_question_is_answered_as_a_mean_over_all_patients(tmp_path: Path, question: str) -> None:
    operator, sites = make_federation(tmp_path, counts=(20, 28, 24, 20))
    programme = make_programme(kind="query", question=question)
    codec = codec_of(operator.model, programme.task)
    found = ask(SecureGrid(make_grid(sites), min_sites=3), operator, codec, programme, tmp_path / "run", "1")
    before = codec.encode(operator.model.state_dict())
    each = [
        site.evaluate(before, programme.task) if question == "model" else site.statistics() for site in sites.values()
    ]
    for name in each[0][0]:
        expected = np.average([figures[name] for figures, _ in each], weights=[count for _, count in each])
        assert found[name] == pytest.approx(expected, abs=1e-6), name
    assert found["sites"] == 4


def test_a_question_with_a_site_missing_is_not_answered(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path, counts=(20, 20, 20, 20))
    programme = make_programme(kind="query", question="cohort")
    codec = codec_of(operator.model, programme.task)

    def drop(reply: Message) -> Message | None:
        return None if reply.metadata.src_node_id == 4 else reply

    with pytest.raises(TooFewSites, match="cohort"):
        ask(SecureGrid(make_grid(sites, drop), min_sites=3), operator, codec, programme, tmp_path / "run", "1")


@pytest.mark.slow
def test_spent_budgets_end_a_run_and_the_model_stays_that_of_the_last_paid_round(tmp_path: Path) -> None:
    privacy = PrivacyConfig(epsilon=4.0, noise=2.0, sample=0.5)
    operator, sites = make_federation(tmp_path, privacy=privacy)
    task = {"steps": 3, "adapter": "shift"}
    programme = make_programme(rounds=50, lost=0, evaluate=False, task=task)
    with pytest.raises(TooFewSites):
        run(operator, sites, programme, tmp_path / "run")
    done = json.loads((tmp_path / "run" / "state.json").read_text())["done"]
    assert 1 <= done < 50
    for site in sites.values():
        ledger = Site(site.folder).ledger
        assert ledger is not None
        assert len(ledger.charges) == done
        assert ledger.spent <= 4.0
    with pytest.raises(TooFewSites):  # the same after a restart of everything
        run(operator, sites, programme, tmp_path / "run")


def test_the_server_app_keeps_operator_and_result(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path)
    operator.save(tmp_path / "base.pt")
    text = make_programme(rounds=1, operator=str(tmp_path / "base.pt")).model_dump_json()
    programme = programme_of(text)
    result = perform(SecureGrid(make_grid(sites), min_sites=3), programme, tmp_path / "run", "1")
    assert json.loads((tmp_path / "run" / "result.json").read_text()) == result
    tuned = Operator.load(tmp_path / "run" / "operator.pt")
    codec = codec_of(tuned.model, programme.task)
    with np.load(tmp_path / "run" / "round-0001.npz") as held:
        assert np.allclose(codec.encode(tuned.model.state_dict()), held["shared"], atol=1e-7)


@pytest.mark.parametrize("text", ["/etc/passwd", "programme.yaml", "[]", ""])
def test_a_programme_is_no_path_of_the_links_machine(text: str) -> None:
    with pytest.raises(UsageError, match="not a JSON object"):
        programme_of(text)


@pytest.mark.parametrize("name", ["../../thief", "/tmp/thief", ""])
def test_a_run_writes_nothing_outside_of_the_links_runs(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever got past the gate."""
    monkeypatch.setenv("DISTLFM_LINK_HOME", str(tmp_path))
    told = {"programme": make_programme().model_dump_json(), "run-name": name}
    with pytest.raises(UsageError, match="not a name of a site or run"):
        server_main(make_grid({}), Context(1, 1, {}, RecordDict(), told))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_question_is_about_the_model_of_the_rounds_before(tmp_path: Path) -> None:
    operator, sites = make_federation(tmp_path, counts=(20, 20, 20, 20))
    operator.save(tmp_path / "base.pt")
    told = {"operator": str(tmp_path / "base.pt"), "task": {"steps": 5, "lr": 0.02}}
    grid = SecureGrid(make_grid(sites), min_sites=3)
    asked = make_programme(kind="query", question="model", **told)
    before = perform(grid, asked, tmp_path / "elsewhere", "1")
    perform(grid, make_programme(**told), tmp_path / "run", "1")
    after = perform(grid, asked, tmp_path / "run", "1")
    assert after["loss"] < before["loss"]
    assert json.loads((tmp_path / "run" / "result.json").read_text())["rounds"] == 2
    assert json.loads((tmp_path / "run" / "answer-model.json").read_text()) == after


def test_whoever_follows_a_run_does_not_read_that_one_site_answered() -> None:
    """Flower counts a secure sum as one result."""
    count = "%s: Received %s results and %s failures"
    assert count in inspect.getsource(FedAvg)
    assert LOGGER_NAME == "flwr"
    assert not is_no_count(logging.makeLogRecord({"msg": count}))
    assert is_no_count(logging.makeLogRecord({"msg": "%s"}))
