"""`distlfm submit`: a verb as a Slurm job. It gets the config that was checked, whatever becomes of the file."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from distlfm.cluster.queue import send
from distlfm.cluster.sbatch import BatchScript, Resources, ends_awaited
from distlfm.cluster.slurm import COMPLETE
from distlfm.config import Config, dump
from distlfm.errors import StorageError, UsageError, WorkError
from distlfm.pipeline.submit_check import Setting, checked
from distlfm.pipeline.submit_jobs import JobNote, add_note, jobs_folder, new_name, notes_of, refuse_busy
from distlfm.store.files import put_all, remove, storing

RAY, ARRAY, MPI, DDP = (f"distlfm.launch.{name}" for name in ("ray_cluster", "array", "mpi_group", "ddp"))
CPUS = {RAY: 8, DDP: 8, ARRAY: 1, MPI: 1}
"""Of a task, unless it is said: Ray has one task a node, which uses all of them."""

MPI_MEMORY = "4G"
"""Of a rank: it holds the factors of its part of a mesh."""

SITE_VARIABLE, SITE_FILE = "DISTLFM_SITE", Path("slurm/site.sh")


@dataclass(frozen=True)
class Job:
    """A job that is ready to be sent. run: the folder or store that it works on."""

    verb: str
    run: Path
    config: Config
    script: BatchScript
    name: str

    @property
    def text(self) -> str:
        return self.script.text()


def plan(
    verb: str,
    config: Path,
    overrides: Sequence[str],
    asked: Resources,
    *,
    mpi_ranks: int | None = None,
    site: Path | None = None,
) -> Job:
    """The job that does a verb: its config is checked, nothing is written. asked.cpus: 0 is as many as are usual.

    mpi_ranks: of a fit whose meshes are divided among so many processes on all of its nodes.
    """
    program = _program(verb, asked, mpi_ranks)
    asked = replace(asked, cpus=asked.cpus or CPUS[program])
    if program == MPI:
        assert mpi_ranks is not None
        asked = replace(asked, tasks_per_node=_each(mpi_ranks, asked.nodes), memory_per_cpu=MPI_MEMORY)
        overrides = [*overrides, f"mechanism.ranks={mpi_ranks}"]  # as the job will have it
    setting = Setting(tasks=asked.nodes * asked.tasks_per_node, shared=program == RAY, waits=bool(asked.dependency))
    found: Any = checked(verb, config, overrides, setting)
    run: Path = found.run.dir
    folder = jobs_folder(run)
    name = new_name(folder, verb)
    script = BatchScript(
        name=f"distlfm-{verb}{'-mpi' if program == MPI else ''}",
        resources=asked,
        command=(program, verb, str(folder / f"{name}.yaml")),
        python=sys.executable,
        folder=Path.cwd(),
        logs=folder,
        site=_site(site),
        survives=program == RAY,
        variables=((COMPLETE, str(run)),) if verb == "fit" else (),
    )
    script.text()  # what it cannot hold is told now
    return Job(verb, run, found, script, name)


def submit(job: Job) -> JobNote:
    """Queue a job, and note it beside its run. Refused while another one works on the same run or waits to, unless
    this job waits for the end of that one."""
    refuse_busy(job.run, _awaited(job))
    folder = job.script.logs
    script, config = folder / f"{job.name}.sbatch", folder / f"{job.name}.yaml"
    with storing("the job's script", folder):
        folder.mkdir(parents=True, exist_ok=True)
        put_all({config: dump(job.config).encode(), script: job.text.encode()})
    try:
        number = send(script, job.script.site)
    except BaseException:
        for file in (script, config):
            remove(file)
        with suppress(OSError):  # earlier jobs are in it
            folder.rmdir()
        raise
    note = JobNote(
        job=number,
        verb=job.verb,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        nodes=job.script.resources.nodes,
        config=str(config),
        script=str(script),
        log=str(job.script.log(number)),
    )
    try:
        add_note(folder, note)
    except StorageError as error:
        fix = f"Stop it (scancel {number}), mend that, and submit again."
        raise WorkError(f"{error.cause} Job {number} is queued, and no other command knows of it.", fix) from error
    return note


def _program(verb: str, asked: Resources, mpi_ranks: int | None) -> str:
    if verb != "fit" and (asked.array or mpi_ranks is not None):
        option = "--array" if asked.array else "--mpi-ranks"
        raise UsageError(f"{option} is for fits, not for {verb}.", f"Leave {option} out.")
    if asked.array and mpi_ranks is not None:
        raise UsageError("A task of an array is one process.", "Give --array or --mpi-ranks, not both.")
    if verb != "train" and (asked.gpus or asked.tasks_per_node != 1):
        option = "--gpus" if asked.gpus else "--tasks"
        raise UsageError(f"{option} is for trainings, not for {verb}.", f"Leave {option} out; --cpus says how many.")
    if asked.array:
        return ARRAY
    if mpi_ranks is not None:
        return MPI
    return DDP if verb == "train" else RAY


def _each(ranks: int, nodes: int) -> int:
    if ranks % nodes:
        raise UsageError(
            f"{ranks} ranks cannot be shared evenly by {nodes} nodes.", f"Give a multiple of {nodes} for --mpi-ranks."
        )
    return ranks // nodes


def _site(given: Path | None) -> Path | None:
    """The file that a job sources first: the one that is given, or DISTLFM_SITE, or slurm/site.sh if it is there."""
    named = given or (Path(os.environ[SITE_VARIABLE]) if os.environ.get(SITE_VARIABLE) else None)
    if named is None:
        return SITE_FILE.absolute() if SITE_FILE.is_file() else None
    if not named.is_file():
        raise UsageError(f"There is no site file {named}.", "slurm/site.example.sh is one to copy and change.")
    return named.absolute()


def _awaited(job: Job) -> set[str]:
    """Numbers of this run's jobs, and of others, that have ended when this one begins."""
    asked = job.script.resources
    found = ends_awaited(asked.dependency)
    if "singleton" in asked.dependency.split(","):  # it waits for all that have its name
        found |= {note.job for note in notes_of(job.run) if note.log == str(job.script.log(note.job))}
    return found
