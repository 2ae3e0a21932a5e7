"""Options that verbs share, and what the global ones set: how much is said, and whether a traceback is shown."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from distlfm.runtime.reporting import Reporter, reporter_for


@dataclass
class State:
    """Options that hold for every verb."""

    debug: bool = False
    quiet: bool = False

    @property
    def reporter(self) -> Reporter:
        return reporter_for(sys.stdout, quiet=self.quiet)


STATE = State()


def start(verbose: int, quiet: bool, debug: bool) -> None:
    """Take the global options and set the log level: warnings, then -v for information, -vv for everything."""
    STATE.debug, STATE.quiet = debug, quiet
    level = logging.ERROR if quiet else (logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)]
    logging.basicConfig(level=level, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr, force=True)
    logging.captureWarnings(True)
    # Without a home that it can write to, matplotlib says so at length, and works.
    logging.getLogger("matplotlib").setLevel(logging.NOTSET if verbose else logging.ERROR)


def group(summary: str) -> typer.Typer:
    """A Typer group with the house settings."""
    return typer.Typer(
        help=summary,
        no_args_is_help=True,
        rich_markup_mode="markdown",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )


AsJson = Annotated[bool, Option("--json", help="Print JSON for programs.")]
Overrides = Annotated[
    list[str] | None, Argument(help="Settings in place of the config's, such as run.seed=1; as many as you like.")
]
RunFolder = Annotated[Path | None, Option("--out", help="The run's folder. Short for run.dir=DIR.")]
Plugins = Annotated[
    list[str] | None,
    Option(
        "--plugin", metavar="MODULE", help="A module with an equation of your own, or its file; may be given again."
    ),
]


def plugins_override(names: list[str] | None, key: str = "plugins") -> list[str]:
    """The option as an override of the config."""
    return [f"{key}={json.dumps(names)}"] if names else []


def as_overrides(values: Mapping[str, object]) -> list[str]:
    """Options that are given, as overrides of the config."""
    return [f"{key}={json.dumps(str(value))}" for key, value in values.items() if value is not None]
