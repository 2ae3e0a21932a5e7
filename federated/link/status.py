"""How a link or a site is: its processes, who is connected, what was run and spent."""

from __future__ import annotations

import fcntl
import json
import math
from pathlib import Path
from typing import Any

from distlfm.errors import UsageError, WorkError
from distlfm.federated.audit import verify
from distlfm.federated.link.authn import TokenError
from distlfm.federated.link.control import Control, connection_of
from distlfm.federated.link.processes import NOT_LOGGED
from distlfm.federated.setup.enrolment import read_roster
from distlfm.federated.setup.homes import Home, LinkHome, SiteHome, joined
from distlfm.federated.setup.identity import certificate_end
from distlfm.federated.site.cohort import prepared
from distlfm.federated.site.ledger import Ledger
from distlfm.federated.site.policy import load_policy
from distlfm.federated.site.worktime import Runs
from distlfm.store.files import no_room


def status(folder: Path, *, insecure: bool = False) -> dict[str, Any]:
    """Return the status of a link or a site, from its folder. A running link is asked too, with its own admin token.

    not_asked: why it could not be asked, where that token is missing or opens nothing; then nothing is known of runs,
    nor of which sites are connected.
    """
    if LinkHome(folder).config_file.exists():
        return _link(LinkHome(folder), insecure=insecure)
    if SiteHome(folder).config_file.exists():
        return _site(SiteHome(folder))
    raise UsageError(
        f"{folder} is neither a coordinator's nor a site's folder.", "Make one: distlfm federated provision --help"
    )


def _link(home: LinkHome, *, insecure: bool) -> dict[str, Any]:
    config = home.config()
    enrolled = {name: entry.status for name, entry in read_roster(home.roster).sites.items()}
    report: dict[str, Any] = {
        "role": "link",
        "federation": config.federation,
        "address": joined(config.host, config.port),
        "certificate_until": f"{certificate_end(home):%Y-%m-%d}" if home.certificate.exists() else None,
        **_processes(home),
        "sites": {name: enrolled.get(name, "not enrolled") for name in config.sites},
        "runs": [],
    }
    if report["state"] == "running":
        try:
            with Control(connection_of(home.path, insecure=insecure)) as control:
                report["sites"] |= {node["site"]: node["state"] for node in control.nodes() if node["site"]}
                report["runs"] = control.runs()
        except TokenError as error:
            report["not_asked"] = str(error)
        except WorkError as error:
            report["state"] = f"not answering: {error.cause}"
    return report


def _site(home: SiteHome) -> dict[str, Any]:
    config, policy = home.config(), load_policy(home.policy)
    ledger = Ledger(home.path / "ledger.jsonl", policy.epsilon or math.inf, policy.delta)
    return {
        "role": "site",
        "federation": config.federation,
        "name": config.name,
        "address": config.address,
        **_processes(home),
        **prepared(home.path),
        "pinned": sorted(policy.peers),
        "working_for": Runs(home.state).under_way(),
        "epsilon": policy.epsilon,
        "epsilon_spent": ledger.spent if policy.epsilon is not None or ledger.path.exists() else None,
    }


def _processes(home: Home) -> dict[str, Any]:
    """What the supervisor reported last; nothing if it is gone, which its lock shows however it ended."""
    chain = verify(home.audit) if home.audit.exists() else None
    log = {"audit_head": None if chain is None else chain.head, "audit_flaws": [] if chain is None else chain.flaws}
    try:
        with (home.state / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return {"state": "stopped", "processes": {}, **log}
    except FileNotFoundError:
        return {"state": "never started", "processes": {}, **log}
    except BlockingIOError:
        report = json.loads(home.status.read_text(encoding="utf-8")) if home.status.exists() else {}
        full = no_room(home.path)
        state = f"refusing: {full}. {NOT_LOGGED}" if full else "running"
        return {"state": state, "processes": report.get("processes", {}), **log}
