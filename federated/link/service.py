"""The coordinator: Flower's SuperLink and its task runner, kept running."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from distlfm.errors import UsageError
from distlfm.federated.link.processes import Program, Supervisor, environment, is_listening
from distlfm.federated.setup import homes
from distlfm.federated.setup.homes import Home, LinkConfig, LinkHome, joined, near_address
from distlfm.federated.setup.identity import WARN_DAYS, certificate_end
from distlfm.optional import require
from distlfm.runtime.process import Stop
from distlfm.runtime.reporting import Reporter, Silent

PLAIN_TEXT = (
    "--insecure: plain text and no node keys. Every process of this machine can read the models, pose as a site and "
    "answer for it. For trials with generated data only."
)


def serve_link(folder: Path, reporter: Reporter | None = None, *, insecure: bool = False) -> None:
    """Serve until a signal asks for the end. insecure: without TLS and node keys, on loopback only."""
    require("flwr", "federated")
    home, reporter = LinkHome(folder.resolve()), reporter or Silent()
    config = home.config()
    if insecure:
        homes.refuse_unless_loopback(config.bind)
        reporter.warn(PLAIN_TEXT)
    for secret in (home.secret, home.tokens, *(() if insecure else (home.key,))):
        homes.check_secret(secret)
    homes.check_readable(home.ca, home.certificate, home.roster)
    homes.check_log(home.audit)
    if not insecure:
        _check_certificate(home, reporter)
    with only_one(home), Stop() as stop:
        if is_listening(config.bind, config.port):
            raise UsageError(
                f"Port {config.port} of {config.bind} is taken.", f"End what uses it, or change {home.config_file}."
            )
        scheme = "http" if insecure else "https"
        reporter.say(f"link of {config.federation}: {scheme}://{joined(config.host, config.port)}, log in {home.state}")
        Supervisor(home, programs(home, config, insecure=insecure), reporter).run(stop)


def _check_certificate(home: LinkHome, reporter: Reporter) -> None:
    """Sites refuse a link whose certificate has ended; so it does not begin to serve, and warns before that day."""
    until = certificate_end(home)
    left, fix = until - datetime.now(UTC), f"distlfm federated provision renew {home.path}"
    if left <= timedelta():
        raise UsageError(f"The server's certificate ended on {until:%Y-%m-%d}.", f"Make a new one: {fix}")
    if left < timedelta(days=WARN_DAYS):
        reporter.warn(f"the server's certificate ends on {until:%Y-%m-%d}; make a new one, and start again: {fix}")


def programs(home: LinkHome, config: LinkConfig, *, insecure: bool) -> list[Program]:
    """What a link runs."""
    local = near_address(config.bind)
    flags = ("--insecure",) if insecure else ()
    around = environment(home, local, DISTLFM_LINK_HOME=str(home.path))
    return [
        Program(
            "superlink",
            "distlfm.federated.link.superlink",
            (str(home.path), *flags),
            around,
            home.log("superlink"),
            lambda: is_listening(config.bind, config.port),
        ),
        Program(
            "tasks",
            "distlfm.federated.link.tasks",
            ("link", str(home.path), joined(local, config.port), *flags),
            around,
            home.log("tasks"),
        ),
    ]


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
