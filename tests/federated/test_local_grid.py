"""The grid in one process behaves as Flower does, down to names of Flower that are not public."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

from distlfm.federated.secure.mod import secure_mod
from distlfm.federated.secure.records import request_digest
from distlfm.federated.simulation.grid import LocalGrid
from tests.support.secure_sites import local_grid, make_sites, request


def _counting() -> ClientApp:
    """Tells how often it was called at this node, from what Flower keeps for it."""
    app = ClientApp()

    @app.query()
    def count(message: Message, context: Context) -> Message:
        before = context.state.metric_records.get("calls", MetricRecord({"count": 0}))
        context.state["calls"] = MetricRecord({"count": int(before["count"]) + 1})
        told = {"count": context.state["calls"]["count"], "node": TaskIdentity.node_id, "run": TaskIdentity.run_id}
        return Message(RecordDict({"metrics": MetricRecord(told)}), reply_to=message)

    @app.train()
    def train(message: Message, context: Context) -> Message:
        raise ValueError("as it stands")

    return app


def _ask(grid: LocalGrid, kind: str = "query") -> list[Message]:
    return list(grid.send_and_receive([Message(RecordDict(), node, kind) for node in grid.get_node_ids()]))


def test_a_node_keeps_its_state_between_messages_and_apart_from_others() -> None:
    grid = LocalGrid(_counting(), {3: {}, 8: {}}, run_id=5)
    _ask(grid)
    list(grid.send_and_receive([Message(RecordDict(), 3, "query")]))
    found = {reply.metadata.src_node_id: reply.content["metrics"] for reply in _ask(grid)}
    assert found == {3: {"count": 3, "node": 3, "run": 5}, 8: {"count": 2, "node": 8, "run": 5}}


def test_an_exception_of_an_app_becomes_an_error_with_its_words() -> None:
    replies = _ask(LocalGrid(_counting(), {1: {}}), "train")
    assert replies[0].error.reason == "<class 'ValueError'>:<'as it stands'>"


def test_lost_messages_are_on_the_wire_and_get_no_answer() -> None:
    grid = LocalGrid(_counting(), {1: {}, 2: {}})
    grid.on_request = lambda message: None if message.metadata.dst_node_id == 1 else message
    assert [reply.metadata.src_node_id for reply in _ask(grid)] == [2]
    grid.on_request, grid.on_reply = None, lambda _: None
    assert _ask(grid) == []
    delivered = [(frame.direction, frame.node, frame.delivered) for frame in grid.wire]
    assert delivered[:3] == [("to site", 1, False), ("to site", 2, True), ("to server", 2, True)]
    assert delivered[3:] == [
        ("to site", 1, True),
        ("to server", 1, False),
        ("to site", 2, True),
        ("to server", 2, False),
    ]
    assert grid.bytes_sent == sum(len(frame.payload) for frame in grid.wire if frame.direction == "to site")


def test_replies_can_be_pulled_later() -> None:
    grid = LocalGrid(_counting(), {1: {}})
    identities = list(grid.push_messages([Message(RecordDict(), 1, "query")]))
    assert len(list(grid.pull_messages(identities))) == 1
    assert list(grid.pull_messages(identities)) == []


def test_a_request_keeps_its_digest_on_flowers_way_over_the_network(tmp_path: Path) -> None:
    """Flower takes messages apart into objects; the site computes the digest from what was put together again."""
    content = RecordDict(
        {
            "arrays": ArrayRecord({"b": Array(np.arange(3.0)), "a": Array(np.ones((2, 2), dtype=np.complex64))}),
            "config": ConfigRecord(
                {"z": 1, "a": 0.1, "t": "text", "raw": b"\x00\xff", "many": [1.5, 2.5], "no": False}
            ),
            "metrics": MetricRecord({"m": 3, "l": [1.0, 2.0]}),
        }
    )
    local_grid(make_sites(tmp_path))
    message = Message(content, 1, "train")
    objects = {name: one.deflate() for name, one in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, objects)
    assert isinstance(arrived, Message)
    assert request_digest(arrived.content) == request_digest(content)


@pytest.mark.parametrize("change", ["value", "type", "name", "order", "record"])
def test_every_change_of_a_request_changes_its_digest(change: str) -> None:
    arrays = ArrayRecord({"a": Array(np.zeros(2)), "b": Array(np.ones(2))})
    base = RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": 1})})
    other = {
        "value": RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": 2})}),
        "type": RecordDict({"arrays": arrays, "config": ConfigRecord({"lr": 1.0})}),
        "name": RecordDict({"arrays": arrays, "config": ConfigRecord({"lrate": 1})}),
        "order": RecordDict({"arrays": ArrayRecord({"b": arrays["b"], "a": arrays["a"]}), "config": base["config"]}),
        "record": RecordDict({"arrays": arrays}),
    }[change]
    assert request_digest(other) != request_digest(base)
    assert request_digest(RecordDict(dict(base))) == request_digest(base)


def test_a_reply_of_the_mod_is_one_that_flower_can_send(tmp_path: Path) -> None:
    """An error reply has no content, and goes through Flower's own serialisation with its reason."""
    inner = local_grid(make_sites(tmp_path))
    reply = next(iter(inner.send_and_receive([Message(request(), 1, "train")])))
    assert reply.has_error()
    assert not reply.has_content()
    context = Context(7, 1, {}, RecordDict(), {})
    direct = secure_mod(Message(request(), 1, "train"), context, lambda message, _: message)
    assert direct.has_error()
    assert direct.deflate()
