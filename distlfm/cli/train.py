"""`distlfm train`, `distlfm tune` and `distlfm evaluate`: making a latent force operator, and judging it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from distlfm.cli.options import STATE, Address, Overrides, Plugins, RunFolder, as_overrides, number, say

if TYPE_CHECKING:
    from distlfm.verbs.evaluate import Evaluation
    from distlfm.verbs.train import TrainRun

Stores = Annotated[
    list[Path] | None, Option("--data", help="A store to learn from; may be given again. Short for data.stores.")
]
Launcher = Annotated[str | None, Option("--launcher", help="auto, inline, ddp or ray. Short for run.launcher.")]
Workers = Annotated[int | None, Option("--workers", min=1, help="Number of training processes.")]
Start = Annotated[Path | None, Option("--start", help="A trained operator to go on from. Short for start=CHECKPOINT.")]
Observations = Annotated[
    Path | None, Option("--observations", help="Data without labels to learn from. Short for data.observations.path.")
]
Checkpoint = Annotated[Path, Argument(help="A trained operator: its checkpoint, or the folder of its training.")]


def train(
    config: Annotated[Path, Argument(help="A config file, such as configs/train/transcription.yaml.")],
    overrides: Overrides = None,
    data: Stores = None,
    start: Start = None,
    observations: Observations = None,
    out: RunFolder = None,
    launcher: Launcher = None,
    workers: Workers = None,
    address: Address = None,
    plugin: Plugins = None,
) -> None:
    """Train an operator that answers new data in milliseconds, on a store of generated or fitted instances.

    Repeat the command to go on where it was stopped. Examples:

    - `distlfm train configs/train/transcription.yaml --data stores/transcription.zarr --out runs/operator`

    - `distlfm train configs/train/transcription.yaml --data stores/a.zarr --out runs/operator --workers 2`

    - `torchrun --nproc-per-node 2 -m distlfm train configs/train/transcription.yaml --out runs/operator`

    - `distlfm train configs/train/observed.yaml --start runs/operator --observations measured.csv --out runs/tuned`
    """
    from distlfm.verbs.train import train as run_train

    given = {"data.stores": data, "start": start, "data.observations.path": observations, "plugins": plugin}
    where = {"run.dir": out, "run.launcher": launcher, "run.workers": workers, "run.address": address}
    tell_training(run_train(config, as_overrides({**given, **where}, overrides), STATE.reporter))


def tell_training(run: TrainRun) -> None:
    """Say what a training reached, and where everything is."""
    if not run.is_main:
        return
    best = run.summary.get("best") or {}
    names = ("loss", "q2", "reconstruction")
    figures = [f"{name} {best[f'validation_{name}']:.4g}" for name in names if f"validation_{name}" in best]
    say(f"{run.summary['epochs']} epochs; validation: {', '.join(figures) or 'none'}")
    if run.directory is not None:
        say(f"operator: {run.directory / 'operator.pt'}", f"report: {run.directory / 'report.html'}")


def tune(
    config: Annotated[Path, Argument(help="A config file, such as configs/tune/transcription.yaml.")],
    overrides: Overrides = None,
    data: Stores = None,
    out: RunFolder = None,
    trials: Annotated[int | None, Option("--trials", min=1, help="Number of trainings to try.")] = None,
    workers: Annotated[int | None, Option("--workers", min=1, help="Maximum number of trials at a time.")] = None,
    address: Address = None,
    plugin: Plugins = None,
) -> None:
    """Search for the settings with which an operator learns best, many trainings at a time.

    The winner is written as best.yaml, a config that `distlfm train` takes. Repeat the command to go on. Examples:

    - `distlfm tune configs/tune/transcription.yaml --data stores/transcription.zarr --out runs/sweep`

    - `distlfm tune configs/tune/transcription.yaml --out runs/sweep --trials 50 --address auto`
    """
    from distlfm.verbs.tune import tune as run_tune

    given = {"train.data.stores": data, "search.trials": trials, "train.plugins": plugin}
    where = {"run.dir": out, "run.workers": workers, "run.address": address}
    run_tune(config, as_overrides({**given, **where}, overrides), STATE.reporter)


def evaluate(
    checkpoint: Checkpoint,
    store: Annotated[Path, Argument(help="A generated store, or a run of `distlfm fit`.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, Option("--out", help="Where summary.json and report.html go.")] = None,
    limit: Annotated[int | None, Option("--limit", min=1, help="Maximum number of instances to evaluate.")] = None,
    plugin: Plugins = None,
) -> int:
    """Compare an operator's answers with the truth of a generated store, or with the fits of a fitted one.

    Use only the validation split of a store that the operator was trained on, unless `part=all` is given.
    Exit code 1 if an instance could not be answered. Examples:

    - `distlfm evaluate runs/operator stores/fresh.zarr --out runs/judged`

    - `distlfm evaluate runs/operator/operator.pt runs/fleet part=all --limit 500`
    """
    from distlfm.verbs.evaluate import evaluate as run_evaluate

    settings = as_overrides({"run.dir": out, "limit": limit, "plugins": plugin}, overrides)
    evaluation = run_evaluate(checkpoint, store, settings, STATE.reporter)
    _tell(evaluation)
    if out is not None:
        say(f"summary: {out / 'summary.json'}", f"report: {out / 'report.html'}")
    return 1 if evaluation.tally.failed else 0


def _tell(found: Evaluation) -> None:
    overall = found.overall
    say(found.what)
    names = ("latent_q2", "latent_correlation", "latent_coverage_68", "latent_coverage_95", "parameter_mae_sum")
    sides = (overall["mean"], overall["worst"])
    rows = [[name.replace("_", " "), *(number(side[name]) for side in sides)] for name in names]
    STATE.reporter.table("", ("figure", "mean", "worst"), rows)
    warned, share = overall["novelty"]["warned"], overall["novelty"]["share"]
    say(f"unlike the training data: {warned} ({100 * (share or 0.0):.1f} %)")
    speed = overall["speed"]
    if "seconds_for_one" in speed:
        each, many = 1000 * speed["seconds_for_one"], speed["instances_per_second"]
        say(f"time: {each:.2f} ms for one instance, {many:.0f} instances/s together")
