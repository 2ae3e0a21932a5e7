"""The link's outer door: only the requests that a federation needs come in, and no run without our own bundle.

Flower 1.41 serves much more on the same port (connectors, agents, models, invitations, registration of nodes); what is
not listed here is refused before Flower sees it. Nodes are registered from the coordinator's own folder alone.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from flwr.proto.control_pb2 import StartRunRequest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from distlfm.federated import bundle

CONTROL = ("start-run", "stop-run", "list-runs", "list-nodes", "stream-logs")
FLEET = (
    "activate-node",
    "deactivate-node",
    "send-node-heartbeat",
    "pull-messages",
    "push-messages",
    "get-run",
    "get-fab",
    "push-object",
    "pull-object",
    "confirm-message-received",
)
RUNTIME = (
    "acquire-task",
    "send-task-heartbeat",
    "pull-task-input",
    "push-task-output",
    "push-object",
    "pull-object",
    "confirm-message-received",
    "push-logs",
    "push-messages",
    "pull-messages",
    "get-nodes",
)
ALLOWED = frozenset(
    f"/v1/{api}/{name}"
    for api, names in (("control", CONTROL), ("fleet", FLEET), ("runtime", RUNTIME))
    for name in names
)
START_RUN = "/v1/control/start-run"
MOST_START_BYTES = 1_048_576
"""A programme is text of a few kilobytes."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Gate:
    """Wraps the link's web application. refused: told the path and the reason, for the audit log."""

    def __init__(self, inner: Application, allowed: frozenset[str], refused: Callable[[str, str], None]) -> None:
        self._inner, self._allowed, self._refused = inner, allowed, refused

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI hands it over."""
        if scope["type"] == "lifespan":
            await self._inner(scope, receive, send)
        elif scope["type"] != "http" or scope["path"] not in self._allowed or scope["method"] != "POST":
            await self._refuse(scope, send, "this request is not served")
        elif scope["path"] == START_RUN:
            await self._start_run(scope, receive, send)
        else:
            await self._inner(scope, receive, send)

    async def _start_run(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > MOST_START_BYTES or message["type"] == "http.disconnect":
                await self._refuse(scope, send, "the request is too large")
                return
            if not message.get("more_body", False):
                break
        reason = foreign_start(body)
        if reason:
            await self._refuse(scope, send, reason)
            return
        replayed = False

        async def again() -> MutableMapping[str, Any]:
            nonlocal replayed
            if replayed:
                return await receive()
            replayed = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._inner(scope, again, send)

    async def _refuse(self, scope: Scope, send: Send, reason: str) -> None:
        self._refused(str(scope.get("path", "")), reason)
        if scope["type"] != "http":
            return
        body = json.dumps({"detail": reason}).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def foreign_start(body: bytes) -> str:
    """Why a request to start a run is refused, or nothing. It must bring our bundle, and name nothing to be fetched."""
    try:
        request = StartRunRequest.FromString(body)
    except DecodeError:
        return "the request cannot be read"
    known = {"fab", "override_config", "federation"}
    if {field.name for field, _ in request.ListFields()} - known or request.fab.verifications:
        return "the request asks for more than a run of the installed package"
    try:
        bundle.check(request.fab.content)
    except bundle.ForeignBundle as refusal:
        return refusal.cause
    return ""
