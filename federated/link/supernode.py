"""A site's connection to the link: Flower's SuperNode, which takes our own bundle and no other.

python -m distlfm.federated.link.supernode FOLDER RUNTIME_PORT [--insecure]
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app.user_config import UserConfig
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run, RunNotRunningException
from flwr.supernode import start_client_internal as loop
from flwr.supernode.fleet_http_connection import http_request_response
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory

from distlfm.federated.audit import AuditLog, RefusalLog
from distlfm.federated.link import bundle, flower
from distlfm.federated.link.gate import LOCAL, SERVER, Gate
from distlfm.federated.link.processes import end_with_supervisor
from distlfm.federated.setup.homes import SiteHome, check_secret
from distlfm.federated.site.worktime import Runs
from distlfm.store.files import put_quickly
from distlfm.version import __version__

POLL_SECONDS = 0.3
RUN_SECONDS = 3.0
"""Between two questions to the link whether a run that the site works for still goes on."""
APP = "distlfm/distlfm-federated"


class BundleCheck:
    """Between Flower and the link: lets only runs of the installed package through, and logs what it refuses."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit

    def run(self, get_run: Callable[[int], Run]) -> Callable[[int], Run]:
        """A run that names another app is as good as none. (Flower makes a path of these names.)"""

        def checked(run_id: int) -> Run:
            run = get_run(run_id)
            if (run.fab_id, run.fab_version, run.primary_task_type) != (APP, __version__, "flwr-serverapp"):
                self._audit.append("refused", str(run_id), what="app", why="another app or version")
                raise RunNotRunningException
            return run

        return checked

    def fab(self, get_fab: Callable[[str, int], Any]) -> Callable[[str, int], Any]:
        """A bundle that is not ours loses its mark of validity, and Flower answers the link with an error."""

        def checked(digest: str, run_id: int) -> Any:
            fab = get_fab(digest, run_id)
            try:
                bundle.check(fab.content)
                if hashlib.sha256(fab.content).hexdigest() != fab.hash_str:
                    raise bundle.ForeignBundle("The app bundle has another digest than its name.")
            except bundle.ForeignBundle as refusal:
                self._audit.append("refused", str(run_id), what="app", why=refusal.cause)
                return replace(fab, content=b"", verifications={})
            return replace(fab, verifications={"valid_license": "same files as the installed package"})

        return checked


def main(folder: str, port: str, *flags: str) -> None:
    """Serve until the supervisor ends, or the link ends the connection."""
    os.umask(0o077)
    end_with_supervisor()
    for which in (signal.SIGTERM, signal.SIGINT):
        signal.signal(which, lambda *_: sys.exit(0))  # leaves the connection's context, which tells the link
    home, insecure = SiteHome(Path(folder)), "--insecure" in flags
    config = home.config()
    flower.retry_soon()
    flower.beat_every(config.heartbeat)
    flower.leave_bundles_to_us()
    states = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
    audit = AuditLog(home.audit)
    _serve_tasks(home, int(port), states, audit)
    keys = None if insecure else node_keys(home)
    ca = None if insecure else str(home.ca)
    with http_request_response(config.address, insecure, ca, keys) as connection:
        _work(home, connection, states, BundleCheck(audit))
    sys.exit(1)  # Flower's context ends without a word when the connection fails


def node_keys(home: SiteHome) -> tuple[ec.EllipticCurvePrivateKey, ec.EllipticCurvePublicKey]:
    """The key that the link knows this site by."""
    key = load_ssh_private_key(check_secret(home.node_key).read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key, key.public_key()


def _serve_tasks(home: SiteHome, port: int, states: NodeStateFactory, audit: AuditLog) -> None:
    """Between this process and the site's task runner: on loopback, for whoever has the site's secret."""
    app = create_app(state_factory=states, superexec_auth_secret=check_secret(home.secret).read_bytes())
    gate = Gate(app, LOCAL, RefusalLog(audit))
    server = uvicorn.Server(uvicorn.Config(gate, "127.0.0.1", port, **SERVER))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while thread.is_alive() and not server.started:
        time.sleep(0.05)
    if not server.started:
        sys.exit(f"Port {port} of 127.0.0.1 is taken.")


def _work(home: SiteHome, connection: tuple[Any, ...], states: NodeStateFactory, check: BundleCheck) -> None:
    """Flower's own loop, with shorter waits and the checks."""
    node_id, receive, send, get_run, get_fab, pull_object, push_object, confirm = connection
    state, store = states.state(), states.objectstore_factory.store()
    state.set_node_id(node_id)
    put_quickly(home.node, json.dumps({"pid": os.getpid(), "node_id": str(node_id)}).encode())
    settings: UserConfig = {
        "site": str(home.path.resolve()),
        "name": home.config().name,
        "policy": str(home.policy.resolve()),
    }
    runs = Runs(home.state)
    runs.clear()
    # Flower's loop waits for a reply, so whether its run still goes on is looked at beside it.
    threading.Thread(target=_follow_runs, args=(runs, get_run), daemon=True).start()
    while True:
        run = loop._pull_and_store_message(
            state=state,
            object_store=store,
            node_config=settings,
            receive=receive,
            get_run=check.run(get_run),
            get_fab=check.fab(get_fab),
            pull_object=pull_object,
            confirm_message_received=confirm,
            trusted_entities={"distlfm": "the installed package"},
        )
        if run is None:
            time.sleep(POLL_SECONDS)
        else:
            loop._push_messages(state=state, object_store=store, send=send, push_object=push_object)


def _follow_runs(runs: Runs, get_run: Callable[[int], Run]) -> None:
    """Look again and again; a link that is away is asked again later."""
    while True:
        time.sleep(RUN_SECONDS)
        with suppress(Exception):
            stop_ended(runs, get_run)


def stop_ended(runs: Runs, get_run: Callable[[int], Run]) -> None:
    """Mark the runs that the site works for and that have ended: their work stops."""
    for run in runs.under_way():
        try:
            get_run(int(run))
        except RunNotRunningException:
            runs.end(run)


if __name__ == "__main__":
    main(*sys.argv[1:])
