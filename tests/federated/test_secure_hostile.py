"""A hostile server on the wire: whatever it sends, in any order and however often, a site answers each stage once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from distlfm.federated.refused import Reason
from distlfm.federated.secure import member
from distlfm.federated.secure.grid import SecureGrid
from distlfm.federated.secure.keys import new_secret, public_of
from distlfm.federated.secure.messages import Advert, Call, Consents, Survivors, canonical
from distlfm.federated.secure.mod import BODY, RECORD, secure_mod
from distlfm.federated.setup.identity import load_signing_key
from distlfm.federated.simulation.grid import Hook, LocalGrid
from distlfm.federated.site.policy import load_policy
from tests.support.secure_sites import (
    NAMES,
    answering,
    ask,
    local_grid,
    make_app,
    make_sites,
    reasons,
    refusals,
    request,
    said,
    stage_of,
)


def test_a_request_outside_secure_aggregation_is_refused_before_any_work(tmp_path: Path) -> None:
    calls: list[str] = []
    inner = LocalGrid(answering({"num-examples": 10.0}, calls=calls), make_sites(tmp_path))
    for kind in ("train", "evaluate", "query.calibration"):
        assert reasons(ask(inner, request(), kind)) == [Reason.UNMASKED.value] * 4
    assert calls == []
    assert refusals(tmp_path) == ["UNMASKED"] * 3


def test_a_request_cannot_be_slipped_into_another_stage(tmp_path: Path) -> None:
    calls: list[str] = []
    inner = LocalGrid(answering({"num-examples": 10.0}, calls=calls), make_sites(tmp_path))
    slipped = RecordDict({**request(), **said("keys", Call(run="1", purpose="train").to_bytes())})
    assert reasons(ask(inner, slipped)) == [Reason.MALFORMED.value] * 4
    assert reasons(ask(inner, RecordDict({**request(), **said("anything", b"")}))) == [Reason.UNMASKED.value] * 4
    assert calls == []


@pytest.mark.parametrize("forged", ["by another key", "sent before"])
def test_an_enrolled_site_cannot_take_anothers_place_in_a_sum(tmp_path: Path, forged: str) -> None:
    """The first node says that it is the fourth site: with keys that it signed itself, or with old ones of that."""
    nodes = make_sites(tmp_path)
    named = {node: {**config, "name": name} for (node, config), name in zip(nodes.items(), NAMES, strict=True)}
    pins = yaml.safe_load((tmp_path / "east" / "policy.yaml").read_text())["peers"]
    pins["east"] = yaml.safe_load((tmp_path / "west" / "policy.yaml").read_text())["peers"]["east"]
    old = member.advertise(load_policy(tmp_path / "west").rules(), load_signing_key(tmp_path / "west/signing.key"), "7")

    def pose(reply: Message) -> Message:
        if reply.metadata.src_node_id == 1 and stage_of(reply) == "keys":
            own = Advert.from_bytes(reply.content[RECORD][BODY])
            advert = own.model_copy(update={"site": "west"}) if forged == "by another key" else old.advert
            reply.content[RECORD][BODY] = advert.to_bytes()
        return reply

    grid = SecureGrid(LocalGrid(make_app(), named, run_id=7, on_reply=pose), peers=pins)
    ask(grid, request())
    assert grid.reports[0].survivors == ("north", "south", "west")
    assert grid.reports[0].dropped == {1: "keys in the name of a site that it is not"}
    if forged == "by another key":  # where nodes have no names, the signature is what is left
        grid = SecureGrid(LocalGrid(make_app(), nodes, run_id=7, on_reply=pose), peers=pins)
        ask(grid, request(round_=2))
        assert grid.reports[0].survivors == ("north", "south", "west")


def test_a_site_that_gets_other_weights_than_its_peers_refuses_them(tmp_path: Path) -> None:
    def tamper(message: Message) -> Message:
        if message.metadata.dst_node_id == 1 and stage_of(message) == "mask":
            weights = message.content["arrays"]["shared"].numpy()
            message.content = RecordDict({**message.content, "arrays": ArrayRecord({"shared": Array(weights + 1e-9)})})
        return message

    grid = SecureGrid(local_grid(make_sites(tmp_path), on_request=tamper))
    ask(grid, request())
    assert grid.reports[0].survivors == ("north", "south", "west")
    assert grid.reports[0].dropped == {1: Reason.REQUEST.value}


def _rewrite(stage: str, node: int, change: Callable[[dict[str, Any]], None]) -> Hook:
    """A server that changes what it says to one site at one stage."""

    def tamper(message: Message) -> Message:
        if stage_of(message) == stage and message.metadata.dst_node_id == node:
            told = json.loads(message.content[RECORD][BODY])
            change(told)
            message.content = RecordDict({**message.content, **said(stage, canonical(told))})
        return message

    return tamper


def _own_key_for_west(said: dict[str, Any]) -> None:
    said["adverts"][3]["mask_key"] = public_of(new_secret())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda said: said.update(threshold=2), Reason.THRESHOLD),
        (_own_key_for_west, Reason.KEY),
        (lambda said: said.update(adverts=said["adverts"][:2], threshold=2), Reason.COHORT),
        (lambda said: said.update(purpose="evaluate"), Reason.STAGE),
        (lambda said: said.update(extra=1), Reason.MALFORMED),
    ],
    ids=["lowered threshold", "forged key", "small cohort", "other purpose", "unknown word"],
)
def test_a_roster_that_was_tampered_with_gets_no_shares(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], reason: Reason
) -> None:
    inner = local_grid(make_sites(tmp_path), on_request=_rewrite("shares", 1, change))
    grid = SecureGrid(inner)
    ask(grid, request())
    assert grid.reports[0].dropped == {1: reason.value}
    assert refusals(tmp_path) == [reason.name]
    left = [frame.payload for frame in inner.wire if frame.node == 1 and frame.direction == "to server"]
    assert all(b"boxes" not in payload for payload in left)


def test_a_site_declared_alive_to_some_and_dead_to_others_stops_the_sum(tmp_path: Path) -> None:
    """East is told that west dropped out, the others that it did not: nobody reveals a share."""
    without_west = _rewrite("consent", 1, lambda said: said.update(sites=said["sites"][:3]))
    inner = local_grid(make_sites(tmp_path), on_request=without_west)
    grid = SecureGrid(inner)
    replies = ask(grid, request())
    assert all(reply.has_error() for reply in replies)
    assert set(grid.reports[0].dropped.values()) == {Reason.CONSENT.value}
    assert not any(b"seeds" in frame.payload for frame in inner.wire)


@pytest.mark.parametrize("stage", ["shares", "mask", "consent", "unmask"])
def test_no_message_of_a_sum_is_answered_twice(tmp_path: Path, stage: str) -> None:
    kept: dict[int, Message] = {}
    answers: list[Message] = []

    def copy(message: Message) -> Message:
        if stage_of(message) == stage and message.metadata.dst_node_id == 1:
            kept[1] = Message(RecordDict(dict(message.content)), 1, message.metadata.message_type)
        return message

    inner = local_grid(make_sites(tmp_path), on_request=copy)
    ask(SecureGrid(inner), request())
    inner.on_request = None
    answers += inner.send_and_receive([kept[1]])
    assert reasons(answers) == [Reason.STAGE.value]


def test_a_site_answers_no_stage_that_it_has_not_reached(tmp_path: Path) -> None:
    inner = local_grid(make_sites(tmp_path))
    session = "ab" * 32
    early = {
        "consent": Survivors(session=session, sites=NAMES).to_bytes(),
        "unmask": Consents(session=session, signatures={}).to_bytes(),
    }
    for stage, body in early.items():
        assert reasons(ask(inner, said(stage, body))) == [Reason.STAGE.value] * 4
    ask(inner, said("keys", Call(run="7", purpose="train").to_bytes()))
    for stage, body in early.items():
        assert reasons(ask(inner, said(stage, body))) == [Reason.STAGE.value] * 4


def test_a_sum_does_not_change_its_purpose_on_the_way(tmp_path: Path) -> None:
    """Or what the policy allows for evaluation could be opened as training."""

    def rename(message: Message) -> Message:
        if stage_of(message) == "mask":
            message.metadata.message_type = "evaluate"
        return message

    grid = SecureGrid(local_grid(make_sites(tmp_path), on_request=rename))
    ask(grid, request())
    assert set(grid.reports[0].dropped.values()) == {Reason.STAGE.value}


def test_of_two_processes_with_the_same_message_one_works(tmp_path: Path) -> None:
    kept: list[Message] = []
    inner = local_grid(make_sites(tmp_path), on_request=lambda message: _catch(message, kept))
    ask(SecureGrid(inner), request())
    worked, barrier = [], threading.Barrier(4)

    def call_next(message: Message, context: Context) -> Message:
        worked.append(1)
        metrics = MetricRecord({"num-examples": 10.0})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    replies: list[Message] = []

    def handle() -> None:
        message = Message(RecordDict(dict(kept[0].content)), 1, "train")
        context = Context(7, 1, {"policy": str(tmp_path / "east" / "policy.yaml")}, RecordDict(), {})
        barrier.wait()
        replies.append(secure_mod(message, context, call_next))

    threads = [threading.Thread(target=handle) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(worked) == 1
    assert sorted(reply.has_content() for reply in replies) == [False, False, False, True]


def _catch(message: Message, kept: list[Message]) -> Message | None:
    """Keep back the first site's message of the stage with work."""
    if message.metadata.dst_node_id == 1 and stage_of(message) == "mask":
        kept.append(message)
        return None
    return message


@pytest.mark.parametrize(("run", "purpose"), [("8", "train"), ("7", "evaluate")])
def test_keys_are_given_for_the_run_and_purpose_of_the_message_alone(tmp_path: Path, run: str, purpose: str) -> None:
    inner = local_grid(make_sites(tmp_path))
    replies = ask(inner, said("keys", Call(run=run, purpose=purpose).to_bytes()))
    assert reasons(replies) == [Reason.STAGE.value] * 4


def test_a_sum_that_was_begun_anew_during_the_work_gets_no_vector_of_the_old_one(tmp_path: Path) -> None:
    app = ClientApp(mods=[secure_mod])

    @app.train()
    def train(message: Message, context: Context) -> Message:
        call = Message(said("keys", Call(run="7", purpose="train").to_bytes()), context.node_id, "train")
        assert secure_mod(call, context, lambda request, _: request).has_content()
        return Message(RecordDict({"metrics": MetricRecord({"num-examples": 10.0})}), reply_to=message)

    inner = LocalGrid(app, make_sites(tmp_path), run_id=7)
    grid = SecureGrid(inner)
    ask(grid, request())
    assert set(grid.reports[0].dropped.values()) == {Reason.STAGE.value}
    assert not any(b"vector" in frame.payload for frame in inner.wire if frame.direction == "to server")


def test_a_memory_that_cannot_be_read_ends_the_sum_for_that_site(tmp_path: Path) -> None:
    def spoil(message: Message) -> Message:
        if stage_of(message) == "consent" and message.metadata.dst_node_id == 1:
            (tmp_path / "east" / "state" / "secagg" / "sum-7.json").write_bytes(b"{")
        return message

    grid = SecureGrid(local_grid(make_sites(tmp_path), on_request=spoil))
    replies = ask(grid, request())
    assert grid.reports[0].dropped == {1: Reason.STAGE.value}
    assert replies[0].content["metrics"]["num-sites"] == 4.0


def npy(header: str) -> bytes:
    """A file of numpy's with this header, and nothing behind it."""
    line = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(line).to_bytes(2, "little") + line


ODD_VECTORS = {
    "larger than any memory": npy("{'descr': '<u8', 'fortran_order': False, 'shape': (9000000000000000,), }"),
    "without an end": npy("{'descr': '<u8', 'fortran_order': False, 'shape': (("),
    "of objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (3,), }"),
    "that is none": b"",
}


@pytest.mark.parametrize("which", [*ODD_VECTORS, "of numbers that are none"])
def test_a_hostile_sites_answer_is_left_out_and_the_others_are_summed(tmp_path: Path, which: str) -> None:
    def lie(message: Message) -> Message:
        if message.metadata.src_node_id == 4 and stage_of(message) == "mask":
            if which in ODD_VECTORS:
                odd = Array(dtype="uint64", shape=(3,), stype="numpy.ndarray", data=ODD_VECTORS[which])
                message.content.array_records["vector"]["vector"] = odd
            else:
                record = message.content.config_records[RECORD]
                record[BODY] = bytes(record[BODY]).replace(b'"difference","float64"', b'"difference","float8"')
                assert b"float8" in record[BODY]
        return message

    replies = ask(SecureGrid(local_grid(make_sites(tmp_path), on_reply=lie)), request())
    assert replies[0].content["metrics"]["num-sites"] == 3.0
    assert reasons(replies[1:]) == [Reason.MALFORMED.value]
