"""The link's outer door: only the requests that a federation needs come in, and no run without our own bundle.

Flower 1.41 serves much more on the same port (connectors, agents, models, invitations, registration of nodes); what is
not listed here is refused before Flower sees it. Nodes are registered from the coordinator's own folder alone. Tasks
are given to processes of the same machine alone, whatever secret others may show.
"""

from __future__ import annotations

import ipaddress
import json
import time
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from flwr.proto.control_pb2 import StartRunRequest
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from distlfm.federated.link import bundle
from distlfm.federated.setup.homes import NAME
from distlfm.store.files import ROOM, no_room

START = "start-run"
LOOKING = frozenset({"list-runs", "list-nodes", "stream-logs"})
"""What only looks; all else of the control interface needs a role for it."""
CONTROL = (START, "stop-run", *sorted(LOOKING))
CARRYING = ("push-messages", "pull-messages", "push-object", "pull-object", "confirm-message-received")
FLEET = (*CARRYING, "activate-node", "deactivate-node", "send-node-heartbeat", "get-run", "get-fab")
TASKS = ("acquire-task", "send-task-heartbeat", "pull-task-input", "push-task-output")
RUNTIME = (*CARRYING, *TASKS, "push-logs", "get-nodes")
LOCAL = frozenset(f"/v1/runtime/{name}" for name in RUNTIME)
ALLOWED = LOCAL.union((f"/v1/control/{name}" for name in CONTROL), (f"/v1/fleet/{name}" for name in FLEET))
CONTROLS, OWN_TASKS = "/v1/control/", "/v1/runtime/"
START_RUN = f"{CONTROLS}{START}"
UNKNOWN, DENIED = 401, 403
"""Codes for whoever has no token of the link, and for one whose token is not for this."""
BROKEN, LATER = 500, 503
"""The second of these two codes lets sites and admins come again."""
SCARCE = 33_554_432
"""Bytes that Flower's database may have needed when it failed."""
LOOK_SECONDS = 1.0
SERVER: dict[str, Any] = {"access_log": False, "log_config": None, "server_header": False}
"""How both roles run their web applications under uvicorn."""
DISK_FULL = "the disk of the link is full"
MOST_START_BYTES = 1_048_576
"""A programme is text of a few kilobytes."""

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


class Denied(NamedTuple):
    """Why somebody's request is not let in, and what to do."""

    code: int
    why: str
    fix: str


def _anybody(token: str | None, what: str, kind: str | None) -> Denied | None:
    """Let in whoever asks: what is behind this gate has no control interface."""
    del token, what, kind
    return None


@dataclass(frozen=True)
class Gate:
    """Wraps the link's web application. refused: called with the path and the reason, for the audit log.

    own: addresses of this machine, besides loopback, from which its processes may come. full: why this many more bytes
    cannot be kept, or nothing; then all are asked to come again later, as everything that is done here is kept first.
    may: why the holder of a token may not do something. It is called with the token, the request's name, and the kind
    of the programme, which is None before it was read.
    """

    inner: Application
    allowed: frozenset[str]
    refused: Callable[[str, str], None]
    own: frozenset[str] = frozenset()
    full: Callable[[int], str] = lambda _: ""
    may: Callable[[str | None, str, str | None], Denied | None] = _anybody

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One connection, as ASGI hands it over."""
        if scope["type"] == "lifespan":
            await self.inner(scope, receive, send)
        elif scope["type"] != "http" or scope["path"] not in self.allowed or scope["method"] != "POST":
            await self._refuse(scope, send, "this request is not served")
        elif scope["path"].startswith(OWN_TASKS) and not is_near(scope.get("client"), self.own):
            await self._refuse(scope, send, "tasks are for processes of this machine")
        elif scope["path"].startswith(CONTROLS) and (denied := self._denied(scope, None)):
            await self._deny(send, denied)
        elif scope["path"] == START_RUN:
            await self._start_run(scope, receive, send)
        elif reason := self.full(0):
            await _answer(send, LATER, reason)
        else:
            await self.inner(scope, receive, self._excused(send))

    def _excused(self, send: Send) -> Send:
        """Where Flower fails for want of space, which its database needs more of, that is not a failure for good."""
        reason = ""

        async def checked(message: MutableMapping[str, Any]) -> None:
            nonlocal reason
            if message["type"] == "http.response.start" and message["status"] == BROKEN:
                reason = self.full(SCARCE)
                if reason:
                    await _answer(send, LATER, reason)
            if not reason:
                await send(message)

        return checked

    async def _start_run(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if message["type"] == "http.disconnect":
                return  # whoever asked is gone, and has asked nothing
            if len(body) > MOST_START_BYTES:
                await self._refuse(scope, send, "the request is too large")
                return
            if not message.get("more_body", False):
                break
        if reason := foreign_start(body):
            await self._refuse(scope, send, reason)
            return
        if denied := self._denied(scope, programme_kind(body)):
            await self._deny(send, denied)
            return
        if reason := self.full(2 * len(body)):  # a run that could not be logged must not begin
            await _answer(send, LATER, reason)
            return
        read = [{"type": "http.request", "body": body, "more_body": False}]

        async def again() -> MutableMapping[str, Any]:
            return read.pop() if read else await receive()

        await self.inner(scope, again, self._excused(send))

    def _denied(self, scope: Scope, kind: str | None) -> Denied | None:
        return self.may(bearer(scope.get("headers", ())), scope["path"].removeprefix(CONTROLS), kind)

    async def _deny(self, send: Send, denied: Denied) -> None:
        self.refused("control", denied.why)
        await _answer(send, denied.code, denied.why, fix=denied.fix)

    async def _refuse(self, scope: Scope, send: Send, reason: str) -> None:
        self.refused(str(scope.get("path", "")), reason)
        if scope["type"] == "http":
            await _answer(send, 403, reason)


async def _answer(send: Send, status: int, reason: str, **more: str) -> None:
    body = json.dumps({"detail": reason, **more}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Disk:
    """What a gate asks before it lets somebody in. A look lasts a second: there may be hundreds of requests in it."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._until, self._reason = folder, 0.0, ""

    def __call__(self, size: int) -> str:
        """Why `size` bytes more than the least cannot be kept, or nothing."""
        if size or time.monotonic() >= self._until:
            # Where it is full, is not for everybody.
            reason = DISK_FULL if no_room(self._folder, ROOM + size) else ""
            if size:
                return reason
            self._reason, self._until = reason, time.monotonic() + LOOK_SECONDS
        return self._reason


def is_near(client: tuple[str, int] | None, own: frozenset[str]) -> bool:
    """Whether a connection comes from this machine. client: its address and port, as ASGI tells them."""
    try:
        found = ipaddress.ip_address(client[0] if client else "")
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None) or found
    return mapped.is_loopback or str(mapped) in own


def bearer(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """Return the token of a request, if it has exactly one; Flower reads no other header."""
    given = [value for name, value in headers if name.lower() == b"authorization"]
    scheme, _, token = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
    return token.strip() if scheme.lower() == "bearer" else None


def programme_kind(body: bytes) -> str:
    """Return the kind of programme that a request to start a run has; empty if it says none.

    The request was read before, and its programme is read here as the ServerApp will read it.
    """
    content = None
    with suppress(ValueError, RecursionError):
        content = json.loads(StartRunRequest.FromString(body).override_config["programme"].string)
    return str(content.get("kind", "")) if isinstance(content, dict) else ""


def foreign_start(body: bytes) -> str:
    """Why a request to start a run is refused, or nothing. It must bring our bundle, and name nothing to be fetched.

    The run's name becomes that of a folder at the link, so it must be a name and no path.
    """
    try:
        request = StartRunRequest.FromString(body)
    except DecodeError:
        return "the request cannot be read"
    known = {"fab", "override_config", "federation"}
    if {field.name for field, _ in request.ListFields()} - known or request.fab.verifications:
        return "the request asks for more than a run of the installed package"
    if set(request.override_config) != {"programme", "run-name"}:
        return "the request does not give a programme and a name, and these alone"
    if not NAME.fullmatch(request.override_config["run-name"].string):
        return "the name of the run is not valid: use small letters, digits and hyphens, up to 40"
    try:
        bundle.check(request.fab.content)
    except bundle.ForeignBundle as refusal:
        return refusal.cause
    return ""
