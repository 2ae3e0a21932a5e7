"""`distlfm simulate`, `distlfm fit` and `distlfm demo`.

What computes is imported by the verb that needs it: help and completion must not wait for it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from distlfm.cli.state import STATE
from distlfm.config import apply_overrides, build, dump, load, read_yaml
from distlfm.errors import UsageError
from distlfm.runtime.reporting import Reporter

if TYPE_CHECKING:
    from distlfm.pipeline.fit import FitRun

Overrides = Annotated[list[str] | None, typer.Argument(help="key.sub=value, as many as you like.")]


def simulate(
    mechanism: Annotated[str, typer.Argument(help="A mechanism, such as transcription, or a config file.")],
    overrides: Overrides = None,
    out: Annotated[Path, typer.Option("--out", help="The .npz file to write.")] = Path("instances.npz"),
    instances: Annotated[int | None, typer.Option("--instances", min=1, help="How many; 8 by default.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Everything random follows from it.")] = None,
) -> None:
    """Draw instances from a model's priors, with their true forces and parameters.

    Examples:

    - `distlfm simulate transcription --instances 20 --out toy.npz`

    - `distlfm simulate transcription mechanism.response.kind=softplus points=24 --out softplus.npz`

    - `distlfm simulate configs/simulate/reaction_diffusion_2d.yaml --out square.npz`
    """
    from distlfm.data import write_npz
    from distlfm.pipeline.settings import SimulateConfig
    from distlfm.pipeline.simulate import simulate_from

    given = {name: value for name, value in (("instances", instances), ("seed", seed)) if value is not None}
    if mechanism.endswith((".yaml", ".yml")):
        content = read_yaml(Path(mechanism)) | given
    else:
        content = {"mechanism": {"kind": mechanism}, **given}
    config = build(SimulateConfig, apply_overrides(content, overrides or []), source="simulate")
    if out.suffix != ".npz":
        raise UsageError(f"{out} is no .npz file.", "Give --out a name that ends in .npz.")
    found = simulate_from(config)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_npz(out, found)
        out.with_suffix(".yaml").write_text(dump(config), encoding="utf-8")
    except OSError as error:
        raise UsageError(f"Cannot write {out}: {error.strerror}.", "Choose another --out file.") from None
    STATE.reporter.say(f"{len(found)} instances of {config.mechanism['kind']} with their truth are in {out}")


def fit(
    config: Annotated[Path, typer.Argument(help="A config file, such as configs/fit/p53.yaml.")],
    overrides: Overrides = None,
    data: Annotated[Path | None, typer.Option("--data", help="Short for data.path=PATH.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Short for run.dir=DIR.")] = None,
    mpi_ranks: Annotated[
        int | None, typer.Option("--mpi-ranks", min=1, help="Divide the mesh of a PDE among so many MPI processes.")
    ] = None,
) -> int:
    """Infer the latent forces of instances, with bands, parameters and a report.

    Exit code 1 if an instance failed or was set aside. Examples:

    - `distlfm fit configs/fit/transcription_toy.yaml --data toy.npz --out runs/toy`

    - `distlfm fit configs/fit/p53.yaml --out runs/p53 inference.restarts=10`
    """
    from distlfm.pipeline.fit import fit as run_fit
    from distlfm.pipeline.settings import FitConfig

    settings = list(overrides or [])
    if data is not None:
        settings.append(f"data.path={json.dumps(str(data))}")
    if out is not None:
        settings.append(f"run.dir={json.dumps(str(out))}")
    if mpi_ranks is not None:
        settings.append(f"mechanism.ranks={mpi_ranks}")
    run = run_fit(load(FitConfig, config, settings), reporter=STATE.reporter)
    tell(run, STATE.reporter)
    return 1 if run.set_aside or not all(digest.ok for digest in run.digests) else 0


def tell(run: FitRun, reporter: Reporter) -> None:
    """The figures of a run, worst last, and where everything is."""
    names = ("output_q2", "latent_q2", "latent_coverage_95", "parameter_mae_sum", "seconds")
    rows = [
        [str(row["id"]), str(row["status"]), *("–" if row[name] is None else f"{row[name]:.4g}" for name in names)]
        for row in run.figures[:20]
    ]
    reporter.table("", ("instance", "status", *names), rows)
    if len(run.figures) > len(rows):
        reporter.say(f"… and {len(run.figures) - len(rows)} more")
    for digest in run.digests:
        if digest.advice:
            reporter.warn(f"{digest.id}: {digest.status}. {digest.advice}")
    if run.config.run.dir is not None:
        reporter.say(f"summary: {run.config.run.dir / 'summary.json'}")
        reporter.say(f"report: {run.config.run.dir / 'report.html'}")


def demo(
    out: Annotated[Path, typer.Option("--out", help="Where the demonstration writes.")] = Path("runs/demo"),
) -> int:
    """Show the main job end to end on this machine: simulate, fit, look.

    Example: `distlfm demo --out runs/demo`
    """
    from distlfm.pipeline import demo as acts

    return acts.run(out, STATE.reporter)
