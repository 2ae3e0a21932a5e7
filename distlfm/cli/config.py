"""`distlfm config`: the keys a config takes, and what a config file comes to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distlfm.cli.state import group
from distlfm.config import dump

if TYPE_CHECKING:
    from distlfm.pipeline.verbs import Verbs

app = group("Look at configs: their schema, and what a file and its overrides come to.")


@app.command("schema")
def schema(verb: Annotated[str, typer.Argument(help="The verb whose config is meant.")] = "fit") -> None:
    """Print the JSON schema of a verb's config.

    Example: `distlfm config schema fit > fit.schema.json`
    """
    from distlfm.pipeline.verbs import schema_of

    typer.echo(json.dumps(schema_of(verb, every_verb()), indent=2))


@app.command("show")
def show(
    path: Annotated[Path, typer.Argument(help="A config file.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Settings in place of the config's: run.seed=1.")
    ] = None,
) -> None:
    """Check a config and print it with all defaults filled in.

    Example: `distlfm config show configs/fit/p53.yaml run.seed=1`
    """
    from distlfm.pipeline.verbs import load_any

    typer.echo(dump(load_any(path, overrides or [], every_verb())), nl=False)


def every_verb() -> Verbs:
    """Verbs that have keys: those that read a config, and those that take keys on the command line alone."""
    from distlfm.federated.verbs import VERBS as FEDERATED
    from distlfm.pipeline.query_settings import EvaluateConfig, QueryConfig
    from distlfm.pipeline.verbs import VERBS
    from distlfm.serve.settings import ServeConfig

    return {**VERBS, "query": QueryConfig, "evaluate": EvaluateConfig, "serve": ServeConfig, **FEDERATED}
