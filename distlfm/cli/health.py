"""`distlfm doctor` and `distlfm status`: what works on this machine, and how far a run is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from distlfm.cli.options import STATE, AsJson


def doctor(
    directory: Annotated[Path, Option("--dir", help="Directory whose speed and renames are tried.")] = Path("."),
    as_json: AsJson = False,
    quick: Annotated[bool, Option("--quick", help="Leave out what starts processes (MPI, Ray, FEniCS).")] = False,
) -> int:
    """Try every part of the stack and say how to mend what does not work.

    Exit code 1 if a part is broken; a part that is only missing does not count. Example: `distlfm doctor --json`
    """
    from distlfm.doctor.checks import run_checks, to_json, to_rows

    checks = run_checks(directory, quick=quick)
    if as_json:
        typer.echo(to_json(checks))
    else:
        STATE.reporter.table("", ("part", "status", "detail", "fix"), to_rows(checks))
    return 1 if any(check.status == "broken" for check in checks) else 0


def status(run: Annotated[Path, Argument(help="The folder of a run, or a store.")], as_json: AsJson = False) -> int:
    """Say how much of a run is done, failed and running, and how its Slurm jobs are. It is quick for millions.

    Exit code 0 if it is complete, queued or being worked on, 1 if it is stopped. Example: `distlfm status runs/fleet`
    """
    from distlfm.verbs.status import status as look

    found = look(run)
    if as_json:
        typer.echo(json.dumps(found.plain()))
        return 1 if found.state == "stopped" else 0
    reporter = STATE.reporter
    what = f"{found.kind} of {found.mechanism}" if found.mechanism else found.kind
    reporter.say(f"{found.path}: {what}, {found.state}")
    if found.total:
        share = 100 * found.done / found.total
        blocks = f"; {found.blocks_done}/{found.blocks} blocks" if found.blocks else ""
        counts = f"{found.failed} failed, {found.running} running{blocks}"
        reporter.say(f"{found.done}/{found.total} {found.unit} done ({share:.0f} %), {counts}")
    if found.statuses:
        reporter.say("ended as: " + ", ".join(f"{count} {name}" for name, count in sorted(found.statuses.items())))
    if found.driver is not None:
        speed = "" if not found.rate else f", {found.rate:.3g} instances/s"
        left = "" if found.left_s is None else f", {found.left_s:.0f} s left"
        others = f", and {found.others} more with their parts" if found.others else ""
        workers = 1 + found.others if found.workers is None else found.workers
        reporter.say(f"worked on by {found.driver}{others}, {workers} workers{speed}{left}")
    for job in found.jobs:
        reporter.say(f"{job.words}; log: {job.note.log}")
    if found.state == "stopped":
        lacking = "; only its report is missing" if found.blocks and found.blocks_done == found.blocks else ""
        reporter.say(f"nobody works on it{lacking}; to go on: {found.command}")
    return 1 if found.state == "stopped" else 0
