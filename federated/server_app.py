"""The coordinator's Flower app: the rounds of a programme, or one question, over secure sums.

It holds the common model and sums; it never sees one site's weights, counts or figures.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from logging import INFO, LogRecord, getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flwr.app import Context
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp

from distlfm.errors import DistlfmError, UsageError
from distlfm.federated.settings import ProgrammeConfig

if TYPE_CHECKING:
    from distlfm.federated.audit import AuditLog
    from distlfm.lfo import Operator

HOME = "DISTLFM_LINK_HOME"
RESULT, OPERATOR = "result.json", "operator.pt"
MARK = "DISTLFM-RESULT"

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run what the run's settings ask for; the result is in the run's folder and in one line of the log."""
    from distlfm.federated.audit import AuditLog
    from distlfm.federated.secure.grid import SecureGrid
    from distlfm.federated.setup.enrolment import Peers, read_handed
    from distlfm.federated.setup.homes import LinkHome, check_name

    programme = programme_of(str(context.run_config["programme"]))
    home = LinkHome(Path(os.environ[HOME]))
    folder = home.runs / check_name(str(context.run_config["run-name"]))
    peers = read_handed(Peers, home.peers).peers if home.peers.exists() else None
    getLogger("flwr").addFilter(is_no_count)
    safe = SecureGrid(grid, min_sites=programme.min_sites, peers=peers, audit=AuditLog(home.audit))
    result = perform(safe, programme, folder, str(context.run_id), AuditLog(home.audit))
    log(INFO, "%s %s", MARK, json.dumps(result))


def is_no_count(record: LogRecord) -> bool:
    """Flower counts replies, and a secure sum is one reply: whoever follows a run would read that one site answered."""
    return "results and %s failures" not in str(record.msg)


def programme_of(text: str) -> ProgrammeConfig:
    """From JSON text; whoever starts a run has read the file."""
    from distlfm.config import build

    content = None
    with suppress(ValueError):
        content = json.loads(text)
    if not isinstance(content, dict):
        raise UsageError("The programme is not a JSON object.", "Start runs with: distlfm federated run")
    return build(ProgrammeConfig, content, source="programme")


MOST_BYTES = 4_000_000_000


def operator_at_link(path: Path, run: str, audit: AuditLog | None) -> Operator:
    """Open the programme's operator. Whatever is wrong with it, whoever starts the run is told the same.

    The path is that of somebody with a token, who need not know which files there are at the link: its own log does.
    """
    from distlfm.federated.site.work import open_operator

    try:
        if not path.is_file() or path.stat().st_size > MOST_BYTES:  # neither a pipe nor a device is opened
            raise UsageError("It is no file, or too large.")
        return open_operator(path)
    except Exception as error:  # a stranger's file: torch has many errors for what is no checkpoint
        why = error.cause if isinstance(error, DistlfmError) else type(error).__name__
    if audit is not None:
        audit.append("refused", run, what=f"operator {path}", why=why)
    raise UsageError(
        "The programme's operator cannot be used at the link.",
        "Set operator to the link's own copy of the sites' first operator; the link's audit log says what is wrong.",
    )


def perform(
    grid: Grid, programme: ProgrammeConfig, folder: Path, run: str, audit: AuditLog | None = None
) -> dict[str, Any]:
    """Run all rounds (or one query) and return the result."""
    from distlfm.federated.rounds import ask, run_rounds
    from distlfm.federated.site.work import codec_of
    from distlfm.store.files import put_all, storing

    if programme.operator is None:
        raise UsageError("No operator is given to tune.", "Set operator: a checkpoint of `distlfm train`.")
    operator = operator_at_link(programme.operator, run, audit)
    codec = codec_of(operator.model, programme.task)
    name = RESULT
    if programme.kind == "query":
        result, name = ask(grid, operator, codec, programme, folder, run), f"answer-{programme.question}.json"
    else:
        state = run_rounds(
            grid, operator, codec, programme, folder, run, lambda line: log(INFO, "%s", words(line, programme.evaluate))
        )
        codec.load(operator.model, state.result)
        operator.save(folder / OPERATOR)
        result = {
            "rounds": state.done,
            "kept_round": state.kept_round if state.kept is not None else state.done,
            "history": state.history,
            "last": state.last,
            "operator": str(folder / OPERATOR),
        }
    with storing(name, folder):
        folder.mkdir(parents=True, exist_ok=True)
        put_all({folder / name: f"{json.dumps(result, indent=2)}\n".encode()})
    return result


def words(line: dict[str, Any], measured: bool) -> str:
    """A round in a line of the log, or how the last model was found. measured: whether figures were asked for."""
    figures = [f"{key} {value:.4g}" for key, value in line.items() if isinstance(value, float) and key != "seconds"]
    if measured and not figures:
        figures = ["not measured: not all sites answered (the link's audit log says why)"]
    if "after" in line:
        return f"after round {line['after']}: {', '.join(figures)}; the model of round {line['kept']} is kept"
    if "seconds" not in line:
        figures = [f"lost ({'; '.join(line['why']) or 'no reason is known'})"]
    elif measured:
        figures[0] = f"the model before it: {figures[0]}"
    if line.get("votes"):
        agreeing, opposed = line["votes"]
        figures.append(f"{agreeing} sites vote for it, {opposed} against" + (": taken back" * (opposed > agreeing)))
    return ", ".join([f"round {line['round']}: {line['sites']} sites", *figures])
