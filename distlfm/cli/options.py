"""Options that verbs share, and what the global ones set: how much is said, and whether a traceback is shown."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
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


def say(*lines: object) -> None:
    """Print lines, unless the call is to be quiet."""
    for line in lines:
        STATE.reporter.say(str(line))


def warn(*lines: object) -> None:
    """Print warnings."""
    for line in lines:
        STATE.reporter.warn(str(line))


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
    list[str] | None, Argument(help="Settings in place of the config's, such as run.seed=1; any number of them.")
]
Address = Annotated[
    str | None, Option("--address", help="Join a Ray cluster: HOST:PORT, or auto for the one of this machine.")
]
RunFolder = Annotated[Path | None, Option("--out", help="The run's folder. Short for run.dir=DIR.")]
Plugins = Annotated[
    list[str] | None,
    Option(
        "--plugin", metavar="MODULE", help="A module with an equation of your own, or its file; may be given again."
    ),
]


MOST_LISTED = 20


def number(value: float | None) -> str:
    """Return a figure as tables show it."""
    return "–" if value is None else f"{value:.4g}"


def as_overrides(options: Mapping[str, object], overrides: Sequence[str] | None = None) -> list[str]:
    """Return the overrides of a call, then its options that are given, each by the key that it is short for."""
    given = {key: value for key, value in options.items() if value not in (None, [])}
    return [*(overrides or []), *(f"{key}={json.dumps(value, default=str)}" for key, value in given.items())]
