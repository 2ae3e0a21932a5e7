"""`distlfm status`: how far a run is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from distlfm.cli.state import STATE


def status(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or a store.")],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object, for machines.")] = False,
) -> int:
    """Say how much of a run is done, failed and running. No array is read, so it is quick for millions.

    Exit code 0 if it is complete or being worked on, 1 if it is stopped. Example: `distlfm status runs/fleet`
    """
    from distlfm.pipeline.status import status as look

    found = look(run)
    if as_json:
        typer.echo(json.dumps(found.plain()))
        return 1 if found.state == "stopped" else 0
    reporter = STATE.reporter
    share = 100 * found.done / found.total
    reporter.say(f"{found.path}: {found.kind} of {found.mechanism}, {found.state}")
    reporter.say(
        f"{found.done}/{found.total} instances done ({share:.0f} %), {found.failed} failed, {found.running} running; "
        f"{found.blocks_done}/{found.blocks} blocks"
    )
    if found.statuses:
        reporter.say("ended as: " + ", ".join(f"{count} {name}" for name, count in sorted(found.statuses.items())))
    if found.driver is not None:
        speed = "" if not found.rate else f", {found.rate:.3g} instances/s"
        left = "" if found.left_s is None else f", {found.left_s:.0f} s left"
        reporter.say(f"worked on by {found.driver}, {found.workers or 1} workers{speed}{left}")
    elif found.state == "stopped":
        lacking = "" if found.blocks_done < found.blocks else "; only its report is missing"
        reporter.say(f"nobody works on it{lacking}; to go on: {found.command}")
    return 1 if found.state == "stopped" else 0
