"""The `distlfm` command: global options, the verbs, and how a failure is reported.

Exit codes: 0 all went well, 1 the work failed, 2 the call was wrong, 130 interrupted.
"""

from __future__ import annotations

import re
import sys
import traceback
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated

import click
import typer
from typer import Option
from typer.main import get_command

from distlfm.cli import config, federated, fit, jobs, query, store, train
from distlfm.cli.options import STATE, group, start
from distlfm.errors import DistlfmError
from distlfm.version import __version__

EXAMPLES = """Infer the unseen forces that drive a system whose equation is known.

**Examples**

- `distlfm doctor` — what is installed, what is missing, and the command that fixes it
- `distlfm data check FILE` — what a data file holds and what is wrong with it
- `distlfm simulate transcription --out toy.npz mechanism.fixed.sensitivity.output_0=1` — their true force is known
- `distlfm fit configs/fit/transcription.yaml --data toy.npz --out runs/toy` — infer the forces, with a report
- `distlfm generate configs/generate/transcription.yaml --out genes.zarr` — a store of thousands, to train on
- `distlfm query CHECKPOINT FILE` — what a trained operator answers, in milliseconds
- `distlfm serve CHECKPOINT` — the same as a page in your browser, on this machine alone
"""

INTERRUPTED = 130
ANYWHERE = re.compile(r"--(verbose|quiet|debug)|-(v+|q)")
"""Global options, which are understood behind the verb too."""

app = group(EXAMPLES)
Verbs = tuple[Callable[..., int | None], ...]
FIRST: Verbs = (jobs.doctor, fit.simulate, fit.generate, fit.fit, train.train, train.tune, train.evaluate, query.query)
LAST: Verbs = (query.serve, fit.resume, jobs.status, jobs.submit, fit.demo)
for verb in FIRST + LAST:  # called by the names of their functions, and listed in this order
    app.command()(verb)
app.add_typer(config.data_app, name="data")
app.add_typer(config.app, name="config")
app.add_typer(store.app, name="store")
app.add_typer(query.app, name="operator")
app.add_typer(federated.app, name="federated")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"distlfm {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
    verbose: Annotated[
        int,
        Option("-v", "--verbose", count=True, metavar="", show_default=False, help="Say more; twice for everything."),
    ] = 0,
    quiet: Annotated[bool, Option("-q", "--quiet", help="Say only what went wrong.")] = False,
    debug: Annotated[bool, Option("--debug", help="Show the traceback of a failure.")] = False,
) -> None:
    """Options of every verb."""
    del version
    start(verbose, quiet, debug)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; what goes wrong becomes a sentence and an exit code."""
    code = _run(_global_first(sys.argv[1:] if argv is None else argv))
    if argv is None:
        sys.exit(code)
    return code


def _global_first(arguments: Sequence[str]) -> list[str]:
    """The same call with its global options before the verb; what follows `--` is left alone."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    return [*sorted(arguments[:end], key=lambda word: not ANYWHERE.fullmatch(word)), *arguments[end:]]


@cache
def _command() -> click.Command:
    """All verbs, as click has them; a program that calls `main` often makes them once."""
    return get_command(app)


def _run(arguments: list[str]) -> int:
    try:
        result = _command()(args=arguments, prog_name="distlfm", standalone_mode=False)
        if result == INTERRUPTED:  # typer turns Ctrl-C into this code, without a word
            typer.echo("Interrupted.", err=True)
        return result if isinstance(result, int) else 0
    except click.exceptions.NoArgsIsHelpError as error:
        typer.echo(error.ctx.get_help() if error.ctx else "")
        return 2
    except click.ClickException as error:
        if type(error) is click.BadParameter and error.param and isinstance(error.param.type, click.Path):  # is closed
            return _tell(f"{error.message} Give yourself the right to read it.", error.exit_code)
        if isinstance(error, click.UsageError) and "Did you mean" in error.message:  # typer's; click would add its own
            error = click.UsageError(error.message, error.ctx)
        error.show()
        return error.exit_code
    except DistlfmError as error:
        return _tell(str(error), error.exit_code)
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Exception as error:
        from distlfm.store.files import unexpected

        return _tell(unexpected(error, "--debug"), 1)


def _tell(text: str, code: int) -> int:
    if STATE.debug:
        traceback.print_exc()
    typer.echo(f"distlfm: {text}", err=True)
    return code
