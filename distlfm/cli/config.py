"""`distlfm config`: the keys a config takes, what a config file comes to, and the equations it may name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument

from distlfm.cli.options import STATE, AsJson, Plugins, group
from distlfm.config import dump

if TYPE_CHECKING:
    from distlfm.runtime.reporting import Reporter
    from distlfm.verbs.config import EquationSheet, Verbs

app = group("Look at configs: their schema, what a file and its overrides come to, and the equations there are.")


@app.command("schema")
def schema(verb: Annotated[str, Argument(help="The verb whose config is meant.")] = "fit") -> None:
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
    kind: Annotated[str | None, Argument(help="An equation; without one all are listed.")] = None,
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
        found = list_equations(plugin or [])
        if as_json:
            typer.echo(json.dumps(found, indent=2, ensure_ascii=False))
            return
        STATE.reporter.table("", ("mechanism.kind", "equation"), [[name, line] for name, line in found.items()])
        STATE.reporter.say("One of them with its parameters and options: distlfm config equations NAME")
        return
    sheet = describe_equation(kind, overrides or [], plugin or [])
    if as_json:
        typer.echo(json.dumps(sheet.to_dict(), indent=2, ensure_ascii=False))
    else:
        _tell(sheet, STATE.reporter)


def _tell(sheet: EquationSheet, reporter: Reporter) -> None:
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
    reporter.say(f"{sheet.text}\n")
    reporter.say(f"outputs: {sheet.outputs}")
    reporter.say("forces: " + ", ".join(f"{force.name} ({force.unit})" for force in sheet.forces))
    for title, (names, rows) in sections.items():
        if rows:
            reporter.say(f"\n{title}")
            reporter.table("", names, rows)
    kinds = [f"{kind} ({', '.join(keys)})" for kind, keys in sheet.priors.items()]
    reporter.say(f"- A prior is one of these kinds, with these keys: {', '.join(kinds)}.")
    for note in sheet.notes:
        reporter.say(f"- {note}")
    reporter.say(f"\nA config, {sheet.kind}.yaml:\n\n{sheet.config}")
    reporter.say(f"Fit it: distlfm fit {sheet.kind}.yaml --data YOUR_DATA --out runs/{sheet.kind}")
    reporter.say(f"Data to try it on: {sheet.simulate}")


def every_verb() -> Verbs:
    """Verbs that have keys: those that read a config, and those that take keys on the command line alone."""
    from distlfm.federated.settings import VERBS as FEDERATED
    from distlfm.runs.settings import EvaluateConfig, QueryConfig
    from distlfm.serve.settings import ServeConfig
    from distlfm.verbs.config import VERBS

    return {**VERBS, "query": QueryConfig, "evaluate": EvaluateConfig, "serve": ServeConfig, **FEDERATED}
