"""`distlfm generate`: a store of instances whose truth is known."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from distlfm.cli.fit import Address, Executor, Overrides, Workers, as_overrides, work_overrides
from distlfm.cli.plugins import Plugins, plugins_override
from distlfm.cli.state import STATE


def generate(
    config: Annotated[Path, typer.Argument(help="A config file, such as configs/generate/transcription.yaml.")],
    overrides: Overrides = None,
    instances: Annotated[int | None, typer.Option("--instances", min=1, help="How many to draw.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="The store to write. Short for run.dir=DIR.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Everything random follows from it.")] = None,
    executor: Executor = None,
    workers: Workers = None,
    address: Address = None,
    plugin: Plugins = None,
) -> None:
    """Draw forces and parameters from the priors of a config, solve forward, and keep all of it in a store.

    Repeat the command to go on where it was stopped. Examples:

    - `distlfm generate configs/generate/transcription.yaml --instances 2000 --out stores/transcription.zarr`

    - `distlfm generate configs/generate/glucose.yaml --instances 500 --out stores/days.zarr missing=0.1`
    """
    from distlfm.pipeline.generate import generate as run_generate

    short = [*as_overrides({"run.dir": out, "instances": instances, "seed": seed}), *plugins_override(plugin)]
    settings = [*(overrides or []), *short, *work_overrides(executor, workers, address)]
    store = run_generate(config, settings, STATE.reporter)
    STATE.reporter.say(f"{store.spec.instances} instances of {store.spec.attributes['mechanism']} are in {store.path}")
