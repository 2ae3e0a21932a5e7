"""The roles, kept running: Flower's SuperLink or SuperNode, each with its task runner.

A site is tried again for as long as the link is away.
"""

from __future__ import annotations

import fcntl
import json
import socket
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from distlfm.config import load
from distlfm.errors import UsageError, WorkError
from distlfm.federated.link.logs import reporter_of
from distlfm.federated.link.processes import Program, Supervisor, environment, is_listening
from distlfm.federated.settings import SiteConfig
from distlfm.federated.setup import homes
from distlfm.federated.setup.homes import Home, LinkConfig, LinkHome, Logs, NodeConfig, SiteHome, joined, near_address
from distlfm.federated.setup.identity import WARN_DAYS, certificate_end
from distlfm.federated.site.cohort import FITS
from distlfm.federated.site.policy import load_policy
from distlfm.optional import require
from distlfm.runtime.process import Stop
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.version import __version__

HANDSHAKE_SECONDS = 10.0
PLAIN_TEXT = (
    "--insecure: plain text and no node keys. Every process of this machine can read the models, pose as a site and "
    "answer for it. For trials with generated data only."
)


def serve_link(
    folder: Path, reporter: Reporter | None = None, *, insecure: bool = False, logs: Logs | None = None
) -> None:
    """Serve as coordinator until a signal asks for the end. insecure: without TLS and node keys, on loopback only.

    logs: in place of what link.yaml says.
    """
    home = LinkHome(folder.resolve())
    config = home.config()
    reporter, look = reporter_of(logs or config.logs, "link", config.federation, home.audit, reporter or Silent())
    _check_role(home, config.bind, (home.tokens, *(() if insecure else (home.key,))), reporter, insecure=insecure)
    homes.check_readable(home.certificate, home.roster)
    if not insecure:
        _check_certificate(home, reporter)
    with only_one(home), Stop() as stop:
        if is_listening(config.bind, config.port):
            raise UsageError(
                f"Port {config.port} of {config.bind} is taken.", f"End what uses it, or change {home.config_file}."
            )
        scheme = "http" if insecure else "https"
        reporter.say(f"link of {config.federation}: {scheme}://{joined(config.host, config.port)}, log in {home.state}")
        Supervisor(home, programs(home, config, insecure=insecure), reporter, look).run(stop)


def serve_site(
    folder: Path, reporter: Reporter | None = None, *, insecure: bool = False, logs: Logs | None = None
) -> None:
    """Serve as a site until a signal asks for the end. insecure: without TLS and node keys, on loopback only.

    logs: in place of what node.yaml says.
    """
    home = SiteHome(folder.resolve())
    config, policy = home.config(), load_policy(home.policy)
    reporter, look = reporter_of(logs or config.logs, "site", config.name, home.audit, reporter or Silent())
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
    _check_role(home, config.host, (home.node_key, home.signing_key), reporter, insecure=insecure)
    _check_work(folder, reporter)
    with only_one(home), Stop() as stop:
        if not insecure:
            check_link(config, home.ca, reporter)
        reporter.say(f"site {config.name} of {config.federation}, link {config.address}, log in {home.state}")
        Supervisor(home, site_programs(home, config, insecure=insecure), reporter, look).run(stop)


def _check_role(home: Home, host: str, keys: tuple[Path, ...], reporter: Reporter, *, insecure: bool) -> None:
    """Refuse to begin what would end again and again: secrets, the certificate and the log are looked at now."""
    require("flwr", "federated")
    if insecure:
        homes.refuse_unless_loopback(host)
        reporter.warn(PLAIN_TEXT)
    for secret in (home.secret, *keys):
        homes.check_secret(secret)
    homes.check_readable(home.ca)
    homes.check_log(home.audit)


def _check_certificate(home: LinkHome, reporter: Reporter) -> None:
    """Sites refuse a link whose certificate has ended; so it does not begin to serve, and warns before that day."""
    until = certificate_end(home)
    left, fix = until - datetime.now(UTC), f"distlfm federated provision renew {home.path}"
    if left <= timedelta():
        raise UsageError(f"The server's certificate ended on {until:%Y-%m-%d}.", f"Make a new one: {fix}")
    if left < timedelta(days=WARN_DAYS):
        reporter.warn(f"the server's certificate ends on {until:%Y-%m-%d}; make a new one, and start again: {fix}")


def _check_work(folder: Path, reporter: Reporter) -> None:
    """Say now what a round would stumble over."""
    from distlfm.federated.site.work import BASE, Site  # a link needs no torch

    config, base = load(SiteConfig, folder / "site.yaml"), folder / BASE
    if not base.exists():
        raise UsageError(f"There is no {base}.", "Copy the federation's first operator there.")
    homes.check_readable(base)
    Site(folder).check()
    if config.fit is not None and not (folder / FITS).exists():
        reporter.warn(f"patients are not fitted, which most programmes need: distlfm federated prepare {folder}")


def programs(home: LinkHome, config: LinkConfig, *, insecure: bool) -> list[Program]:
    """What a link runs."""
    local, flags = near_address(config.bind), ("--insecure",) if insecure else ()
    around = environment(home, local, DISTLFM_LINK_HOME=str(home.path))
    ready = partial(is_listening, config.bind, config.port)
    return [
        _program(home, "superlink", around, str(home.path), *flags, ready=ready),
        _program(home, "tasks", around, "link", str(home.path), joined(local, config.port), *flags),
    ]


def site_programs(home: SiteHome, config: NodeConfig, *, insecure: bool) -> list[Program]:
    """What a site runs. What goes to the tasks never leaves 127.0.0.1, and has its own secret."""
    port, flags = config.runtime_port or _free_port(), ("--insecure",) if insecure else ()
    around = environment(home)
    return [
        _program(home, "supernode", around, str(home.path), str(port), *flags, ready=partial(node_is_in, home)),
        _program(home, "tasks", around, "site", str(home.path), f"127.0.0.1:{port}", "--insecure"),
    ]


def _program(
    home: Home, name: str, around: Mapping[str, str], *arguments: str, ready: Callable[[], bool] = lambda: True
) -> Program:
    """One of a role's programs: the module of this folder that has its name."""
    return Program(name, f"distlfm.federated.link.{name}", arguments, around, home.log(name), ready)


@contextmanager
def only_one(home: Home) -> Iterator[None]:
    """Two supervisors in one folder would take each other's ports and logs."""
    homes.make_folder(home.state)
    homes.make_folder(home.flower)
    with (home.state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"{home.path} is being served already.", "End that process first.") from None
        yield


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
    with suppress(OSError, ValueError, KeyError):
        node, status = (json.loads(path.read_text(encoding="utf-8")) for path in (home.node, home.status))
        return bool(node["pid"] == status["processes"]["supernode"]["pid"])
    return False


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as found:
        port: int = found.getsockname()[1]
        return port
