"""`distlfm doctor`: what is installed, what is missing or broken, and the command that fixes it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distlfm.cli.state import STATE


def doctor(
    directory: Annotated[Path, typer.Option("--dir", help="Directory whose speed and renames are tried.")] = Path("."),
    as_json: Annotated[bool, typer.Option("--json", help="One JSON list for programs.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what starts processes (MPI, Ray, FEniCS).")] = False,
) -> int:
    """Try every part of the stack and say how to mend what does not work.

    Exit code 1 if a part is broken; a part that is only missing does not count. Example: `distlfm doctor --json`
    """
    from distlfm.pipeline.doctor import run_checks, to_json, to_rows

    checks = run_checks(directory, quick=quick)
    if as_json:
        typer.echo(to_json(checks))
    else:
        STATE.reporter.table("", ("part", "status", "detail", "fix"), to_rows(checks))
    return 1 if any(check.status == "broken" for check in checks) else 0
