"""The link's outer door lets in what a federation needs, and nothing else of Flower."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import pytest
from fastapi.routing import iter_route_contexts
from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import StartRunRequest
from flwr.proto.fab_pb2 import Fab
from flwr.superlink.main import create_app
from test_bundle import FOREIGN

from distlfm.federated.link import bundle
from distlfm.federated.link.gate import ALLOWED, MOST_START_BYTES, RUNTIME, START_RUN, Gate
from distlfm.federated.link.superlink import addresses_of

NAMED = {"programme": "{}", "run-name": "one"}


class Inside:
    """What is behind the door: notes what came in."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        self.bodies.append(message["body"])
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def knock(
    path: str,
    *parts: bytes,
    method: str = "POST",
    kind: str = "http",
    client: str | None = "127.0.0.1",
    end: str = "",
    headers: Sequence[tuple[bytes, bytes]] = (),
    **more: Any,
) -> tuple[int, Inside, list[tuple[str, str]]]:
    """Status, what came in, and what was noted as refused. end: another end than that of a whole request."""
    inside, refused, sent = Inside(), [], []
    waiting: list[MutableMapping[str, Any]]
    waiting = [{"type": "http.request", "body": part, "more_body": True} for part in parts]
    waiting.append({"type": end} if end else {"type": "http.request", "body": b"", "more_body": False})

    async def receive() -> MutableMapping[str, Any]:
        return waiting.pop(0)

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    gate = Gate(inside, ALLOWED, lambda what, why: refused.append((what, why)), addresses_of("10.0.0.3"), **more)
    scope = {"type": kind, "path": path, "method": method, "client": None if client is None else (client, 50000)}
    scope["headers"] = list(headers)
    asyncio.run(gate(scope, receive, send))
    return (sent[0]["status"] if sent else 0), inside, refused


def start(content: bytes, settings: Mapping[str, str] = NAMED, **more: Any) -> bytes:
    told = user_config_to_proto(dict(settings))
    request = StartRunRequest(fab=Fab(hash_str="x", content=content), override_config=told, **more)
    return request.SerializeToString()


def test_every_path_that_is_let_in_is_one_of_flowers_and_most_of_flowers_are_not() -> None:
    served = {getattr(found.route, "path", "") for found in iter_route_contexts(create_app().routes)}
    assert served >= ALLOWED
    closed = {path for path in served if path.startswith("/v1/")} - ALLOWED
    assert {"/v1/control/register-node", "/v1/fleet/register-node", "/v1/runtime/create-task"} <= closed
    assert len(closed) > len(ALLOWED)


@pytest.mark.parametrize(
    "path", ["/docs", "/openapi.json", "/v1/control/register-node", "/v1/runtime/responses", "/v1/control/start-run/"]
)
def test_a_path_is_closed(path: str) -> None:
    status, inside, refused = knock(path, b"x")
    assert (status, inside.bodies) == (403, [])
    assert refused == [(path, "this request is not served")]


def test_other_methods_and_sockets_are_closed() -> None:
    assert knock(START_RUN, method="GET")[0] == 403
    status, inside, refused = knock(START_RUN, kind="websocket")
    assert (status, inside.bodies, len(refused)) == (0, [], 1)


def test_a_run_of_our_own_bundle_comes_in_whole() -> None:
    body = start(bundle.build())
    status, inside, refused = knock(START_RUN, body[:100], body[100:])
    assert (status, inside.bodies, refused) == (200, [body], [])


@pytest.mark.parametrize("which", FOREIGN)
def test_a_run_with_another_bundle_stays_outside(which: str) -> None:
    status, inside, refused = knock(START_RUN, start(FOREIGN[which]))
    assert (status, inside.bodies, len(refused)) == (403, [], 1)


@pytest.mark.parametrize("more", [{"app_spec": "@somebody/app"}, {"user_prompt": "go"}, {"connector_ids": [1]}])
def test_a_run_that_asks_flower_to_fetch_something_stays_outside(more: dict[str, Any]) -> None:
    status, inside, _ = knock(START_RUN, start(bundle.build(), **more))
    assert (status, inside.bodies) == (403, [])


@pytest.mark.parametrize(
    "settings",
    [
        {**NAMED, "run-name": "../../../etc/cron.d/one"},
        {**NAMED, "run-name": "/tmp/one"},
        {**NAMED, "run-name": ""},
        {**NAMED, "run-name": "a\n"},
        {"programme": "{}"},
        {**NAMED, "more": "x"},
    ],
)
def test_a_run_whose_name_could_be_a_path_stays_outside_whoever_asks_for_it(settings: dict[str, str]) -> None:
    status, inside, refused = knock(START_RUN, start(bundle.build(), settings))
    assert (status, inside.bodies, len(refused)) == (403, [], 1)
    assert "name" in refused[0][1]


@pytest.mark.parametrize("name", RUNTIME)
def test_tasks_are_given_to_no_other_machine(name: str) -> None:
    path = f"/v1/runtime/{name}"
    for near in ("127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.3"):
        assert knock(path, b"x", client=near)[0] == 200
    for far in ("10.0.0.4", "::ffff:10.0.0.4", "2001:db8::1", "localhost", "", None):
        status, inside, refused = knock(path, b"x", client=far)
        assert (status, inside.bodies) == (403, [])
        assert refused == [(path, "tasks are for processes of this machine")]


def test_sites_and_admins_may_be_elsewhere() -> None:
    assert knock("/v1/fleet/pull-messages", b"x", client="10.0.0.4")[0] == 200
    assert knock("/v1/control/list-nodes", b"x", client="10.0.0.4")[0] == 200


def test_a_request_without_end_is_cut_off() -> None:
    status, inside, refused = knock(START_RUN, *[b"x" * MOST_START_BYTES] * 3)
    assert (status, inside.bodies, refused) == (403, [], [(START_RUN, "the request is too large")])


def test_a_request_that_is_broken_off_starts_nothing_and_is_no_refusal() -> None:
    status, inside, refused = knock(START_RUN, start(bundle.build()), end="http.disconnect")
    assert (status, inside.bodies, refused) == (0, [], [])
