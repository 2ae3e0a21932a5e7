"""`distlfm submit`: a verb as a Slurm job."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from distlfm.cli.options import STATE, Overrides, Plugins, RunFolder, as_overrides, plugins_override

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
) -> None:
    """Queue a verb as a Slurm job: fit, generate and tune on a Ray of its nodes, train by DDP.

    The config is checked first and kept as it is. A job that its time ends, or that is preempted, writes what it has
    and is queued again. Examples:

    - `distlfm submit fit genes.yaml --data stores/genes.zarr --out runs/genes --nodes 4 --cpus 32 --time 2:00:00`

    - `distlfm submit fit genes.yaml --data stores/genes.zarr --out runs/genes --array 64%16 --time 60 --dry-run`

    - `distlfm submit train configs/train/transcription.yaml --out runs/operator --gpus 4 --time 60 --dependency 17`
    """
    from distlfm.cluster.slurm.script import Resources
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
    plugins = plugins_override(plugin, "train.plugins" if verb == "tune" else "plugins")
    settings = [*(overrides or []), *_data(verb, data or []), *as_overrides({"run.dir": out}), *plugins]
    job = plan(verb, config, settings, asked, mpi_ranks=mpi_ranks, site=site)
    if dry_run:
        typer.echo(job.text, nl=False)
        return
    note = run_submit(job)
    reporter, where = STATE.reporter, shlex.quote(str(out or job.run))
    reporter.say(f"job {note.job}: {verb} on {nodes} node{'s' if nodes > 1 else ''}, for {time} at most")
    reporter.say(f"script: {note.script}")
    reporter.say(f"log: {note.log}")
    reporter.say(f"to follow it: distlfm status {where}; to stop it: scancel {note.job}")


def _data(verb: str, paths: list[Path]) -> list[str]:
    """--data as overrides of the verb's config."""
    from distlfm.errors import UsageError

    if not paths:
        return []
    if verb not in PLACES or (verb == "fit" and len(paths) > 1):
        raise UsageError(f"--data {paths[-1]} is one too many for {verb}.", "Leave it out.")
    value = str(paths[0]) if verb == "fit" else [str(path) for path in paths]
    return [f"{PLACES[verb]}={json.dumps(value)}"]
