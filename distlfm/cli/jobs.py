"""`distlfm doctor`, `status` and `submit`: what works on this machine, how far a run is, and a verb as a Slurm job."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from distlfm.cli.options import STATE, AsJson, Overrides, Plugins, RunFolder, as_overrides, say
from distlfm.errors import UsageError

PLACES = {"fit": "data.path", "train": "data.stores", "tune": "train.data.stores"}


def submit(
    verb: Annotated[str, Argument(help="fit, generate, train or tune.")],
    config: Annotated[Path, Argument(help="Its config file.")],
    time: Annotated[str, Option("--time", help="Time limit: 90 (minutes), 12:00:00 or 2-00:00 (days).")],
    overrides: Overrides = None,
    data: Annotated[list[Path] | None, Option("--data", help="Data of the verb; for train and tune, stores.")] = None,
    out: RunFolder = None,
    nodes: Annotated[int, Option("--nodes", min=1, help="Number of nodes.")] = 1,
    cpus: Annotated[int, Option("--cpus", min=0, help="CPUs per task; 0 means 8, or 1 with --array and MPI.")] = 0,
    tasks: Annotated[int, Option("--tasks", min=1, help="For train: processes per node.")] = 1,
    gpus: Annotated[int, Option("--gpus", min=0, help="For train: GPUs per node, with one process each.")] = 0,
    memory: Annotated[str, Option("--memory", help="Memory per node, such as 64G; else 2G per CPU.")] = "",
    array: Annotated[str, Option("--array", help="Number of jobs of a fit without Ray: 16, or 16%4 at once.")] = "",
    mpi_ranks: Annotated[
        int | None, Option("--mpi-ranks", min=1, help="Number of processes that share the mesh of a PDE.")
    ] = None,
    dependency: Annotated[str, Option("--dependency", help="Begin after a job: 17, or afterany:17:18.")] = "",
    partition: Annotated[str, Option("--partition", help="Partition of the cluster.")] = "",
    account: Annotated[str, Option("--account", help="Account that is charged.")] = "",
    sbatch: Annotated[list[str] | None, Option("--sbatch", help="Any other option: --sbatch=--qos=long.")] = None,
    site: Annotated[Path | None, Option("--site", help="A file to source first; slurm/site.sh if it is there.")] = None,
    plugin: Plugins = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the script, and queue nothing.")] = False,
    estimate: Annotated[
        bool, Option("--estimate", help="Fit a few instances here, say what the job will cost, and queue nothing.")
    ] = False,
) -> None:
    """Queue a verb as a Slurm job: fit, generate and tune on a Ray of its nodes, train by DDP.

    The config is checked first and kept as it is. A job that its time ends, or that is preempted, writes what it has
    and is queued again. Examples:

    - `distlfm submit fit genes.yaml --data stores/genes.zarr --out runs/genes --nodes 4 --cpus 32 --time 2:00:00`

    - `distlfm submit fit genes.yaml --data stores/genes.zarr --out runs/genes --array 64%16 --time 60 --dry-run`

    - `distlfm submit train configs/train/transcription.yaml --out runs/operator --gpus 4 --time 60 --dependency 17`
    """
    from distlfm.cluster.machine import usable_cpus
    from distlfm.cluster.slurm.script import Resources
    from distlfm.runs.settings import FitConfig
    from distlfm.verbs.estimate import estimate as probe
    from distlfm.verbs.estimate import of_job
    from distlfm.verbs.submit import plan
    from distlfm.verbs.submit import submit as run_submit

    asked = Resources(
        nodes=nodes,
        time=time,
        tasks_per_node=gpus or tasks,
        cpus=cpus,
        gpus=gpus,
        memory=memory,
        partition=partition,
        account=account,
        array=array,
        dependency=dependency,
        others=tuple(sbatch or ()),
    )
    if data and (verb not in PLACES or (verb == "fit" and len(data) > 1)):
        raise UsageError(f"--data {data[-1]} is one too many for {verb}.", "Leave it out.")
    given: dict[str, object] = {"run.dir": out, "train.plugins" if verb == "tune" else "plugins": plugin}
    if data:
        given[PLACES[verb]] = data[0] if verb == "fit" else data
    settings = as_overrides(given, overrides)
    job = plan(verb, config, settings, asked, mpi_ranks, site)
    if dry_run:
        typer.echo(job.script.text(), nl=False)
        return
    if estimate:
        if not isinstance(job.config, FitConfig) or job.script.resources.tasks_per_node > 1:
            raise UsageError("--estimate is for fits on one core each.", "Leave it out.")
        cost = probe(job.config)
        say(*cost.lines(usable_cpus()), *of_job(cost, job.script.resources))
        return
    note = run_submit(job)
    where = shlex.quote(str(out or job.run))
    say(f"job {note.job}: {verb} on {nodes} node{'s' if nodes > 1 else ''}, for {time} at most")
    say(f"script: {note.script}")
    say(f"log: {note.log}")
    say(f"to follow it: distlfm status {where}; to stop it: scancel {note.job}")


def doctor(
    directory: Annotated[Path, Option("--dir", help="Directory to test for speed and renames.")] = Path("."),
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

    state = look(run)
    stopped = state.state == "stopped"
    if as_json:
        typer.echo(json.dumps(state.plain()))
        return int(stopped)
    what = f"{state.kind} of {state.mechanism}" if state.mechanism else state.kind
    say(f"{state.path}: {what}, {state.state}")
    if state.total:
        share = 100 * state.done / state.total
        blocks = f"; {state.blocks_done}/{state.blocks} blocks" if state.blocks else ""
        counts = f"{state.failed} failed, {state.running} running{blocks}"
        say(f"{state.done}/{state.total} {state.unit} done ({share:.0f} %), {counts}")
    if state.statuses:
        say("ended as: " + ", ".join(f"{count} {name}" for name, count in sorted(state.statuses.items())))
    if state.driver is not None:
        speed = "" if not state.rate else f", {state.rate:.3g} instances/s"
        left = "" if state.left_s is None else f", {state.left_s:.0f} s left"
        others = f", and {state.others} more with their parts" if state.others else ""
        workers = 1 + state.others if state.workers is None else state.workers
        say(f"worked on by {state.driver}{others}, {workers} workers{speed}{left}")
    say(*(f"{job.words}; log: {job.note.log}" for job in state.jobs))
    if stopped:
        lacking = "; only its report is missing" if state.blocks and state.blocks_done == state.blocks else ""
        say(f"nobody works on it{lacking}; to go on: {state.command}")
    return int(stopped)
