"""`distlfm simulate`, `fit`, `resume`, `demo` and `generate`.

What computes is imported by the verb that needs it: help and completion must not wait for it.
"""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from distlfm.cli.options import MOST_LISTED, STATE, Address, AsJson, Overrides, Plugins, as_overrides, number, say
from distlfm.config import apply_overrides, build, dump, read_yaml
from distlfm.errors import UsageError

if TYPE_CHECKING:
    from distlfm.runtime.reporting import Reporter
    from distlfm.verbs.fit import FitRun


Executor = Annotated[
    str | None, Option("--executor", help="auto, ray, or serial, which needs no Ray. Short for run.executor.")
]
Workers = Annotated[int | None, Option("--workers", min=1, help="Maximum number of blocks in flight.")]


def simulate(
    mechanism: Annotated[str, Argument(help="A mechanism, such as transcription, or a config file.")],
    overrides: Overrides = None,
    out: Annotated[Path, Option("--out", help="The .npz file to write.")] = Path("instances.npz"),
    instances: Annotated[int | None, Option("--instances", min=1, help="Number of instances; 8 by default.")] = None,
    seed: Annotated[int | None, Option("--seed", help="Seed of everything random.")] = None,
    plugin: Plugins = None,
) -> None:
    """Draw instances from a model's priors, with their true forces and parameters.

    The resolved config is written beside them: `toy.simulate.yaml` for `toy.npz`. Examples:

    - `distlfm simulate transcription --instances 20 --out toy.npz`

    - `distlfm simulate transcription mechanism.response.kind=softplus points=24 --out softplus.npz`

    - `distlfm simulate configs/simulate/reaction_diffusion_2d.yaml --out square.npz`
    """
    from distlfm.data import write_npz
    from distlfm.runs.settings import SimulateConfig
    from distlfm.simulation.instances import simulate_from
    from distlfm.store.files import no_place, put_quickly

    is_file = mechanism.endswith((".yaml", ".yml"))
    content = read_yaml(Path(mechanism)) if is_file else {"mechanism": {"kind": mechanism}}
    settings = as_overrides({"instances": instances, "seed": seed, "plugins": plugin}, overrides)
    config = build(SimulateConfig, apply_overrides(content, settings), source="simulate")
    if out.suffix != ".npz":
        raise UsageError(f"{out} is not an .npz file.", "Give --out a name that ends in .npz.")
    found = simulate_from(config)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        # NAME.yaml is where people keep the config of the fit of NAME.npz.
        put_quickly(out.with_suffix(".simulate.yaml"), dump(config).encode())
        write_npz(out, found)
    except OSError as error:
        raise no_place(out, error, "file") from None
    kind, few = config.mechanism["kind"], len(found) == 1
    what = (
        f"1 instance of {kind} with its truth is" if few else f"{len(found)} instances of {kind} with their truth are"
    )
    say(f"{what} in {out}")


def fit(
    config: Annotated[Path, Argument(help="A config file, such as configs/fit/p53.yaml.")],
    overrides: Overrides = None,
    data: Annotated[
        Path | None, Option("--data", help="A file, a folder or a store. Short for data.path=PATH.")
    ] = None,
    out: Annotated[
        Path | None, Option("--out", help="The run's folder, with its report. Short for run.dir=DIR.")
    ] = None,
    mpi_ranks: Annotated[
        int | None, Option("--mpi-ranks", min=1, help="Number of MPI processes that share the mesh of a PDE.")
    ] = None,
    executor: Executor = None,
    workers: Workers = None,
    address: Address = None,
    part: Annotated[
        str | None, Option("--part", help="Work on this share of the blocks, such as 2/16; others do the rest.")
    ] = None,
    estimate: Annotated[
        bool, Option("--estimate", help="Fit a few instances, say what all will cost, and keep nothing.")
    ] = False,
    as_json: AsJson = False,
    plugin: Plugins = None,
) -> int:
    """Infer the latent forces of instances, with bands, parameters and a report.

    A large fleet is shared among the cores of this machine by Ray, or among those of a cluster with `--address`; with
    `--part`, among machines that share a file system. Repeat the command to go on where it was stopped. Exit code 1
    if an instance failed or was set aside. Examples:

    - `distlfm fit configs/fit/transcription.yaml --data toy.npz --out runs/toy`

    - `distlfm fit configs/fit/p53.yaml --out runs/p53 inference.restarts=10`

    - `distlfm fit configs/fit/transcription.yaml --data STORE --out runs/fleet --workers 2`

    - `distlfm fit configs/fit/transcription.yaml --data STORE --estimate`
    """
    from distlfm.cluster.blocks.ledger import share_of
    from distlfm.verbs.estimate import tell_estimate
    from distlfm.verbs.fit import fit as run_fit
    from distlfm.verbs.fit import fit_part

    where = {"data.path": data, "run.dir": out, "mechanism.ranks": mpi_ranks, "plugins": plugin}
    settings = as_overrides({**where, **_workers(executor, workers, address)}, overrides)
    reporter = STATE.reporter
    if as_json and not estimate:
        raise UsageError("--json is for --estimate.", "The figures of a fit are in its summary.json.")
    if estimate:
        say(*tell_estimate(config, settings, as_json=as_json))
        return 0
    if part is None:
        return tell(run_fit(config, overrides=settings, reporter=reporter), reporter)
    fitted = fit_part(config, share_of(part), settings, reporter)
    reporter.say(
        f"part {fitted.share}: {fitted.count} instances, {fitted.failed} failed; {fitted.left} are left to others"
    )
    code = 0 if fitted.run is None else tell(fitted.run, reporter)
    return 1 if fitted.failed else code


def resume(
    run: Annotated[Path, Argument(help="The folder of a fit, a training or a sweep, or a store.")],
    executor: Executor = None,
    workers: Workers = None,
    address: Address = None,
) -> int:
    """Go on with a run that was stopped or killed; what is done is not done again.

    Example: `distlfm resume runs/fleet`
    """
    from distlfm.cli.train import tell_training
    from distlfm.store import Store, is_store
    from distlfm.verbs.fit import resume as resume_fit
    from distlfm.verbs.generate import resume_generate
    from distlfm.verbs.train import resume_train
    from distlfm.verbs.tune import tune

    kept = run / "config.yaml"
    if not kept.is_file() and not is_store(run):
        fix = "Give the --out folder of `distlfm fit`, `train` or `tune`, or the store of `distlfm generate`."
        raise UsageError(f"{run} is not a run: it has no config.yaml.", fix)
    verb = read_yaml(kept).get("verb") if kept.is_file() else None
    if verb not in (None, "fit", "generate", "train", "tune"):
        cause = f"{run} has the config of a verb that is not resumed: {verb}."
        raise UsageError(cause, "Repeat the command that began it.")
    trains = verb in ("train", "tune")  # their launcher is kept; it is not an executor
    settings = as_overrides(_workers(None if trains else executor, workers, address))
    if verb == "train":
        tell_training(resume_train(run, settings, STATE.reporter))
    elif verb == "tune":
        tune(kept, settings, STATE.reporter)
    elif is_store(run) and Store.open(run).spec.kind == "generate":
        resume_generate(run, settings, STATE.reporter)
    else:
        return tell(resume_fit(run, settings, STATE.reporter), STATE.reporter)
    return 0


def _workers(executor: str | None, workers: int | None, address: str | None) -> dict[str, object]:
    """The options that say who computes, by their keys."""
    return {"run.executor": executor, "run.workers": workers, "run.address": address}


def tell(run: FitRun, reporter: Reporter) -> int:
    """The figures of a run, worst last, and where everything is. Gives the exit code."""
    names = ("output_q2", "latent_q2", "latent_coverage_95", "parameter_mae_sum", "seconds")
    count = run.tally.count
    first = list(islice(run.rows(), MOST_LISTED))
    shown = [name for name in names if not first or any(row[name] is not None for row in first)]
    rows = [[str(row["id"]), str(row["status"]), *(number(row[name]) for name in shown)] for row in first]
    reporter.table("", ("instance", "status", *shown), rows)
    if count > len(rows):
        mean, worst = run.tally.overall()
        for name, over in (("mean", mean), ("worst", worst)):
            code = [f"{key} {over[key]:.4g}" for key in names if over[key] is not None]
            reporter.say(f"{name} of all {count}: {', '.join(code)}")
    for row in run.tally.troubled[:MOST_LISTED]:
        if row.get("advice"):
            reporter.warn(f"{row['id']}: {row['status']}. {row['advice']}")
    if count > 1 and (doubted := run.tally.unreliable):
        reporter.warn(
            f"{doubted} of {count} answers {'is' if doubted == 1 else 'are'} unreliable: they failed a check of what "
            "they claim, and no operator learns from them; summary.json and the report say why, and what to do"
        )
    if run.tally.num_troubled > MOST_LISTED:
        troubled = f"{run.tally.num_troubled} of {count} did not converge, are unreliable, or converged with a warning"
        reporter.warn(f"{troubled}; the report says which and why")
    if run.tally.count and (poor := int((run.tally.column("output_q2") < 0).sum())):
        reporter.warn(
            f"{poor} of {count} fits describe their data worse than a constant does (output_q2 below 0): "
            "check the units of times and values against the priors of the config, and whether it leaves enough "
            "observations for the fit (data.stride, data.fraction)"
        )
    if run.config.run.dir is not None:
        reporter.say(f"summary: {run.config.run.dir / 'summary.json'}")
        reporter.say(f"report: {run.config.run.dir / 'report.html'}")
    else:
        reporter.say("nothing was written: --out FOLDER keeps the results, with a report")
    return 1 if run.set_aside or run.tally.failed else 0


def demo(out: Annotated[Path, Option("--out", help="Folder of the demonstration.")] = Path("runs/demo")) -> int:
    """Show the main jobs end to end on this machine, one act after another, each with its figures.

    Example: `distlfm demo --out runs/demo`
    """
    from distlfm.report.demo import Showing
    from distlfm.verbs import demo as acts
    from distlfm.verbs.demo import Act

    sites = out / "sites"

    def federation() -> Showing:
        from distlfm.federated.simulation.run import act

        return act(sites, STATE.reporter)

    title = "let four hospitals tune an operator for glucose without sharing a patient"
    return acts.run(out, STATE.reporter, [Act(title, federation, {"configs": str(sites)}, sites)])


def generate(
    config: Annotated[Path, Argument(help="A config file, such as configs/generate/transcription.yaml.")],
    overrides: Overrides = None,
    instances: Annotated[int | None, Option("--instances", min=1, help="Number of instances to draw.")] = None,
    out: Annotated[Path | None, Option("--out", help="The store to write. Short for run.dir=DIR.")] = None,
    seed: Annotated[int | None, Option("--seed", help="Seed of everything random.")] = None,
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
    from distlfm.verbs.generate import generate as run_generate

    where = {"run.dir": out, "instances": instances, "seed": seed, "plugins": plugin}
    settings = as_overrides({**where, **_workers(executor, workers, address)}, overrides)
    store = run_generate(config, settings, STATE.reporter)
    say(f"{store.spec.instances} instances of {store.spec.attributes['mechanism']} are in {store.path}")
