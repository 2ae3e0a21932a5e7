"""`distlfm query`, `distlfm operator` and `distlfm serve`: ask a trained operator, take it elsewhere, or show it.

`serve` opens a page on this machine that shows what the operator infers from a site's data.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from distlfm.cli.options import MOST_LISTED, STATE, Overrides, Plugins, as_overrides, group, number, say, warn
from distlfm.cli.train import Checkpoint
from distlfm.config import apply_overrides, build
from distlfm.optional import require

if TYPE_CHECKING:
    from distlfm.verbs.query import QueryRun


app = group("Show a trained operator, or export it for other programs.")


def query(
    checkpoint: Checkpoint,
    data: Annotated[str, Argument(help="A file, a folder, a store, or the name of a reference set.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, Option("--out", help="Where the answers go.")] = None,
    plot: Annotated[bool, Option("--plot", help="Draw pictures and a report too.")] = False,
    plugin: Plugins = None,
) -> int:
    """Ask a trained operator for the forces and parameters of new data, observed at any times.

    Answers come with 68 and 95 % intervals, and with a warning if the data are unlike those it was trained on. Exit
    code 1 if an instance could not be answered or was set aside. Examples:

    - `distlfm query runs/operator patients.csv --out answers --plot`

    - `distlfm query runs/operator series.csv --out answers data.columns.time=hours data.columns.values=[a,b]`

    - `distlfm query runs/operator/operator.pt transcription_toy outputs.gene_a=output_0`
    """
    from distlfm.verbs.query import query as run_query

    settings = as_overrides({"run.dir": out, "plot": plot or None, "plugins": plugin}, overrides)
    return tell(run_query(checkpoint, data, settings, STATE.reporter))


@app.command("show")
def show(checkpoint: Checkpoint, plugin: Plugins = None) -> None:
    """What an operator takes and gives, and how it was trained.

    Example: `distlfm operator show runs/operator`
    """
    from distlfm.queries.export import described

    rows = [[name, value] for name, value in described(checkpoint, plugin or ()).items()]
    STATE.reporter.table("", ("what", "value"), rows)


@app.command("export")
def export(
    checkpoint: Checkpoint,
    out: Annotated[Path, Option("--out", help="The file to write.")],
    form: Annotated[str, Option("--format", help="torch_export, torchscript or onnx.")] = "torch_export",
    plugin: Plugins = None,
) -> None:
    """Write an operator as one program, with its calibration, for those who have PyTorch or ONNX but not distlfm.

    Beside it, a .json file says what goes in and what comes out. Examples:

    - `distlfm operator export runs/operator --out operator.pt2`

    - `distlfm operator export runs/operator --format torchscript --out operator.ts`
    """
    from distlfm.queries.export import export as run_export

    path = run_export(checkpoint, out, form, plugin or ())
    say(f"{path} takes values and mask; {path.with_suffix('.json')} says how")


def tell(run: QueryRun) -> int:
    """The answers in short, the warnings, and where everything is. Gives the exit code."""
    reporter, count, folder = STATE.reporter, len(run.rows), run.config.run.dir
    names = ("novelty", "latent_q2", "latent_coverage_95", "parameter_mae_sum")
    first = run.rows[:MOST_LISTED]
    rows = [[str(row["id"]), str(row["status"]), *(number(row[name]) for name in names)] for row in first]
    reporter.table("", ("instance", "status", "unlike training", *names[1:]), rows)
    if count == 1 and run.answers:
        table = [[p.name, *(f"{x:.4g}" for x in (p.mean, p.lower95, p.upper95))] for p in run.answers[0].estimates]
        reporter.table("", ("parameter", "mean", "95 % from", "to"), table)
    if count > MOST_LISTED:
        mean, _ = run.tally.overall()
        known = [f"{name} {mean[name]:.4g}" for name in names[1:] if mean[name] is not None]
        say(f"mean of all {count}: {', '.join(known) or 'no truth is known'}")
    warnings = [str(row["warning"]) for row in run.rows if row["warning"] is not None]
    warn(*warnings[:MOST_LISTED])
    if len(warnings) > MOST_LISTED:
        warn(f"{len(warnings)} of {count} are unlike the training data; summary.json says which")
    warn(*(f"{failure['id']}: {failure['reason']}" for failure in run.tally.failures[:MOST_LISTED]))
    if folder is not None:
        for name in ("answers.csv", "parameters.csv", "summary.json", *(["report.html"] if run.config.plot else [])):
            say(f"{name.partition('.')[0]}: {folder / name}")
    return 1 if run.tally.failed or run.tally.set_aside else 0


def serve(
    checkpoint: Checkpoint,
    overrides: Overrides = None,
    data: Annotated[
        str | None, Option("--data", help="Patients to choose from: a file, a folder, a store, a reference set.")
    ] = None,
    fit: Annotated[
        Path | None, Option("--fit", help="A config of `distlfm fit`, for the comparison with a full fit.")
    ] = None,
    port: Annotated[int | None, Option("--port", help="8765 by default; 0 takes any that is free.")] = None,
    host: Annotated[str | None, Option("--host", help="The address to listen on; 127.0.0.1 by default.")] = None,
    token_file: Annotated[
        Path | None, Option("--token-file", help="File of the token, which is not printed then; made if it is missing.")
    ] = None,
    no_token: Annotated[
        bool, Option("--no-token", help="Let every account of this machine open the page and see its patients.")
    ] = False,
    expose_unencrypted: Annotated[
        bool, Option("--expose-unencrypted", help="Let other machines in; what they send and see is not encrypted.")
    ] = False,
    name: Annotated[
        list[str] | None, Option("--name", help="A name by which other machines call this one; may be repeated.")
    ] = None,
    plugin: Plugins = None,
    show: Annotated[bool, Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a local web page: drop a file or pick a patient, see the inferred force, compare with a full fit.

    Only this machine can reach it, by a link with a token; it needs no internet, and nothing of a session is kept.
    Examples:

    - `distlfm serve runs/operator`

    - `distlfm serve runs/operator --data patients/ --token-file token.txt`

    - `distlfm serve runs/operator --data series.csv data.columns.time=hours 'data.columns.values=[a, b]'`
    """
    for module in ("starlette", "uvicorn"):
        require(module, "serve")
    from distlfm.runs.settings import ServeConfig
    from distlfm.serve.server import serve as run_serve
    from distlfm.verbs.query import named_data

    content = {"checkpoint": str(checkpoint), "data": {} if data is None else named_data(data)}
    given = {"fit": fit, "token_file": token_file, "names": name, "plugins": plugin}
    where = {"port": port, "host": host, "expose_unencrypted": expose_unencrypted or None}
    where["no_token"] = no_token or None
    settings = as_overrides({**given, **where}, overrides)
    config = build(ServeConfig, apply_overrides(content, settings), source="serve")
    run_serve(config, STATE.reporter, typer.launch if show else None)
