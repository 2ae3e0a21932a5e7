"""Talking to a link as one who holds an admin token: start a run, follow it, ask for nodes and runs."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from flwr.app.user_config import UserConfig
from flwr.common.serde import user_config_to_proto
from flwr.proto.control_pb2 import ListNodesRequest, ListRunsRequest, StartRunRequest, StopRunRequest, StreamLogsRequest
from flwr.proto.fab_pb2 import Fab
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext

from distlfm.errors import UsageError, WorkError
from distlfm.federated.link import bundle
from distlfm.federated.link.authn import HOW_TO_GET, TokenError, read_token
from distlfm.federated.link.gate import DISK_FULL
from distlfm.federated.setup.homes import LOOPBACK, LinkHome, joined, near_address, refuse_unless_loopback

VALID = "Give the file of a valid one."
PATIENCE_SECONDS = 120.0
"""How long a link may be away, for a restart, before whoever follows a run gives up."""


@dataclass(frozen=True)
class Connection:
    """Where the link is, whose certificate it must show, and the token. ca: none for plain text on loopback."""

    host: str
    port: int
    ca: Path | None
    token: str

    @property
    def address(self) -> str:
        return joined(self.host, self.port)


def connection_of(folder: Path, *, token_file: Path | None = None, insecure: bool = False) -> Connection:
    """From the coordinator's folder, on the coordinator's machine."""
    home = LinkHome(folder)
    config = home.config()
    if insecure:
        refuse_unless_loopback(config.bind)
    own = f"Make it, and first move away what is in its place: distlfm federated provision token {folder} admin"
    token = read_token(home.admin_token, own) if token_file is None else read_token(token_file)
    return Connection(near_address(config.bind), config.port, None if insecure else home.ca, token)


def connection_to(server: str, ca: Path | None, token_file: Path | None, *, insecure: bool = False) -> Connection:
    """From an address HOST:PORT, the federation's certificate and a file with a token."""
    host, colon, port = server.rpartition(":")
    if not colon or not port.isdecimal():
        raise UsageError(f"{server!r} is not an address.", "Write HOST:PORT, such as link.example.org:8443.")
    if token_file is None or (ca is None and not insecure):
        raise UsageError("A link elsewhere needs --ca and --token.", "Ask the coordinator for both files.")
    if insecure:
        refuse_unless_loopback(host.strip("[]"))
    return Connection(host.strip("[]"), int(port), None if insecure else ca, read_token(token_file))


class _Bearer:
    """Adds the token to each request."""

    def __init__(self, token: str) -> None:
        self._token = token

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        context.request.headers["authorization"] = f"Bearer {self._token}"
        return call_next(context)


class _Direct(ControlHttpClient):
    """Goes to the link itself, whatever proxies the environment names: one would be shown the token."""

    def __init__(self, *given: Any, **options: Any) -> None:
        super().__init__(*given, **options)
        self._client.close()
        verify, seconds = options.get("verify", True), options.get("timeout", 30.0)
        self._client = httpx.Client(verify=verify, timeout=seconds, trust_env=False)


class Control(AbstractContextManager["Control"]):
    """A link, asked with a token; used as a context."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        ca = None if connection.ca is None else str(connection.ca)
        kind = _Direct if connection.host in LOOPBACK else ControlHttpClient
        with self._explained():
            self._client: Any = kind.from_server_address(
                connection.address, connection.ca is None, ca, [_Bearer(connection.token)]
            )

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def start_run(self, programme: dict[str, Any], name: str, content: bytes | None = None) -> int:
        """Start a run of our own bundle. Gives its id. content: another bundle, which the link refuses."""
        settings: UserConfig = {"programme": json.dumps(programme), "run-name": name}
        content = content or bundle.build()
        request = StartRunRequest(
            fab=Fab(hash_str=hashlib.sha256(content).hexdigest(), content=content),
            override_config=user_config_to_proto(settings),
        )
        answer = self._ask("StartRun", request)
        if not answer.HasField("run_id"):
            raise WorkError("The link did not start the run.", "Its log says why: state/superlink.log")
        return int(answer.run_id)

    def stop_run(self, run: int) -> None:
        """Ask for the end of a run."""
        self._ask("StopRun", StopRunRequest(run_id=run))

    def runs(self) -> list[dict[str, str]]:
        """The last runs: id, state, and what it ended with."""
        answer = self._ask("ListRuns", ListRunsRequest())
        return [_run(run) for run in sorted(answer.run_dict.values(), key=lambda run: str(run.pending_at))]

    def run_state(self, run: int) -> dict[str, str]:
        """One run."""
        return _run(self._ask("ListRuns", ListRunsRequest(run_id=run)).run_dict[run])

    def nodes(self) -> list[dict[str, str]]:
        """The sites as the link sees them: name and state."""
        nodes = self._ask("ListNodes", ListNodesRequest()).nodes_info
        known = [node for node in nodes if node.status != "unregistered"]
        return [{"site": node.name, "state": node.status, "node": str(node.node_id)} for node in known]

    def follow(self, run: int, line: Callable[[str], None]) -> dict[str, str]:
        """Give each line of the run's log to `line` until the run ends; a restart of the link is waited for."""
        after, rest, seen, notice = 0.0, "", time.monotonic(), ""
        while True:
            try:
                with self._explained():
                    for part in self._client.StreamLogs(StreamLogsRequest(run_id=run, after_timestamp=after)):
                        after, seen = max(after, part.latest_timestamp), time.monotonic()
                        *whole, rest = (rest + part.log_output).split("\n")
                        for text in whole:
                            line(text)
                state = self.run_state(run)
                if state["state"] == "finished":
                    line(rest)
                    return state
                seen = time.monotonic()
            except LinkDown as away:
                if time.monotonic() - seen > PATIENCE_SECONDS:
                    raise
                if away.cause != notice:
                    line(f"{away.cause} It is waited for.")
                notice = away.cause
            time.sleep(1.0)

    def _ask(self, what: str, request: object) -> Any:
        with self._explained():
            return getattr(self._client, what)(request)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        where = self._connection.address
        try:
            yield
        except httpx.HTTPStatusError as error:
            code = error.response.status_code
            if code == httpx.codes.UNAUTHORIZED:
                raise TokenError(f"The link at {where} does not take this token.", f"{VALID} {HOW_TO_GET}") from None
            if code in (502, 503, 504):
                if _said(error.response, "detail") == DISK_FULL:
                    fix = "Free space there; then the same command goes on."
                    raise LinkDown(f"The link at {where} does nothing now: {DISK_FULL}.", fix) from None
                raise LinkDown(f"The link at {where} is not ready.", "Try again in a moment.") from None
            cause, fix = (
                f"The link at {where} refused: {_said(error.response, 'detail')}.",
                _said(error.response, "fix"),
            )
            raise (TokenError(cause, f"{fix}.") if fix else WorkError(cause)) from None
        except httpx.TransportError as error:
            if "CERTIFICATE_VERIFY_FAILED" in str(error):
                raise WorkError(
                    f"The server at {where} shows no certificate of this federation's authority.",
                    "Do not go on: it may be somebody else. Check the address and ca.pem.",
                ) from None
            raise LinkDown(f"No link answers at {where}.", "Start it with: distlfm federated link FOLDER") from None


class LinkDown(WorkError):
    """The link does not answer now; it may be restarting."""


def _run(run: Any) -> dict[str, str]:
    status = run.status
    return {
        "run": str(run.run_id),
        "state": str(status.status),
        "outcome": str(status.sub_status),
        "details": str(status.details),
        "started": str(run.running_at or run.pending_at),
    }


def _said(response: httpx.Response, what: str) -> str:
    """What the link says with a refusal: `detail` is the cause, `fix` is there where somebody's token is the reason."""
    content = None
    with suppress(ValueError):
        content = json.loads(response.text)
    notice = content.get(what) if isinstance(content, dict) else None
    if what == "detail":
        notice = notice or (content.get("message") if isinstance(content, dict) else None)
        notice = notice or f"code {response.status_code}"
    return str(notice or "").rstrip(".")
