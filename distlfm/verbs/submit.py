"""`distlfm submit`: a verb as a Slurm job. It gets the config that was checked, whatever becomes of the file.

What a job would refuse is refused before it is queued: each verb's own checks, as far as they are quick.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from distlfm.cluster.ranks.place import Place
from distlfm.cluster.slurm.allocation import COMPLETE
from distlfm.cluster.slurm.jobs import JobNote, add_note, jobs_folder, new_name, notes_of, refuse_busy, send
from distlfm.cluster.slurm.script import BatchScript, Resources, ends_awaited
from distlfm.config import Config, apply_overrides, dump, read_yaml
from distlfm.errors import DataError, StorageError, UsageError, WorkError
from distlfm.fleets import sources, spool
from distlfm.fleets.fit_plan import INPUT
from distlfm.runs.folder import refuse_others, same_settings
from distlfm.runs.settings import FitConfig, GenerateConfig, WorkConfig
from distlfm.runtime.reporting import Silent
from distlfm.store import Store, is_store
from distlfm.store.files import put_all, remove, storing
from distlfm.training import work
from distlfm.training.settings import TrainConfig, TuneConfig
from distlfm.verbs import generate, tune
from distlfm.verbs.config import load_any
from distlfm.verbs.train import launcher_for


@dataclass(frozen=True)
class Setting:
    """How a job will run. tasks: processes that Slurm starts; shared: whether a Ray shares its blocks among nodes.

    waits: another job comes first, so data may not be there yet.
    """

    tasks: int = 1
    shared: bool = True
    waits: bool = False


def checked(verb: str, path: Path, overrides: Sequence[str], setting: Setting) -> Config:
    """The config that a job gets, with absolute paths."""
    if verb == "evaluate":
        raise UsageError(
            "'evaluate' cannot be submitted: it is one quick process, and has no config.",
            "Queue its script: sbatch slurm/evaluate.sbatch OPERATOR STORE --out DIR",
        )
    if verb not in CHECKS:
        raise UsageError(f"{verb!r} cannot be submitted.", f"These can: {', '.join(CHECKS)}.")
    named = apply_overrides(read_yaml(path), overrides).get("verb", "fit")
    if named != verb:
        raise UsageError(f"{path} is a config of `distlfm {named}`.", f"Submit it as {named}, or give one of {verb}.")
    config: Any = load_any(path, overrides)
    if config.run.dir is None:
        raise UsageError("No folder is given for the results.", "Give --out DIR, or set run.dir in the config.")
    config = config.changed("run", dir=config.run.dir.absolute())
    if config.run.address is not None:
        raise UsageError(
            f"run.address is {config.run.address!r}, and a job starts a Ray of its own.", "Leave run.address out."
        )
    return CHECKS[verb](config, setting)


def _fit(config: FitConfig, setting: Setting) -> FitConfig:
    config, directory = config.located(), config.run.dir
    assert directory is not None
    _used(config.run, setting)
    refuse_others(directory, config)
    if is_store(directory):
        same_settings(Store.open(directory), config, config.run.batch)
    else:
        spool.refuse_others(directory / INPUT)
    if not setting.waits:
        first = sources.first_report(config.data)
        if first.set_aside and not first.instances:
            raise DataError(first.set_aside[0])
    return config


def _generate(config: GenerateConfig, setting: Setting) -> GenerateConfig:
    config = config.located()
    assert config.run.dir is not None
    _used(config.run, setting)
    if is_store(config.run.dir):
        generate.open_store(config, config.run.dir)
    elif config.run.dir.exists() and (not config.run.dir.is_dir() or any(config.run.dir.iterdir())):
        raise UsageError(f"{config.run.dir} is not empty.", "Choose a new place for the store.")
    return config


def _train(config: TrainConfig, setting: Setting) -> TrainConfig:
    config = config.resolved()
    assert config.run.dir is not None
    work.refuse_others(config.run.dir)
    if setting.tasks > 1:
        launcher_for(config.run, Place(world=setting.tasks, launcher="srun"))
    if not setting.waits:
        examples = work.open_examples(config)
        last = config.run.dir / work.CHECKPOINTS / work.LAST
        if last.exists():
            work.same_run(last, {"config": config.work(), "data": work.fingerprint_of(examples)})
    return config


def _tune(config: TuneConfig, setting: Setting) -> TuneConfig:
    config = config.model_copy(update={"train": config.train.resolved()})
    assert config.run.dir is not None
    tune.refuse_others(config.run.dir)
    tune.TrialLog(config, config.run.dir).resume(Silent())
    if not setting.waits:
        work.open_examples(config.train)
    return config


def _used(run: WorkConfig, setting: Setting) -> None:
    if run.executor == "serial" and setting.shared:
        raise UsageError(
            "run.executor is serial, which uses one process of all that the job asks for.",
            "Leave run.executor out, or give --array, whose tasks are one process each.",
        )


CHECKS: dict[str, Callable[[Any, Setting], Config]] = {
    "fit": _fit,
    "generate": _generate,
    "train": _train,
    "tune": _tune,
}
"""The verbs that can be submitted, each with what is checked before."""


RAY, ARRAY, MPI, DDP = (f"distlfm.launch.{name}" for name in ("ray_cluster", "array", "mpi_group", "ddp"))
CPUS = {RAY: 8, DDP: 8, ARRAY: 1, MPI: 1}
"""CPUs of a task by default: Ray has one task per node, which uses all of them."""

MPI_MEMORY = "4G"
"""Memory of a rank: it holds the factors of its part of a mesh."""

SITE_VARIABLE, SITE_FILE = "DISTLFM_SITE", Path("slurm/site.sh")


@dataclass(frozen=True)
class ReadyJob:
    """A job that is ready to be sent. run: the folder or store that it works on."""

    verb: str
    run: Path
    config: Config
    script: BatchScript
    name: str


def plan(
    verb: str, config: Path, overrides: Sequence[str], asked: Resources, mpi_ranks: int | None, site: Path | None
) -> ReadyJob:
    """The job that does a verb: its config is checked, nothing is written. asked.cpus: 0 is as many as are usual.

    mpi_ranks: of a fit whose meshes are divided among this many processes on all of its nodes.
    """
    program = _program(verb, asked, mpi_ranks)
    asked = replace(asked, cpus=asked.cpus or CPUS[program])
    if program == MPI:
        assert mpi_ranks is not None
        if mpi_ranks % asked.nodes:
            raise UsageError(
                f"{mpi_ranks} ranks cannot be shared evenly by {asked.nodes} nodes.",
                f"Give a multiple of {asked.nodes} for --mpi-ranks.",
            )
        asked = replace(asked, tasks_per_node=mpi_ranks // asked.nodes, memory_per_cpu=MPI_MEMORY)
        overrides = [*overrides, f"mechanism.ranks={mpi_ranks}"]  # as the job will have it
    setting = Setting(tasks=asked.nodes * asked.tasks_per_node, shared=program == RAY, waits=bool(asked.dependency))
    settled: Any = checked(verb, config, overrides, setting)
    run: Path = settled.run.dir
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
    script.text()  # what it cannot hold is refused now
    return ReadyJob(verb, run, settled, script, name)


def submit(job: ReadyJob) -> JobNote:
    """Queue a job, and note it beside its run. Refused while another one works on the same run or waits to, unless
    this job waits for the end of that one."""
    refuse_busy(job.run, _awaited(job))
    folder = job.script.logs
    script, config = folder / f"{job.name}.sbatch", folder / f"{job.name}.yaml"
    with storing("the job's script", folder):
        folder.mkdir(parents=True, exist_ok=True)
        put_all({config: dump(job.config).encode(), script: job.script.text().encode()})
    try:
        number = send([str(script)], job.script.site)
    except BaseException:
        for file in (script, config):
            remove(file)
        with suppress(OSError):  # earlier jobs are in it
            folder.rmdir()
        raise
    note = JobNote(
        job=number,
        verb=job.verb,
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
    other = DDP if verb == "train" else RAY
    return ARRAY if asked.array else other if mpi_ranks is None else MPI


def _site(given: Path | None) -> Path | None:
    """The file that a job sources first: the one that is given, or DISTLFM_SITE, or slurm/site.sh if it is there."""
    named = given or (Path(os.environ[SITE_VARIABLE]) if os.environ.get(SITE_VARIABLE) else None)
    if named is None:
        return SITE_FILE.absolute() if SITE_FILE.is_file() else None
    if not named.is_file():
        raise UsageError(f"There is no site file {named}.", "slurm/site.example.sh is one to copy and change.")
    return named.absolute()


def _awaited(job: ReadyJob) -> set[str]:
    """Numbers of this run's jobs, and of others, that have ended when this one begins."""
    asked = job.script.resources
    verbs = ends_awaited(asked.dependency)
    if "singleton" in asked.dependency.split(","):  # it waits for all that have its name
        verbs |= {note.job for note in notes_of(job.run) if note.log == str(job.script.log(note.job))}
    return verbs
