"""`distlfm store`: what stores hold, whether they are whole, several as one, and in other formats."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from distlfm.cli.options import STATE, AsJson, group, say, warn
from distlfm.errors import DistlfmError

if TYPE_CHECKING:
    from distlfm.store.inspection import StoreSummary

app = group("Look at stores of fitted or generated instances: list, verify, merge, export.")

Stores = Annotated[list[Path], Argument(help="Runs or stores.")]
Out = Annotated[Path, Option("--out", help="Where to write; it must not be there yet.")]


@app.command("ls")
def ls(
    paths: Annotated[
        list[Path] | None, Argument(help="Runs, stores, or folders of them; by default this folder.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """List stores: kind, mechanism, instances done and failed, dimensions, size, and the hash of the config.

    Exit code 1 if one of them cannot be read. Examples:

    - `distlfm store ls runs`

    - `distlfm store ls runs/toy generated.zarr --json`
    """
    from distlfm.store.inspection import stores_at, summarise

    summaries, failures = [], []
    for path in stores_at(paths or [Path()]):
        try:
            summaries.append(summarise(path))
        except DistlfmError as error:
            failures.append(str(error))
    if as_json:
        typer.echo(json.dumps([asdict(one) for one in summaries], indent=2))
    elif summaries:
        columns = ("store", "kind", "mechanism", "done", "failed", "of", "dims", "size", "config")
        STATE.reporter.table("", columns, [_row(one) for one in summaries])
        say(*(f"{one.path}: in use by {one.driver}" for one in summaries if one.driver))
    warn(*failures)
    return 1 if failures else 0


@app.command("verify")
def verify(paths: Stores) -> int:
    """Read every file of finished blocks and compare it with its checksum; rows, names and counts too.

    Exit code 1 if anything is damaged. Examples:

    - `distlfm store verify runs/toy`

    - `distlfm store verify generated.zarr other.zarr`
    """
    from distlfm.store import Store
    from distlfm.store.inspection import verify as check
    from distlfm.store.metadata import finished

    whole = True
    for path in paths:
        store = Store.open(path)
        with STATE.reporter.task(f"verify {path}", len(finished(store.path))) as task:
            verification = check(store, lambda _: task.advance())
        warn(*verification.flaws)
        say(*verification.mentions)
        state = "whole" if verification.ok else f"damaged ({len(verification.flaws)} flaws)"
        blocks = f"{verification.num_blocks} of {store.spec.num_blocks} blocks"
        say(f"{path}: {state}; {blocks}, {verification.num_instances} instances, {_size(verification.num_bytes)}")
        whole = whole and verification.ok
    return 0 if whole else 1


@app.command("merge")
def merge(
    paths: Stores,
    out: Out,
    prefix: Annotated[bool, Option("--prefix", help="Put the store's name before that of each instance.")] = False,
) -> None:
    """Put the finished blocks of several stores, of equal mechanism, names and grid, into a new one.

    Examples:

    - `distlfm store merge runs/monday runs/tuesday --out week.zarr`

    - `distlfm store merge site_a.zarr site_b.zarr --out both.zarr --prefix`
    """
    from distlfm.store.merge import Merge

    work = Merge(paths, out, prefix=prefix)
    with STATE.reporter.task("merge", work.spec.num_blocks) as task:
        work.run(lambda _: task.advance())
    say(*work.notes)
    say(f"{work.spec.instances} instances are in {out}")


@app.command("export")
def export(
    path: Annotated[Path, Argument(help="A run or a store.")],
    out: Out,
    form: Annotated[str, Option("--format", help="well (HDF5 of The Well) or npz (for `distlfm fit`).")],
) -> None:
    """Write a store in another format: `well`, the HDF5 layout of The Well, or `npz`, which `distlfm fit --data` reads.

    Examples:

    - `distlfm store export generated.zarr --format npz --out generated.npz`

    - `distlfm store export runs/fields --format well --out fields.h5`
    """
    from distlfm.store import Store
    from distlfm.store.export import export as write
    from distlfm.store.metadata import finished

    store = Store.open(path)
    with STATE.reporter.task("export", len(finished(store.path))) as task:
        done = write(store, form, out, lambda _: task.advance())
    say(*done.notes)
    say(f"{done.num_instances} instances are in {done.path}")


def _row(one: StoreSummary) -> list[str]:
    dims = " ".join(f"{name}={size}" for name, size in one.dims.items())
    counts = [str(one.done), str(one.failed), str(one.instances)]
    return [one.path, one.kind, one.mechanism or "–", *counts, dims, _size(one.bytes), one.config_hash or "–"]


def _size(count: int) -> str:
    units = ("B", "kB", "MB", "GB", "TB")
    power = min((len(str(count)) - 1) // 3, len(units) - 1)
    return f"{count / 1000**power:.3g} {units[power]}"
