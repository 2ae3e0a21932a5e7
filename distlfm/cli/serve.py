"""`distlfm serve`: a page on this machine that shows what an operator infers from a site's data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from distlfm.cli.fit import Overrides
from distlfm.cli.plugins import Plugins, plugins_override
from distlfm.cli.state import STATE
from distlfm.cli.train import Checkpoint
from distlfm.config import apply_overrides, build
from distlfm.optional import require


def serve(
    checkpoint: Checkpoint,
    overrides: Overrides = None,
    data: Annotated[
        str | None, typer.Option("--data", help="Patients to choose from: a file, a folder, a store, a reference set.")
    ] = None,
    fit: Annotated[
        Path | None, typer.Option("--fit", help="A config of `distlfm fit`, for the comparison with a full fit.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="8765 by default; 0 takes any that is free.")] = None,
    host: Annotated[str | None, typer.Option("--host", help="The address to listen on; 127.0.0.1 by default.")] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="The page asks for the token in this file; made if need be.")
    ] = None,
    expose_unencrypted: Annotated[
        bool,
        typer.Option("--expose-unencrypted", help="Let other machines in; what they send and see is not encrypted."),
    ] = False,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A name by which other machines call this one; may be repeated.")
    ] = None,
    plugin: Plugins = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in a browser.")] = False,
) -> None:
    """Show a local web page: drop a file or pick a patient, see the inferred force, compare with a full fit.

    Only this machine can reach it, it needs no internet, and nothing of a session is kept. Examples:

    - `distlfm serve runs/operator`

    - `distlfm serve runs/operator --data patients/ --token-file token.txt`

    - `distlfm serve runs/operator --data series.csv data.columns.time=hours 'data.columns.values=[a, b]'`
    """
    for module in ("starlette", "uvicorn"):
        require(module, "serve")
    from distlfm.pipeline.query import named_data
    from distlfm.serve.server import serve as run_serve
    from distlfm.serve.settings import ServeConfig

    given = {"fit": fit, "port": port, "host": host, "token_file": token_file, "names": name}
    content: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    content |= {"checkpoint": str(checkpoint), "expose_unencrypted": expose_unencrypted}
    content["data"] = {} if data is None else named_data(data)
    config = build(
        ServeConfig, apply_overrides(content, [*(overrides or []), *plugins_override(plugin)]), source="serve"
    )
    run_serve(config, STATE.reporter, typer.launch if show else None)
