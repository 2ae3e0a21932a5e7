"""The link's server: Flower's SuperLink behind our gate, with tokens for admins and keys for nodes.

    python -m distlfm.federated.link.superlink FOLDER [--insecure]

Runs that were started and stopped are in the link's audit log, with their holder's name (`ControlEvents`).
"""

from __future__ import annotations

import hashlib
import os
import socket
import ssl
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import uvicorn
from flwr.common.constant import ISOLATION_MODE_PROCESS, NOOP_FLWR_AID, TRANSPORT_TYPE_GRPC_RERE, Status, SubStatus
from flwr.common.event_log_plugin import EventLogWriterPlugin
from flwr.proto.control_pb2 import StartRunRequest, StartRunResponse, StopRunRequest
from flwr.supercore.auth.typing import AccountInfo
from flwr.supercore.event_log.typing import Actor, Event, LogEntry
from flwr.superlink.cli.flower_superlink import SuperLinkLifespan
from flwr.superlink.config_loader import SuperLinkLifespanConfig
from flwr.superlink.main import create_app

from distlfm.federated.audit import AuditLog, RefusalLog
from distlfm.federated.link.authn import Rights, TokenPlugin, digests_now, tokens_now
from distlfm.federated.link.gate import ALLOWED, SERVER, Disk, Gate
from distlfm.federated.link.processes import START, end_with_supervisor
from distlfm.federated.setup.enrolment import FOLLOW_SECONDS, follow, read_roster
from distlfm.federated.setup.homes import EVERYWHERE, LinkHome, check_secret


class ControlEvents(EventLogWriterPlugin):
    """Flower calls this around each request of an admin. What only looks (lists, logs) is not written down."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    def compose_log_before_event(
        self, request: Any, context: Any, account_info: AccountInfo | None, method_name: str
    ) -> LogEntry:
        """Nothing has happened yet."""
        del request, context
        return _entry(account_info, method_name, "asked")

    def compose_log_after_event(
        self, request: Any, context: Any, account_info: AccountInfo | None, method_name: str, response: Any
    ) -> LogEntry:
        """Write down what happened."""
        del context
        holder = account_info.account_name if account_info is not None else "?"
        if isinstance(request, StartRunRequest) and isinstance(response, StartRunResponse):
            name, programme = (request.override_config[key].string for key in ("run-name", "programme"))
            digest = hashlib.sha256(programme.encode()).hexdigest()
            run = str(response.run_id)
            self._audit.append("run started", run, by=holder, name=name, programme=programme, sha256=digest)
        elif isinstance(request, StopRunRequest) and not isinstance(response, BaseException):
            self._audit.append("run stopped", str(request.run_id), by=holder)
        return _entry(account_info, method_name, "done")

    def write_log(self, log_entry: LogEntry) -> None:
        """It is written already."""
        del log_entry


def _entry(account: AccountInfo | None, method: str, status: str) -> LogEntry:
    name = account.account_name if account is not None else None
    actor = Actor(actor_id=name, description=None, ip_address="")
    return LogEntry(datetime.now(UTC).isoformat(), actor, Event(action=method, run_id=None, fab_hash=None), status)


KEYLESS = frozenset({"/v1/fleet/register-node", "/v1/fleet/unregister-node"})
"""Without TLS Flower has no node keys, and nodes register themselves."""
ORPHAN = "the link was ended while it ran"


def flower_config(
    home: LinkHome, plugin: TokenPlugin, events: ControlEvents, *, insecure: bool
) -> SuperLinkLifespanConfig:
    """Flower's settings: process isolation with a secret, node keys, and a database on the disk."""
    config = home.config()
    ca, certificate, key = home.ca, home.certificate, home.key
    certificates = None if insecure else (ca.read_bytes(), certificate.read_bytes(), check_secret(key).read_bytes())
    return SuperLinkLifespanConfig(
        control_address="127.0.0.1:0",
        health_server_address=None,
        host=config.bind,
        port=config.port,
        insecure=insecure,
        certificates=certificates,
        superexec_auth_secret=check_secret(home.secret).read_bytes(),
        authn_plugin=plugin,
        event_log_plugin=events,
        fleet_event_log_plugin=None,
        enable_event_log=False,
        artifact_provider=None,
        enable_supernode_auth=not insecure,
        fleet_api_type=TRANSPORT_TYPE_GRPC_RERE,
        fleet_api_address=None,
        simulation=False,
        ssl_ca_certfile=None if insecure else str(ca),
        ssl_certfile=None if insecure else str(certificate),
        ssl_keyfile=None if insecure else str(key),
        database=str(home.database),
        isolation=ISOLATION_MODE_PROCESS,
        runtime_dependency_install=False,
    )


def main(folder: str, *flags: str) -> None:
    """Serve until the supervisor ends."""
    os.umask(0o077)
    end_with_supervisor()
    home, insecure = LinkHome(Path(folder)), "--insecure" in flags
    audit = AuditLog(home.audit)
    refusals = RefusalLog(audit)
    plugin = TokenPlugin(lambda: digests_now(home.tokens), lambda: refusals("control", "no admin token"))
    config = flower_config(home, plugin, ControlEvents(audit), insecure=insecure)
    app = create_app(config, SuperLinkLifespan)
    state = app.state.linkstate_factory.state()
    if os.environ.get(START) == "1":
        end_orphans(state, audit)
    if not insecure:
        threading.Thread(target=_follow, args=(home, state, audit), daemon=True).start()
    rights = Rights(lambda: tokens_now(home.tokens))
    allowed = ALLOWED | KEYLESS if insecure else ALLOWED
    gate = Gate(app, allowed, refusals, addresses_of(config.host), Disk(home.path), rights)
    audit.append("link started", "", port=config.port, insecure=insecure)
    server = uvicorn.Config(
        gate,
        config.host,
        config.port,
        proxy_headers=False,  # nobody tells us by a header where a request comes from
        ssl_keyfile=config.ssl_keyfile,
        ssl_certfile=config.ssl_certfile,
        **SERVER,
    )
    server.load()
    if server.ssl is not None:
        server.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    uvicorn.Server(server).run()


def addresses_of(bind: str) -> frozenset[str]:
    """Addresses that the link's own processes come from when it listens on this one."""
    if bind in EVERYWHERE:
        return frozenset()  # they come by loopback
    try:
        return frozenset(str(found[4][0]) for found in socket.getaddrinfo(bind, None))
    except OSError:
        return frozenset()


def end_orphans(state: Any, audit: AuditLog) -> None:
    """Runs whose ServerApp went down with the whole link have failed. Flower would say so a minute later, and would
    begin one anew that had just been taken up, beside the one that its admin has started again.

    state: Flower's LinkState. Not for a server that is started again beside its living task runner.
    """
    for task in state.get_tasks(statuses=[Status.STARTING, Status.RUNNING]):
        if state.finish_task(task.task_id, SubStatus.FAILED, ORPHAN):
            audit.append("run ended", str(task.run_id), why=ORPHAN)


def _follow(home: LinkHome, state: object, audit: AuditLog) -> None:
    """Watch the roster. A file that cannot be read changes nothing: neither lets in nor shuts out.

    Whatever else goes wrong, such as a full disk, is tried again: a site that is revoked later must not stay.
    """
    seen: int | None = None
    unlogged: list[tuple[str, str]] = []
    notice = ""
    while True:
        try:
            now = home.roster.stat().st_mtime_ns if home.roster.exists() else 0
            if now != seen:
                unlogged += follow(state, read_roster(home.roster), NOOP_FLWR_AID)
                seen = now
            while unlogged:
                audit.append(unlogged[0][0], "", site=unlogged[0][1])
                unlogged.pop(0)
            notice = ""
        except Exception as error:
            why = str(error) or type(error).__name__
            if why != notice:
                notice = why
                sys.stderr.write(
                    f"The list of sites could not be followed: {why} It is tried again; until then nobody is let in or "
                    "shut out. If it stays, mend that, or stop the link.\n"
                )
        time.sleep(FOLLOW_SECONDS)


if __name__ == "__main__":
    main(*sys.argv[1:])
