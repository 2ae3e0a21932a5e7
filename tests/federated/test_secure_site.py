"""The site's policy decides, and what a site remembers is its own: what is outside is refused and logged."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from distlfm.errors import UsageError
from distlfm.federated.audit import verify
from distlfm.federated.refused import Reason
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.secure.mod import secure_mod
from distlfm.federated.simulation.grid import LocalGrid
from distlfm.federated.site.ledger import BudgetSpent
from distlfm.federated.site.policy import load_policy
from tests.support.secure_sites import (
    NAMES,
    answering,
    ask,
    local_grid,
    make_sites,
    mean_over,
    refusals,
    request,
    stage_of,
    step_of,
)


@pytest.mark.parametrize(
    ("settings", "kind", "reason"),
    [
        ({"allowed": ["evaluate"]}, "train", Reason.MESSAGE),
        ({"allowed": ["query.loss"]}, "query.calibration", Reason.MESSAGE),
        ({"package": "9.9.9"}, "train", Reason.PACKAGE),
        ({"min_cohort": 5}, "train", Reason.COHORT),
        ({"min_examples": 100}, "train", Reason.EXAMPLES),
        ({"queries_a_day": 0}, "query.calibration", Reason.QUERIES),
        ({"bytes_a_day": 100}, "train", Reason.BYTES),
    ],
)
def test_what_the_policy_does_not_allow_is_refused_and_logged(
    tmp_path: Path, settings: dict[str, Any], kind: str, reason: Reason
) -> None:
    grid = SecureGrid(local_grid(make_sites(tmp_path, **settings)))
    replies = ask(grid, request(), kind)
    assert all(reply.has_error() for reply in replies)
    assert set(grid.reports[0].dropped.values()) == {reason.value}
    assert reason.name in refusals(tmp_path)


def test_the_policys_fewest_sites_are_asked_for_at_the_end_of_a_sum_too(tmp_path: Path) -> None:
    """The server would be content with three of four, and the threshold too; the sites are not."""

    def lose(reply: Message) -> Message | None:
        return None if reply.metadata.src_node_id == 2 and stage_of(reply) == "mask" else reply

    grid = SecureGrid(local_grid(make_sites(tmp_path, min_cohort=4), on_reply=lose), min_sites=3)
    replies = ask(grid, request())
    assert all(reply.has_error() for reply in replies)
    assert grid.reports[0].survivors == ("east", "south", "west")
    assert refusals(tmp_path) == ["SURVIVORS"]


def test_a_site_with_too_few_examples_is_left_out_and_the_others_go_on(tmp_path: Path) -> None:
    nodes = make_sites(tmp_path, min_examples=20)
    grid = SecureGrid(local_grid(nodes))
    ask(grid, request())
    assert grid.reports[0].survivors == ("east", "south", "west")
    assert grid.reports[0].dropped == {2: Reason.EXAMPLES.value}


@pytest.mark.parametrize(("loss", "counts_as"), [(float("nan"), 1e4), (float("inf"), 1e4), (-1e12, -1e4), (9e3, 9e3)])
def test_whether_a_site_answers_tells_nothing_of_its_figures(tmp_path: Path, loss: float, counts_as: float) -> None:
    """A server that may scale weights could else ask for which loss a site falls silent."""
    app = ClientApp(mods=[secure_mod])

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        told = loss if context.node_id == 2 else 1.0
        return Message(RecordDict({"m": MetricRecord({"num-examples": 10.0, "loss": told})}), reply_to=message)

    grid = SecureGrid(LocalGrid(app, make_sites(tmp_path)))
    replies = ask(grid, request(), "evaluate")
    assert grid.reports[0].dropped == {}
    assert replies[0].content["metrics"]["loss"] == pytest.approx((3.0 + counts_as) / 4, abs=1e-6)
    assert refusals(tmp_path, "north") == []


@pytest.mark.parametrize("wild", [float("nan"), float("-inf"), 1e200, 1e9])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_an_update_that_exploded_is_cut_and_its_site_is_not_known_by_it(
    tmp_path: Path, wild: float, clip: float | None
) -> None:
    app = ClientApp(mods=[secure_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        weights = message.content.array_records["arrays"]["shared"].numpy() + 0.1
        weights[3] = wild if context.node_id == 2 else weights[3]
        content = {"arrays": ArrayRecord({"shared": Array(weights)}), "m": MetricRecord({"num-examples": 10.0})}
        return Message(RecordDict(content), reply_to=message)

    grid = SecureGrid(LocalGrid(app, make_sites(tmp_path, clip=clip)))
    moved = ask(grid, request())[0].content["arrays"]["shared"].numpy() - request()["arrays"]["shared"].numpy()
    assert grid.reports[0].dropped == {}
    if clip is None:
        assert np.allclose(np.delete(moved, 3), 0.1 if abs(wild) < np.inf else 0.075, rtol=0, atol=1e-9)
    else:
        assert np.linalg.norm(moved) <= clip
    assert any(entry["event"] == "held back" for entry in verify(tmp_path / "north" / "audit.jsonl").entries) == (
        clip is None or not np.isfinite(wild)
    )


@pytest.mark.parametrize("count", [0.0, -3.0, float("nan")])
def test_an_answer_without_examples_never_leaves(tmp_path: Path, count: float) -> None:
    grid = SecureGrid(LocalGrid(answering({"num-examples": count}), make_sites(tmp_path)))
    ask(grid, request(), "evaluate")
    assert set(grid.reports[0].dropped.values()) == {Reason.EXAMPLES.value}


def test_a_spent_privacy_budget_is_a_refusal(tmp_path: Path) -> None:
    app = ClientApp(mods=[secure_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise BudgetSpent("2.9 of 3.0 are spent by patient-4711.")

    grid = SecureGrid(LocalGrid(app, make_sites(tmp_path)))
    ask(grid, request())
    assert set(grid.reports[0].dropped.values()) == {Reason.BUDGET.value}


def test_updates_are_clipped_to_the_policys_norm(tmp_path: Path) -> None:
    clip = 0.01
    content = ask(SecureGrid(local_grid(make_sites(tmp_path, clip=clip))), request())[0].content
    moved = content["arrays"]["shared"].numpy() - request()["arrays"]["shared"].numpy()
    clipped = {name: step_of(name, 20) * clip / np.linalg.norm(step_of(name, 20)) for name in NAMES}
    assert all(np.linalg.norm(step_of(name, 20)) > clip for name in NAMES)
    assert np.allclose(moved, mean_over(NAMES, clipped), rtol=0, atol=1e-12)


def test_an_update_that_the_app_has_noised_is_not_clipped_again(tmp_path: Path) -> None:
    nodes = make_sites(tmp_path, clip=0.01, noise_multiplier=1.0)
    content = ask(SecureGrid(local_grid(nodes)), request())[0].content
    moved = content["arrays"]["shared"].numpy() - request()["arrays"]["shared"].numpy()
    assert np.allclose(moved, mean_over(NAMES, {name: step_of(name, 20) for name in NAMES}), rtol=0, atol=1e-12)


def test_noise_without_a_clip_is_no_policy(tmp_path: Path) -> None:
    make_sites(tmp_path, noise_multiplier=1.0)
    with pytest.raises(UsageError, match="set clip too"):
        load_policy(tmp_path / "east")


def test_what_cannot_be_clipped_is_refused(tmp_path: Path) -> None:
    """Without weights to start from, an answer would be no update, and no norm would bind it."""
    app = ClientApp(mods=[secure_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = ArrayRecord({"shared": Array(np.full(20, 1e5))})
        return Message(RecordDict({"arrays": arrays, "m": MetricRecord({"num-examples": 10.0})}), reply_to=message)

    grid = SecureGrid(LocalGrid(app, make_sites(tmp_path, clip=1.0)))
    ask(grid, RecordDict({"config": ConfigRecord({"server-round": 1})}))
    assert set(grid.reports[0].dropped.values()) == {Reason.REQUEST.value}


@pytest.mark.parametrize("kind", ["query.calibration", "evaluate"])
def test_queries_of_a_day_are_counted_across_runs_and_processes(tmp_path: Path, kind: str) -> None:
    """Figures of a model are a question too, whatever the message is called."""
    nodes = make_sites(tmp_path, queries_a_day=2)
    reports = []
    for run in (1, 2, 3):
        grid = SecureGrid(LocalGrid(answering({"num-examples": 10.0}), nodes, run_id=run))
        ask(grid, RecordDict(), kind)
        reports.append(grid.reports[0])
    assert [len(report.survivors) for report in reports] == [4, 4, 0]
    assert set(reports[2].dropped.values()) == {Reason.QUERIES.value}


@pytest.mark.parametrize("kind", ["query.calibration", "evaluate"])
def test_a_question_is_answered_by_all_sites_or_by_none(tmp_path: Path, kind: str) -> None:
    """Two answers that differ by one site would tell what that site said."""

    def lose(message: Message) -> Message | None:
        return None if message.metadata.dst_node_id == 2 else message

    nodes = make_sites(tmp_path)
    whole = SecureGrid(local_grid(nodes))
    assert ask(whole, RecordDict(), kind)[0].content["metrics"]["num-sites"] == 4.0
    part = SecureGrid(local_grid(nodes, on_request=lose))
    assert all(reply.has_error() for reply in ask(part, RecordDict(), kind))
    assert "COHORT_FIXED" in refusals(tmp_path)


def test_what_a_site_remembers_is_its_own_and_holds_no_values(tmp_path: Path) -> None:
    """After the vector has left, the secrets of its masks are gone from the disk too."""
    stages: dict[str, dict[str, Any]] = {}

    def look(message: Message) -> Message:
        if message.metadata.src_node_id == 1:
            file = tmp_path / "east" / "state" / "secagg" / "sum-7.json"
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            stages[stage_of(message)] = json.loads(file.read_text())
        return message

    ask(SecureGrid(local_grid(make_sites(tmp_path), on_reply=look)), request())
    assert stages["shares"]["seed"]
    assert stages["shares"]["mask_secret"]
    for stage in ("mask", "consent"):
        assert not stages[stage]["seed"]
        assert not stages[stage]["mask_secret"]
        assert not stages[stage]["channel_secret"]
    assert stages["unmask"]["stage"] == "advertised"
    assert stages["unmask"]["shares"] == {}
    assert stat.S_IMODE((tmp_path / "east" / "state" / "secagg").stat().st_mode) == 0o700


def test_a_signing_key_that_others_can_read_is_not_used(tmp_path: Path) -> None:
    nodes = make_sites(tmp_path)
    (tmp_path / "north" / "signing.key").chmod(0o644)
    grid = SecureGrid(local_grid(nodes))
    ask(grid, request())
    assert grid.reports[0].survivors == ("east", "south", "west")
    assert grid.reports[0].dropped == {2: Reason.FAILED.value}


def test_a_site_that_pins_another_key_for_a_peer_does_not_sum_with_it(tmp_path: Path) -> None:
    nodes = make_sites(tmp_path)
    file = tmp_path / "east" / "policy.yaml"
    policy = yaml.safe_load(file.read_text())
    policy["peers"]["west"] = "ab" * 32
    file.write_text(yaml.safe_dump(policy))
    grid = SecureGrid(local_grid(nodes))
    ask(grid, request())
    assert grid.reports[0].survivors == ("north", "south", "west")
    assert grid.reports[0].dropped == {1: Reason.KEY.value}


def test_a_node_without_a_policy_answers_nothing(tmp_path: Path) -> None:
    nodes = {**make_sites(tmp_path), 2: {}}
    grid = SecureGrid(local_grid(nodes))
    ask(grid, request())
    assert grid.reports[0].survivors == ("east", "south", "west")


def test_two_nodes_with_one_name_are_not_two_sites(tmp_path: Path) -> None:
    nodes = make_sites(tmp_path)
    grid = SecureGrid(local_grid({**nodes, 5: nodes[1]}))
    ask(grid, request())
    assert "another node has the same name" in grid.reports[0].dropped.values()
    assert grid.reports[0].survivors == ("north", "south", "west")
