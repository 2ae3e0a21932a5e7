"""`distlfm federated`: sites tune and ask a common operator; patients' data stay home."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from distlfm.cli import provision
from distlfm.cli.options import STATE, AsJson, Overrides, as_overrides, group, say, warn
from distlfm.config import load
from distlfm.errors import UsageError
from distlfm.optional import require
from distlfm.runtime.reporting import Reporter, reporter_for

if TYPE_CHECKING:
    from distlfm.federated.link.control import Connection
    from distlfm.federated.settings import ProgrammeConfig
    from distlfm.federated.setup.homes import Logs

app = group("Tune and ask a common operator over several sites. Patients' data stay at their site.")
app.add_typer(provision.app, name="provision")


@app.callback()
def extra() -> None:
    """Tune and ask a common operator over several sites. Patients' data stay at their site."""
    for module in ("cryptography", "flwr"):
        require(module, "federated")


Folder = Annotated[Path, Argument(help="The role's folder, made by `provision`.")]
Insecure = Annotated[
    bool,
    Option(
        "--insecure",
        help="Plain text and no node keys, on this machine only: any process here can read models and pose as a site.",
    ),
]
Link = Annotated[Path | None, Option("--link", help="The coordinator's folder, on its machine.")]
Server = Annotated[str | None, Option("--server", help="HOST:PORT of a link elsewhere; with --ca and --token.")]
Ca = Annotated[Path | None, Option("--ca", help="The federation's ca.pem.")]
Token = Annotated[Path | None, Option("--token", help="File with an admin token; admin.token of --link.")]

LogLines = Annotated[
    str | None,
    Option(
        "--logs", help="`json`: each line as JSON, with the audit log's; `syslog`: these go there; `plain`: neither."
    ),
]


def _logs(given: str | None) -> Logs | None:
    kinds: tuple[Logs, ...] = ("plain", "json", "syslog")
    known = [kind for kind in kinds if kind == given]
    if given is not None and not known:
        raise UsageError(f"There is no kind of logs {given!r}.", f"Kinds are {', '.join(kinds)}.")
    return known[0] if known else None


@app.command("link")
def link(folder: Folder, insecure: Insecure = False, logs: LogLines = None) -> None:
    """Serve as coordinator until Ctrl-C; what ends by itself is started again.

    Example: `distlfm federated link federation/link`
    """
    from distlfm.federated.link.service import serve_link

    serve_link(folder, STATE.reporter, insecure=insecure, logs=_logs(logs))


@app.command("prepare")
def prepare(folder: Folder) -> int:
    """Fit the site's own patients into its own store, as its site.yaml says. Nothing leaves.

    Example: `distlfm federated prepare federation/sites/north`
    """
    from distlfm.federated.site.work import Site

    if not (folder / "site.yaml").is_file():
        fix = "Make one from the coordinator's kit: distlfm federated provision site KIT FOLDER"
        raise UsageError(f"{folder} is not a site's folder: it has no site.yaml.", fix)
    left_out = Site(folder).prepare(STATE.reporter)
    say(f"the patients of {folder} are fitted" + (f"; {left_out} left out" if left_out else ""))
    return 1 if left_out else 0


@app.command("site")
def site(folder: Folder, insecure: Insecure = False, logs: LogLines = None) -> None:
    """Serve as a site until Ctrl-C, within the policy in its folder; a link that is away is waited for.

    Example: `distlfm federated site federation/sites/north`
    """
    from distlfm.federated.link.service import serve_site

    serve_site(folder, STATE.reporter, insecure=insecure, logs=_logs(logs))


@app.command("run")
def run(
    config: Annotated[Path, Argument(help="A programme, such as configs/programme/glucose.yaml.")],
    overrides: Overrides = None,
    name: Annotated[str, Option("--name", help="Name of the run; the same name goes on with a stopped one.")] = "run",
    out: Annotated[Path | None, Option("--out", help="Where the config, a summary and a report go.")] = None,
    link: Link = None,
    server: Server = None,
    ca: Ca = None,
    token: Token = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
) -> None:
    """Start a programme of rounds at a running link, follow it, and say what it brought. Needs an admin token.

    Examples:

    - `distlfm federated run programme.yaml --link federation/link --name first --out runs/first`

    - `distlfm federated run programme.yaml --server link.example.org:8443 --ca ca.pem --token me.token`
    """
    from distlfm.federated.link.run import begin_run, run_programme, write_run

    programme, connection = _programme_and_link(config, overrides, link, server, ca, token, insecure)
    reporter = _reporter(as_json)
    if out is not None:
        begin_run(out, programme)
    result = run_programme(programme, name, connection, reporter)
    if out is not None:
        reporter.say(f"report: {write_run(out, programme, result)}")
    _tell(result.content | {"run": str(result.run)}, as_json)


@app.command("query")
def query(
    what: Annotated[str, Argument(help="With --site: data of patients. Else a question: model or cohort.")],
    overrides: Overrides = None,
    site: Annotated[Path | None, Option("--site", help="Ask this site's own model; nothing leaves.")] = None,
    out: Annotated[Path | None, Option("--out", help="With --site: where the answers go.")] = None,
    programme: Annotated[
        Path | None, Option("--programme", help="For a question to the federation: the config that names the operator.")
    ] = None,
    name: Annotated[str, Option("--name", help="The run whose model is asked about.")] = "run",
    link: Link = None,
    server: Server = None,
    ca: Ca = None,
    token: Token = None,
    insecure: Insecure = False,
    as_json: AsJson = False,
) -> int:
    """Ask a site's own model about its patients, or all sites together about the federation's.

    Examples:

    - `distlfm federated query patient.csv --site federation/sites/north --out answers`

    - `distlfm federated query cohort --programme programme.yaml --link federation/link`
    """
    from distlfm.federated.link.run import ask_federation, ask_site

    if site is not None:
        from distlfm.cli.query import tell

        return tell(ask_site(site, what, as_overrides({"run.dir": out}, overrides), STATE.reporter))
    if programme is None:
        fix = "Give --site FOLDER, or --programme CONFIG and --link FOLDER."
        raise UsageError("Neither a site nor a programme is given.", fix)
    asked, connection = _programme_and_link(programme, overrides, link, server, ca, token, insecure)
    result = ask_federation(asked, what, name, connection, _reporter(as_json))
    _tell(result.content | {"run": str(result.run)}, as_json)
    return 0


@app.command("status")
def status(folder: Folder, insecure: Insecure = False, as_json: AsJson = False) -> int:
    """Say how a link or a site is: processes, sites, runs, privacy spent. Exit code 1 if it does not run.

    Example: `distlfm federated status federation/link`
    """
    from distlfm.federated.link.status import status as look

    summary = look(folder, insecure=insecure)
    _tell(summary, as_json)
    return 0 if summary["state"] == "running" else 1


@app.command("drill")
def drill(
    out: Annotated[Path | None, Option("--out", help="Where summary.json and report.html go.")] = None,
    as_json: AsJson = False,
) -> int:
    """Attack a federation made for it on this machine, and report what it withstood. Exit code 1 if it did not.

    Example: `distlfm federated drill --out runs/drill`
    """
    from distlfm.federated.drill.run import drill as attack

    facts, reporter = attack(out, _reporter(as_json)), _reporter(as_json)
    if as_json:
        _tell(facts, as_json)
    else:
        yes = {True: "yes", False: "NO", None: "–"}
        rows = [[one["attack"], one["answer"], yes[one["refused"]], yes[one["opened"]]] for one in facts["attacks"]]
        reporter.table("attacks", ("attack", "what was answered", "refused", "succeeds at opened sites"), rows)
        say(f"the drill is {'green' if facts['ok'] else 'RED'}, after {facts['seconds']:g} s")
        if out is not None:
            say(f"report: {out / 'report.html'}")
    return 0 if facts["ok"] else 1


@app.command("simulate")
def simulate(
    config: Annotated[Path, Argument(help="A config file, such as configs/federated/glucose.yaml.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, Option("--out", help="The folder for sites, rounds and summary.json.")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a whole federation in this process, with the same messages, masks and policies; no network.

    Example: `distlfm federated simulate configs/federated/glucose.yaml --out runs/federation`
    """
    from distlfm.federated.simulation.run import simulate as run_simulate

    _tell(run_simulate(config, overrides or [], out, _reporter(as_json)), as_json)


@app.command("audit")
def audit(
    log: Annotated[Path, Argument(help="A role's folder, or its audit.jsonl.")],
    run: Annotated[str | None, Option("--run", help="Only what belongs to this run.")] = None,
    head: Annotated[str | None, Option("--head", help="A hash noted earlier: is that line still there?")] = None,
    as_json: AsJson = False,
) -> int:
    """Show an audit log and check that nobody changed it. Exit code 1 if somebody did.

    Example: `distlfm federated audit federation/sites/north --run 1234`
    """
    from distlfm.federated.audit import entries_of, verify

    report = verify(log / "audit.jsonl" if log.is_dir() else log, head)
    entries = report.entries if run is None else entries_of(report, run)
    if as_json:
        typer.echo(json.dumps({"entries": entries, "head": report.head, "flaws": report.flaws}))
        return 1 if report.flaws else 0
    rows = [[entry["time"], entry["run"] or "–", entry["event"], _facts(entry.get("facts", {}))] for entry in entries]
    STATE.reporter.table("", ("time", "run", "event", "facts"), rows)
    warn(*report.flaws)
    say(f"head: {report.head}" if not report.flaws else "the log does not hold together")
    return 1 if report.flaws else 0


def _programme_and_link(
    config: Path, overrides: Overrides, link: Link, server: Server, ca: Ca, token: Token, insecure: Insecure
) -> tuple[ProgrammeConfig, Connection]:
    """A programme, and the link that runs it.

    On the coordinator's own machine the operator's path starts where the verb is called, and is looked at now.
    """
    from distlfm.federated.link.control import connection_of, connection_to
    from distlfm.federated.settings import ProgrammeConfig

    programme = load(ProgrammeConfig, config, overrides or [])
    if (link is None) == (server is None):
        raise UsageError("The link is not given.", "Give --link FOLDER, or --server HOST:PORT.")
    if link is not None:
        connection = connection_of(link, token_file=token, insecure=insecure)
    else:
        connection = connection_to(str(server), ca, token, insecure=insecure)
    if programme.operator is None:
        fix = "Set operator: a checkpoint of `distlfm train`, on the coordinator's machine."
        raise UsageError("The programme does not say which operator is meant.", fix)
    if link is not None and not programme.operator.is_file():
        raise UsageError(f"There is no checkpoint {programme.operator}.", "Give the path of one: operator=PATH.")
    if link is not None:
        programme = programme.model_copy(update={"operator": programme.operator.resolve()})
    return programme, connection


def _facts(facts: dict[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in facts.items())


def _tell(content: dict[str, Any], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(content))
    else:
        STATE.reporter.table("", ("what", "value"), list(in_words(content)))


def in_words(content: dict[str, Any]) -> Iterator[list[str]]:
    """A row for each entry, and for each mapping of a list of these."""
    for key, value in content.items():
        many = value if isinstance(value, list) and value and isinstance(value[0], dict) else [value]
        for number, one in enumerate(many):
            yield [key if not number else "", _words(one)]


def _words(value: object) -> str:
    """A value for people; --json has it for programs."""
    if value is None or value == "":
        return "–"
    if isinstance(value, dict):
        parts = (
            f"{key} ({_words(one)})" if isinstance(one, dict) else f"{key} {_words(one)}" for key, one in value.items()
        )
        return ", ".join(parts) or "none"
    if isinstance(value, list):
        return ", ".join(map(_words, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _reporter(as_json: bool) -> Reporter:
    """What happens on the way is not part of the one JSON object."""
    return reporter_for(sys.stderr, quiet=STATE.quiet) if as_json else STATE.reporter
