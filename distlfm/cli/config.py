"""`distlfm config` and `distlfm data`: what goes into a verb, looked at before it runs.

The first shows the keys of a config, what a file comes to, and the equations that it may name; the second shows the
reference sets, and what a file holds.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument

from distlfm.cli.options import STATE, AsJson, Plugins, group, say, warn
from distlfm.config import apply_overrides, build, dump, read_yaml
from distlfm.errors import UsageError

if TYPE_CHECKING:
    from distlfm.verbs.config import EquationSheet, Verbs

app = group("Look at configs: their schema, what a file and its overrides come to, and the equations there are.")
data_app = group("Look at data: the reference sets, and what a file holds before it is fitted.")


@app.command("schema")
def schema(verb: Annotated[str, Argument(help="Verb whose config is described.")] = "fit") -> None:
    """Print the JSON schema of a verb's config.

    Example: `distlfm config schema fit > fit.schema.json`
    """
    from distlfm.verbs.config import schema_of

    typer.echo(json.dumps(schema_of(verb, every_verb()), indent=2))


@app.command("show")
def show(
    path: Annotated[Path, Argument(help="A config file.")],
    overrides: Annotated[list[str] | None, Argument(help="Settings in place of the config's: run.seed=1.")] = None,
) -> None:
    """Check a config and print it with all defaults filled in.

    Example: `distlfm config show configs/fit/p53.yaml run.seed=1`
    """
    from distlfm.verbs.config import load_any

    typer.echo(dump(load_any(path, overrides or [], every_verb())), nl=False)


@app.command("equations")
def equations(
    kind: Annotated[str | None, Argument(help="Name of an equation; all are listed by default.")] = None,
    overrides: Annotated[
        list[str] | None, Argument(help="Settings on which its parameters depend: initial=free.")
    ] = None,
    plugin: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """List the equations, or show one: its parameters with units and default priors, its options, a config of it.

    Examples:

    - `distlfm config equations`

    - `distlfm config equations transcription`

    - `distlfm config equations transcription response.kind=hill`

    - `distlfm config equations infusion --plugin infusion`: one of your own
    """
    from distlfm.verbs.config import describe_equation, list_equations

    if kind is None:
        summaries = list_equations(plugin or [])
    else:
        sheet = describe_equation(kind, overrides or [], plugin or [])
    if as_json:
        typer.echo(json.dumps(summaries if kind is None else asdict(sheet), indent=2, ensure_ascii=False))
    elif kind is None:
        STATE.reporter.table("", ("mechanism.kind", "equation"), [[name, line] for name, line in summaries.items()])
        say("One of them with its parameters and options: distlfm config equations NAME")
    else:
        _tell(sheet)


def _tell(sheet: EquationSheet) -> None:
    """A sheet, for people."""
    columns = ("parameter", "elements", "meaning", "unit", "default prior")
    sections = {
        "Parameters. mechanism.priors replaces a prior, mechanism.fixed makes one known; both go by its name:": (
            columns,
            [[one.name, one.elements, one.meaning, one.unit, one.prior] for one in sheet.parameters],
        ),
        "Force and noise, by the key of the prior:": (
            ("key", *columns[1:]),
            [[one.key, one.elements, one.meaning, one.unit, one.prior] for one in sheet.others],
        ),
        "Options:": (
            ("key", "takes", "by default"),
            [[one.name, ". ".join(filter(None, [one.takes, one.meaning])), one.default] for one in sheet.options],
        ),
    }
    say(f"{sheet.text}\n")
    say(f"outputs: {sheet.outputs}")
    say("forces: " + ", ".join(f"{force.name} ({force.unit})" for force in sheet.forces))
    for title, (names, rows) in sections.items():
        if rows:
            say(f"\n{title}")
            STATE.reporter.table("", names, rows)
    kinds = [f"{kind} ({', '.join(keys)})" for kind, keys in sheet.priors.items()]
    say(f"- A prior is one of these kinds, with these keys: {', '.join(kinds)}.")
    say(*(f"- {note}" for note in sheet.notes))
    say(f"\nA config, {sheet.kind}.yaml:\n\n{sheet.config}")
    say(f"Fit it: distlfm fit {sheet.kind}.yaml --data YOUR_DATA --out runs/{sheet.kind}")
    say(f"Data to try it on: {sheet.simulate}")


def every_verb() -> Verbs:
    """Verbs that have keys: those that read a config, and those that take keys on the command line alone."""
    from distlfm.federated.settings import VERBS as FEDERATED
    from distlfm.runs.settings import EvaluateConfig, QueryConfig, ServeConfig
    from distlfm.verbs.config import VERBS

    return {**VERBS, "query": QueryConfig, "evaluate": EvaluateConfig, "serve": ServeConfig, **FEDERATED}


@data_app.command("ls")
def ls(as_json: AsJson = False) -> None:
    """List the reference data sets with their origin, and whether they are on this machine.

    Example: `distlfm data ls`
    """
    from distlfm.data.catalog import list_datasets

    entries = list_datasets()
    if as_json:
        typer.echo(json.dumps(entries, indent=2))
        return
    columns = ("name", "available", "title", "origin", "licence")
    rows = [[str(entry[key]) for key in columns] for entry in entries]
    STATE.reporter.table("Reference data (set DISTLFM_DATA_DIR to their folder)", columns, rows)


@data_app.command("check")
def check(
    path: Annotated[
        Path, Argument(help="A .csv, .csv.gz, .parquet or .npz file, a folder of them, or a config that names one.")
    ],
    columns: Annotated[
        list[str] | None, Argument(help="key=value: the column of each role; guessed by default.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Read data as a fit would, and show what is there and what is wrong with it.

    Exit code 1 if an instance had to be set aside. Examples:

    - `distlfm data check patients.csv.gz`

    - `distlfm data check wide.csv time=hours instance=patient 'values=[lactate, glucose]'`

    - `distlfm data check field.csv time=t positions=x values=output truth_force=force`

    - `distlfm data check fit.yaml`: the data of a config, with its columns
    """
    from distlfm.data import ColumnMap
    from distlfm.data.catalog import check as check_path

    given: dict[str, object] = {}
    if path.suffix in (".yaml", ".yml"):
        path, given = _named_by(path)
    # As the same settings are called in a config, too.
    short = [one.removeprefix("data.").removeprefix("columns.") for one in columns or []]
    content = apply_overrides(given, short)
    report = check_path(path, build(ColumnMap, content, source="columns") if content else None)
    if as_json:
        typer.echo(json.dumps(report.to_dict(), indent=2))
    else:
        STATE.reporter.table("", ("what", "value"), report.rows())
        say(*(f"notice: {notice}" for notice in report.notices))
        warn(*(f"set aside: {problem}" for problem in report.set_aside))
    return 1 if report.set_aside else 0


def _named_by(config: Path) -> tuple[Path, dict[str, object]]:
    """The file that a config's section `data` names, and its columns."""
    from distlfm.runs.settings import DataConfig

    content = read_yaml(config).get("data")
    data = build(DataConfig, content if isinstance(content, dict) else {}, source=f"{config}: data")
    if data.path is None or data.dataset is not None:
        raise UsageError(
            f"{config} names no file of data of its own (data.path).", "Give the file: distlfm data check FILE."
        )
    return data.path, {} if data.columns is None else data.columns.model_dump(exclude_unset=True)
