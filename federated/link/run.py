"""Start a round programme or a question, and wait for what it brings.

A clinician's question about one patient never leaves the site (`ask_site`); the federation's are answered as secure
sums.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distlfm.config import Config, digest, dump
from distlfm.errors import UsageError, WorkError
from distlfm.federated.audit import AuditLog
from distlfm.federated.link.authn import TokenError
from distlfm.federated.link.control import Connection, Control
from distlfm.federated.setup.homes import SiteHome, check_name
from distlfm.report.federation import rounds_page
from distlfm.report.page import Provenance
from distlfm.runs import REPORT, SUMMARY
from distlfm.runs.folder import begin, refuse_other_verbs, versions, write_config
from distlfm.runtime.reporting import Reporter, Silent
from distlfm.store.files import put_all, storing

if TYPE_CHECKING:
    from distlfm.federated.settings import ProgrammeConfig
    from distlfm.verbs.query import QueryRun


RESULT = "DISTLFM-RESULT "
"""Begins the line of the ServerApp's log that holds what the run brought, as JSON."""
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_LEVEL = re.compile(r"^\s*(INFO|WARNING|ERROR)\s*:\s*")
_INSTALLED = "Successfully installed "
_RAISED = "ServerApp raised an exception"
"""After this line of Flower's there is a traceback, and no more of the run."""
_FAILED = "ServerApp failed with exception: "
_REFUSED = re.compile(r"\[Errno \d+\] (?P<words>[^:]+)(: '(?P<path>[^']*)'.*)?")
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunResult:
    """run: Flower's id, the same in all audit logs. content: what the ServerApp said at its end."""

    run: int
    content: dict[str, Any]


def run_programme(programme: Config, name: str, connection: Connection, reporter: Reporter | None = None) -> RunResult:
    """Start a programme under a name, say what happens, and give its result. The same name goes on with a stopped run.

    programme: what the coordinator's ServerApp understands. Raises WorkError if the run fails.
    """
    check_name(name)
    reporter = reporter or Silent()
    found: dict[str, Any] = {}
    raised = False

    def line(text: str) -> None:
        nonlocal raised
        _, marker, rest = text.partition(RESULT)
        words = plain(text)
        raised = raised or words == _RAISED
        if marker:
            found.update(json.loads(rest))
        elif raised:
            _LOG.debug("%s", words)
        elif words and not words.startswith(_INSTALLED):
            reporter.say(words)

    with Control(connection) as control:
        run = control.start_run(programme.model_dump(mode="json"), name)
        reporter.say(f"run {run} ({name}) is started")
        try:
            state = control.follow(run, line)
        except KeyboardInterrupt:
            try:
                control.stop_run(run)
            except TokenError as error:  # one that only asks; then the question ends by itself
                reporter.say(f"run {run} goes on: {error}")
            raise
    if state["outcome"] != "completed":
        raise WorkError(
            f"Run {run} ended as {state['outcome'] or state['state']}: {sentence(state['details'])}.",
            f"Mend that; the same command with --name {name} goes on after the last whole round.",
        )
    return RunResult(run, found)


def begin_run(folder: Path, programme: Config) -> None:
    """Make the folder in which a run leaves its config, summary and report; that of another verb is refused."""
    refuse_other_verbs(folder, "programme", (SUMMARY, REPORT))
    begin(folder)
    write_config(folder, programme)


def write_run(folder: Path, programme: Config, result: RunResult) -> Path:
    """Summary and report of a run of rounds in a folder; gives the report's path."""
    text = dump(programme)
    provenance = Provenance(
        config=text,
        versions=versions(),
        hash=digest(text),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        more={"run": str(result.run)},
    )
    with storing("what the run brought", folder):
        summary = json.dumps({**result.content, "run": str(result.run)}, indent=2)
        put_all({folder / SUMMARY: f"{summary}\n".encode()})
        return rounds_page(folder / REPORT, result.content, provenance)


def sentence(details: str) -> str:
    """Why a run failed, from what Flower says of it: our own sentence is in it, or the operating system's refusal."""
    summary = details.removeprefix(_FAILED)
    refused = _REFUSED.fullmatch(summary)
    if refused:
        where = f"Cannot use {refused['path']} at the link: " if refused["path"] else ""
        summary = f"{where}{refused['words']}"
    return (summary or "no more is known").rstrip(".")


def plain(text: str) -> str:
    """A line of Flower's log without colours and level."""
    return _LEVEL.sub("", _COLOURS.sub("", text)).strip()


def ask_site(folder: Path, data: str, overrides: Sequence[str] = (), reporter: Reporter | None = None) -> QueryRun:
    """Ask the site's own model about patients of the site. Nothing leaves: no process of Flower takes part.

    overrides: as for `distlfm query`. The site's log tells that it was asked, and of how many; not about whom.
    """
    from distlfm.federated.site.work import own_checkpoint
    from distlfm.verbs.query import query

    home = SiteHome(folder)
    home.config()
    checkpoint = own_checkpoint(folder)
    if not checkpoint.exists():
        raise UsageError(f"The site has no operator: there is no {checkpoint}.", "Copy the federation's there.")
    answer = query(checkpoint, data, overrides, reporter or Silent())
    AuditLog(home.audit).append("local query", "", answers=len(answer.rows), left="nothing")
    return answer


def ask_federation(
    programme: ProgrammeConfig, question: str, name: str, connection: Connection, reporter: Reporter | None = None
) -> RunResult:
    """Ask all sites together; what comes back are means over the federation's patients, and nothing by site.

    programme: the operator that is asked about, and how many sites must answer. name: the run whose model is meant.
    """
    asked = programme.model_copy(update={"kind": "query", "question": question})
    return run_programme(asked, name, connection, reporter)
