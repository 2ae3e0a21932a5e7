"""A site: Flower's SuperNode and its task runner, kept running; tried again for as long as the link is away."""

from __future__ import annotations

import json
import socket
import ssl
from pathlib import Path

from distlfm.config import load
from distlfm.errors import UsageError, WorkError
from distlfm.federated.link.processes import Program, Supervisor, environment
from distlfm.federated.link.service import PLAIN_TEXT, only_one
from distlfm.federated.settings import SiteConfig
from distlfm.federated.setup import homes
from distlfm.federated.setup.homes import NodeConfig, SiteHome
from distlfm.federated.site.cohort import FITS
from distlfm.federated.site.policy import load_policy
from distlfm.federated.site.work import Site
from distlfm.optional import require
from distlfm.runtime.process import Stop
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.version import __version__

HANDSHAKE_SECONDS = 10.0


def serve_site(folder: Path, reporter: Reporter | None = None, *, insecure: bool = False) -> None:
    """Serve until a signal asks for the end. insecure: without TLS and node keys, on loopback only."""
    require("flwr", "federated")
    home, reporter = SiteHome(folder.resolve()), reporter or Silent()
    config = home.config()
    policy = load_policy(home.policy)
    if len({*policy.peers, policy.site}) < policy.min_cohort:
        raise UsageError(
            f"The policy pins {len(policy.peers)} sites and wants {policy.min_cohort} in a sum.",
            f"Pin the others: distlfm federated provision pin {folder} peers.json",
        )
    if policy.package not in (None, __version__):
        reporter.warn(
            f"the policy agrees on distlfm {policy.package}, and {__version__} is installed: all requests are refused. "
            f"Install the agreed version, or agree on this one and change `package` in {home.policy}"
        )
    if insecure:
        homes.refuse_unless_loopback(config.host)
        reporter.warn(PLAIN_TEXT)
    _check_work(folder, reporter)
    for secret in (home.secret, home.node_key, home.signing_key):
        homes.check_secret(secret)
    homes.check_readable(home.ca)
    homes.check_log(home.audit)
    with only_one(home), Stop() as stop:
        if not insecure:
            check_link(config, home.ca, reporter)
        reporter.say(f"site {config.name} of {config.federation}, link {config.address}, log in {home.state}")
        Supervisor(home, programs(home, config, insecure=insecure), reporter).run(stop)


def _check_work(folder: Path, reporter: Reporter) -> None:
    """Say now what a round would stumble over."""
    config = load(SiteConfig, folder / "site.yaml")
    if not (folder / "model" / "base.pt").exists():
        raise UsageError(f"There is no {folder / 'model' / 'base.pt'}.", "Copy the federation's first operator there.")
    homes.check_readable(folder / "model" / "base.pt")
    Site(folder).check()
    if config.fit is not None and not (folder / FITS).exists():
        reporter.warn(f"patients are not fitted, which most programmes need: distlfm federated prepare {folder}")


def programs(home: SiteHome, config: NodeConfig, *, insecure: bool) -> list[Program]:
    """What a site runs."""
    port = config.runtime_port or _free_port()
    around = environment(home)
    return [
        Program(
            "supernode",
            "distlfm.federated.link.supernode",
            (str(home.path), str(port), *(("--insecure",) if insecure else ())),
            around,
            home.log("supernode"),
            lambda: node_is_in(home),
        ),
        Program(
            "tasks",
            "distlfm.federated.link.tasks",
            ("site", str(home.path), f"127.0.0.1:{port}", "--insecure"),  # never leaves 127.0.0.1; has its own secret
            around,
            home.log("tasks"),
        ),
    ]


def check_link(config: NodeConfig, ca: Path, reporter: Reporter) -> None:
    """Refuse a server that shows no certificate of the federation's authority. One that is away is waited for."""
    context = ssl.create_default_context(cafile=str(ca))
    where = config.address
    try:
        with (
            socket.create_connection((config.host, config.port), timeout=HANDSHAKE_SECONDS) as plain,
            context.wrap_socket(plain, server_hostname=config.host),
        ):
            return
    except ssl.SSLCertVerificationError as error:
        raise WorkError(
            f"The server at {where} shows no certificate of this federation's authority ({error.verify_message}).",
            "Do not go on: it may be somebody else. Check the address and ca.pem with the coordinator.",
        ) from None
    except OSError as error:
        reporter.warn(f"no link answers at {where} ({error}); it is tried again until one does")


def node_is_in(home: SiteHome) -> bool:
    """Whether the link has let in the process that runs now."""
    try:
        told = json.loads(home.node.read_text(encoding="utf-8"))
        children = json.loads(home.status.read_text(encoding="utf-8"))["processes"]
        return bool(told["pid"] == children["supernode"]["pid"])
    except (OSError, ValueError, KeyError):
        return False


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
