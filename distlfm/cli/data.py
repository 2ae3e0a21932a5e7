"""`distlfm data`: the reference data sets, and what a data file holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from distlfm.cli.options import STATE, AsJson, group
from distlfm.config import apply_overrides, build, read_yaml
from distlfm.errors import UsageError

app = group("Look at data: the reference sets, and what a file holds before it is fitted.")


@app.command("ls")
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


@app.command("check")
def check(
    path: Annotated[
        Path, Argument(help="A .csv, .csv.gz, .parquet or .npz file, a folder of them, or a config that names one.")
    ],
    columns: Annotated[
        list[str] | None, Argument(help="key=value: which column plays which part; without any they are guessed.")
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
        for notice in report.notices:
            STATE.reporter.say(f"notice: {notice}")
        for problem in report.set_aside:
            STATE.reporter.warn(f"set aside: {problem}")
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
