"""Rounds of Flower's own strategies over secure sums on the local grid, with sites that come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, Strategy

from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog, verify
from distlfm.federated.secure.grid import Patience, SecureGrid
from distlfm.federated.secure.mod import secure_mod
from distlfm.federated.secure.records import request_digest
from distlfm.federated.simulation.grid import LocalGrid
from tests.support.secure_sites import (
    COUNTS,
    LOSSES,
    NAMES,
    ask,
    local_grid,
    make_app,
    make_sites,
    mean_over,
    name_of,
    request,
    stage_of,
    step_of,
)

STAGES = ("keys", "shares", "mask", "consent", "unmask")


def _mean_step(names: tuple[str, ...], size: int = 20) -> np.ndarray:
    return np.asarray(mean_over(names, {name: step_of(name, size) for name in names}))


def test_the_reply_is_the_weighted_mean_of_all_sites(tmp_path: Path) -> None:
    replies = ask(SecureGrid(local_grid(make_sites(tmp_path))), request())
    assert len(replies) == 1
    content = replies[0].content
    moved = content["arrays"]["shared"].numpy() - request()["arrays"]["shared"].numpy()
    assert np.linalg.norm(moved - _mean_step(NAMES)) <= 1e-6 * np.linalg.norm(_mean_step(NAMES))
    assert content["metrics"]["loss"] == pytest.approx(mean_over(NAMES, LOSSES), rel=1e-6)
    assert content["metrics"]["curve"] == pytest.approx([mean_over(NAMES, LOSSES), 1.0], rel=1e-6)
    assert content["metrics"]["num-examples"] == sum(COUNTS.values())
    assert content["metrics"]["num-sites"] == 4.0


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3])
def test_sums_are_exact_to_a_millionth_over_nine_decades(tmp_path: Path, scale: float) -> None:
    steps = {name: scale * step_of(name, 500) for name in NAMES}
    app = ClientApp(mods=[secure_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        name = name_of(context)
        moved = message.content["arrays"]["shared"].numpy() + steps[name]
        metrics = MetricRecord({"num-examples": COUNTS[name], "loss": scale * LOSSES[name]})
        return Message(
            RecordDict({"arrays": ArrayRecord({"shared": Array(moved)}), "metrics": metrics}), reply_to=message
        )

    start = RecordDict({"arrays": ArrayRecord({"shared": Array(np.zeros(500))})})
    content = ask(SecureGrid(LocalGrid(app, make_sites(tmp_path))), start)[0].content
    expected = np.asarray(mean_over(NAMES, steps))
    assert np.linalg.norm(content["arrays"]["shared"].numpy() - expected) <= 1e-6 * np.linalg.norm(expected)
    assert content["metrics"]["loss"] == pytest.approx(scale * mean_over(NAMES, LOSSES), rel=1e-6)


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_site_may_be_lost_at_any_stage_before_or_after_it_worked(tmp_path: Path, stage: str, when: str) -> None:
    """North, node 2: its request is lost on the way, or its reply. From then on it is silent."""
    gone = []

    def lose(message: Message, node: int) -> Message | None:
        if node == 2 and (gone or stage_of(message) == stage):
            gone.append(stage)
            return None
        return message

    nodes = make_sites(tmp_path)
    if when == "before":
        inner = local_grid(nodes, on_request=lambda message: lose(message, message.metadata.dst_node_id))
    else:
        inner = local_grid(nodes, on_reply=lambda message: lose(message, message.metadata.src_node_id))
    grid = SecureGrid(inner)
    replies = ask(grid, request())
    left = NAMES if stage in ("consent", "unmask") else ("east", "south", "west")
    moved = replies[0].content["arrays"]["shared"].numpy() - request()["arrays"]["shared"].numpy()
    assert np.allclose(moved, _mean_step(left), rtol=0, atol=1e-12)
    assert replies[0].content["metrics"]["num-sites"] == float(len(left))
    assert grid.reports[0].dropped == {2: "no answer in time"}
    errors = [reply.metadata.src_node_id for reply in replies if reply.has_error()]
    assert errors == ([] if len(left) == 4 else [2])


@pytest.mark.parametrize("stage", STAGES)
def test_with_two_of_four_sites_lost_there_is_no_mean(tmp_path: Path, stage: str) -> None:
    def lose(message: Message) -> Message | None:
        return None if message.metadata.dst_node_id in (1, 2) and stage_of(message) == stage else message

    grid = SecureGrid(local_grid(make_sites(tmp_path), on_request=lose))
    replies = ask(grid, request())
    assert len(replies) == 4
    assert all(reply.has_error() for reply in replies)
    assert "2 sites" in grid.reports[0].failure


def test_a_lost_round_leaves_the_model_and_the_next_one_goes_on(tmp_path: Path) -> None:
    rounds = []

    def lose(message: Message) -> Message | None:
        if stage_of(message) == "mask":
            rounds.append(message.metadata.dst_node_id)
            return None if len(rounds) <= 4 and message.metadata.dst_node_id in (1, 2) else message
        return message

    grid = SecureGrid(local_grid(make_sites(tmp_path), on_request=lose))
    start = ArrayRecord({"shared": Array(np.zeros(20))})
    result = FedAvg(min_available_nodes=4, fraction_evaluate=0.0).start(grid, start, num_rounds=3)
    assert [bool(report.failure) for report in grid.reports] == [True, False, False]
    assert np.allclose(result.arrays["shared"].numpy(), 2 * _mean_step(NAMES), rtol=0, atol=1e-12)


def test_keys_for_the_next_sum_come_with_the_last_one(tmp_path: Path) -> None:
    inner = local_grid(make_sites(tmp_path))
    grid = SecureGrid(inner)
    for round_ in (1, 2):
        ask(grid, request(round_=round_))
    stages = [frame.stage for frame in inner.wire if frame.direction == "to site" and frame.node == 1]
    assert stages == [*STAGES, *STAGES[1:]]


def test_a_site_whose_keys_were_lost_is_back_in_the_sum_after_next(tmp_path: Path) -> None:
    grid = SecureGrid(local_grid(make_sites(tmp_path)))
    ask(grid, request(round_=1))
    for path in (tmp_path / "north" / "state").rglob("sum-*"):
        path.unlink()
    for round_ in (2, 3):
        ask(grid, request(round_=round_))
    assert [len(report.survivors) for report in grid.reports] == [4, 3, 4]


def _plain_app() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        name = name_of(context)
        moved = message.content["arrays"]["shared"].numpy() + step_of(name, 20)
        metrics = MetricRecord({"num-examples": COUNTS[name], "loss": LOSSES[name]})
        return Message(
            RecordDict({"arrays": ArrayRecord({"shared": Array(moved)}), "metrics": metrics}), reply_to=message
        )

    return app


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAvg(fraction_evaluate=0.0, min_available_nodes=4),
        lambda: FedAdam(fraction_evaluate=0.0, min_available_nodes=4),
        lambda: FedAvgM(fraction_evaluate=0.0, min_available_nodes=4, server_momentum=0.9),
    ],
    ids=["FedAvg", "FedAdam", "FedAvgM"],
)
def test_strategies_give_the_same_model_with_and_without_masks(tmp_path: Path, make: Callable[[], Strategy]) -> None:
    nodes = make_sites(tmp_path)
    start = np.linspace(-1, 1, 20)
    plain = make().start(LocalGrid(_plain_app(), nodes), ArrayRecord({"shared": Array(start)}), num_rounds=3)
    secure = make().start(SecureGrid(local_grid(nodes)), ArrayRecord({"shared": Array(start)}), num_rounds=3)
    expected = plain.arrays["shared"].numpy()
    assert np.linalg.norm(secure.arrays["shared"].numpy() - expected) <= 1e-6 * np.linalg.norm(expected - start)


def test_arrays_of_every_number_type_come_back_in_theirs(tmp_path: Path) -> None:
    """Complex weights are pairs of reals, whole numbers are rounded, and an array that was not sent travels whole."""
    app = ClientApp(mods=[secure_mod])
    values = {
        "single": np.array([0.5, -1.25], dtype=np.float32),
        "spectral": np.array([[1.5 - 2.0j, 0.25 + 4.0j]], dtype=np.complex64),
        "steps": np.array(7, dtype=np.int64),
        "new": np.array([3.0]),
    }

    @app.train()
    def train(message: Message, context: Context) -> Message:
        arrays = ArrayRecord({name: Array(value) for name, value in values.items()})
        return Message(
            RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 10.0})}), reply_to=message
        )

    sent = RecordDict(
        {"arrays": ArrayRecord({name: Array(np.asarray(values[name] * 2)) for name in ("single", "spectral", "steps")})}
    )
    arrays = ask(SecureGrid(LocalGrid(app, make_sites(tmp_path))), sent)[0].content["arrays"]
    assert set(arrays) == set(values)
    for name, value in values.items():
        found = arrays[name].numpy()
        assert found.dtype == value.dtype
        assert found.shape == value.shape
        assert np.allclose(found, value, rtol=1e-6)


def test_a_site_with_another_form_of_answer_is_left_out(tmp_path: Path) -> None:
    app = ClientApp(mods=[secure_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        extra = {"more": 1.0} if name_of(context) == "west" else {}
        return Message(RecordDict({"m": MetricRecord({"num-examples": 10.0, "loss": 2.0, **extra})}), reply_to=message)

    grid = SecureGrid(LocalGrid(app, make_sites(tmp_path)))
    replies = ask(grid, RecordDict())
    assert grid.reports[0].survivors == ("east", "north", "south")
    assert grid.reports[0].dropped == {4: "an answer of another form than most sites'"}
    assert replies[1].error.reason == grid.reports[0].dropped[4]
    assert replies[0].content["metrics"] == {"num-examples": 30.0, "num-sites": 3.0, "loss": 2.0}


def test_all_stages_of_a_sum_end_in_the_time_that_is_given_for_it() -> None:
    """Each waits to the last for somebody who never answers, and the others have their time all the same."""
    for seconds in (8.0, 600.0):
        waited: list[float] = []
        patience = Patience(seconds, 120.0, partial(sum, waited))
        for stage in STAGES:
            found = patience.of(stage)
            assert found is not None
            assert found >= seconds / 10
            waited.append(found)
        assert sum(waited) <= seconds
        assert patience.of("keys") == 0.0
    assert [Patience(None, 120.0).of(stage) for stage in STAGES] == [120.0, 120.0, None, 120.0, 120.0]


def test_a_grid_waits_no_longer_than_its_strategy_says(tmp_path: Path) -> None:
    waited: list[float] = []

    class Slow(LocalGrid):
        def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
            assert timeout is not None
            waited.append(timeout)
            return super().send_and_receive(messages)

    grid = SecureGrid(Slow(make_app(), make_sites(tmp_path), run_id=7))
    messages = [Message(request(), node, "train") for node in (1, 2, 3, 4)]
    assert len(list(grid.send_and_receive(messages, timeout=40.0))) == 1
    assert len(waited) == 5
    assert max(waited) <= 40.0
    assert waited[2] <= 30.0  # a site that works for ever leaves time to end the sum without it


def test_sites_are_asked_the_same_or_not_at_all(tmp_path: Path) -> None:
    grid = SecureGrid(local_grid(make_sites(tmp_path)))
    messages = [Message(request(round_=node), node, "train") for node in (1, 2, 3, 4)]
    with pytest.raises(UsageError, match="asks all sites the same"):
        grid.send_and_receive(messages)
    with pytest.raises(UsageError, match="one by one"):
        grid.push_messages(messages)


def test_the_link_logs_each_sum_without_a_value_in_it(tmp_path: Path) -> None:
    grid = SecureGrid(local_grid(make_sites(tmp_path)), audit=AuditLog(tmp_path / "link.jsonl"))
    [mean] = ask(grid, request())
    report = verify(tmp_path / "link.jsonl")
    assert report.flaws == []
    assert report.entries[0]["run"] == "7"
    facts = report.entries[0]["facts"]
    assert facts["survivors"] == list(NAMES)
    assert facts["sent"] > facts["received"] > 4 * 20 * 8
    assert facts["sha256"] == request_digest(mean.content)
    of_site = verify(tmp_path / "east" / "audit.jsonl").entries
    assert {entry["run"] for entry in of_site} == {"7"}
    asked = [entry["facts"]["request"] for entry in of_site if entry["event"] == "mask"]
    assert asked == [report.entries[0]["facts"]["request"]]
