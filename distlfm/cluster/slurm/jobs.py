"""The jobs of a run: a folder beside it with scripts, configs and logs, a list of them, and what Slurm says of them.

States come from squeue, and from the accounting for jobs that have left the queue.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from distlfm.cluster.slurm.allocation import COMPLETE
from distlfm.config import Config
from distlfm.errors import UsageError, WorkError
from distlfm.store.files import storing
from distlfm.store.lock import holder

ANSWER_SECONDS = 20.0
SQUEUE = ("squeue", "--noheader", "--array", "--states=all", "--format=%i|%T|%M|%r|%N")
SACCT = ("sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,State,Elapsed,ExitCode,NodeList")
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "REQUEUE_FED")
RUNNING = ("RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "STAGE_OUT")
UNKNOWN = "UNKNOWN"
NO_SUCH_JOB = "Invalid job id"

WITH_SITE = 'site=$1; shift; read_site() { . "$site"; }; read_site >&2; exec "$@"'
"""sbatch as the site's file wants it: account and partition are variables that sbatch reads.

In a function the file does not see sbatch's arguments. What its last command returns says nothing.
"""


@dataclass(frozen=True)
class TaskState:
    """A job, or a task of an array. state: Slurm's word. why: what it waits for, or its exit code. nodes: where."""

    id: str
    state: str
    elapsed: str = ""
    why: str = ""
    nodes: str = ""


@dataclass(frozen=True)
class JobState:
    """All tasks of a job; of one that Slurm no longer knows, none. heard: whether Slurm has answered."""

    id: str
    tasks: tuple[TaskState, ...] = ()
    heard: bool = True

    @property
    def active(self) -> bool:
        """Whether any of it waits or runs."""
        return any(task.state in WAITING + RUNNING for task in self.tasks)

    @property
    def words(self) -> str:
        """One line for people."""
        if not self.heard:
            return "Slurm does not answer here"
        if not self.tasks:
            return "no longer known to Slurm; its log tells how it ended"
        if len(self.tasks) == 1:
            one = self.tasks[0]
            told = [
                one.state.lower(),
                one.elapsed if one.state in RUNNING else "",
                f"on {one.nodes}" if one.nodes else "",
            ]
            why = f" ({one.why})" if one.why not in ("", "None", "0:0") else ""
            return " ".join(word for word in told if word) + why
        counts = Counter(task.state.lower() for task in self.tasks)
        return f"{len(self.tasks)} tasks: " + ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))


def job_states(ids: Sequence[str]) -> dict[str, JobState]:
    """How jobs are now, by their numbers."""
    answers = {job: _answer([*SQUEUE, f"--jobs={job}"]) for job in ids}
    found = [task for text in answers.values() for task in read_squeue(text or "")]
    gone = sorted(job for job, text in answers.items() if text == "")
    if gone:
        found += read_sacct(_answer([*SACCT, f"--jobs={','.join(gone)}"]) or "")
    return {
        job: JobState(job, tuple(task for task in found if base_of(task.id) == job), text is not None)
        for job, text in answers.items()
    }


def read_squeue(text: str) -> list[TaskState]:
    """Lines of `SQUEUE`."""
    rows = (line.strip().split("|") for line in text.splitlines() if line.count("|") == 4)
    return [TaskState(job, state, elapsed, why, nodes) for job, state, elapsed, why, nodes in rows]


def read_sacct(text: str) -> list[TaskState]:
    """Lines of `SACCT`; `CANCELLED by 1000` is CANCELLED, and no nodes are `None assigned`."""
    rows = (line.strip().split("|") for line in text.splitlines() if line.count("|") == 4)
    return [
        TaskState(job, state.split()[0] if state else UNKNOWN, elapsed, code, "" if nodes == "None assigned" else nodes)
        for job, state, elapsed, code, nodes in rows
    ]


def base_of(job: str) -> str:
    """The number of the array that a task belongs to, or the job's own."""
    return job.partition("_")[0]


def send(script: Path, site: Path | None = None, environment: Mapping[str, str] | None = None) -> str:
    """Give a script to sbatch; the job's number."""
    needed = "On a login node of the cluster it is there; --dry-run shows the script without Slurm."
    if shutil.which("sbatch") is None:
        raise UsageError("There is no Slurm here: sbatch is not on the PATH.", needed)
    command = ["sbatch", "--parsable", str(script)]
    if site is not None:
        command = ["bash", "-c", WITH_SITE, "distlfm", str(site), *command]
    # A variable of a surrounding job would be taken for an option of this one.
    kept = {name: value for name, value in (environment or os.environ).items() if not of_a_job(name)}
    done = subprocess.run(command, env=kept, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    said = done.stdout.strip().splitlines()
    if done.returncode != 0 or not said:
        raise WorkError(f"sbatch refused the job: {_told(done.stderr)}.", "Mend that, and submit it again.")
    return said[-1].partition(";")[0]


def of_a_job(name: str) -> bool:
    """Whether a variable of the environment belongs to the job around, if there is one."""
    return name == COMPLETE or (name.startswith(("SLURM_", "SLURMD_")) and name not in ("SLURM_CONF", "SLURM_CLUSTERS"))


def _told(lines: str) -> str:
    words = [line.strip().removeprefix("sbatch: ").removeprefix("error: ") for line in _lines(lines)]
    return "; ".join(dict.fromkeys(words)).rstrip(".") or "it said nothing"


def _lines(text: str) -> Iterable[str]:
    return (line for line in text.splitlines() if line.strip())


def _answer(command: Sequence[str]) -> str | None:
    """What a command prints, nothing if it knows no such job; None where Slurm is not there or does not answer."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return None
    if done.returncode != 0:
        return "" if NO_SUCH_JOB in done.stderr else None
    return done.stdout


SUFFIX, LIST = ".jobs", "jobs.jsonl"
MOST_SHOWN = 5
"""Of a run that was often begun anew, the last jobs are of interest."""


class JobNote(Config):
    """A job that was sent. job: its number; time: when, as ISO text; config and script: what it got; log: its log.

    arguments: what its verb got beside the config.
    """

    job: str
    verb: str
    time: str
    nodes: int
    config: str
    script: str
    log: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunJob:
    """A job of a run, and how it is now."""

    note: JobNote
    state: JobState

    @property
    def words(self) -> str:
        return f"job {self.note.job} ({self.note.verb}): {self.state.words}"

    def plain(self) -> dict[str, object]:
        """As JSON has it."""
        tasks = {task.id: task.state for task in self.state.tasks}
        return {**self.note.model_dump(), "active": self.state.active, "states": tasks}


def jobs_folder(run: Path) -> Path:
    """Beside the run, as a store that is generated must begin in an empty folder."""
    run = run.absolute()
    return run.with_name(run.name + SUFFIX)


def new_name(folder: Path, verb: str) -> str:
    """The name of the next job's files."""
    taken = [int(tail) for one in folder.glob(f"{verb}-*.*") if (tail := one.stem.rpartition("-")[2]).isdigit()]
    return f"{verb}-{max(taken, default=0) + 1}"


def add_note(folder: Path, note: JobNote) -> None:
    """Add a job to the list."""
    with storing("the list of jobs", folder), (folder / LIST).open("a+", encoding="utf-8") as file:
        file.seek(0)
        before = "" if file.read()[-1:] in ("", "\n") else "\n"  # a full disk may have cut the last one short
        file.write(f"{before}{note.model_dump_json()}\n")


def notes_of(run: Path) -> list[JobNote]:
    """The jobs that were sent for a run, the oldest first. A line that cannot be read is left out.

    A job that begins at once may note itself before whoever sent it does: it counts once.
    """
    try:
        lines = (jobs_folder(run) / LIST).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return list({note.job: note for note in map(_read, lines) if note is not None}.values())


def jobs_of(run: Path) -> tuple[RunJob, ...]:
    """The last jobs of a run and how they are."""
    return with_states(notes_of(run)[-MOST_SHOWN:])


def with_states(notes: Sequence[JobNote]) -> tuple[RunJob, ...]:
    """Jobs and how they are."""
    states = job_states([note.job for note in notes])
    return tuple(RunJob(note, states[note.job]) for note in notes)


def refuse_busy(run: Path, before: Collection[str] = ()) -> None:
    """Refuse a run that somebody works on, or that a job waits to work on. before: jobs whose end is awaited."""
    for one in jobs_of(run):
        number = one.note.job
        if one.state.active and number not in before:
            raise UsageError(
                f"{one.words}, and it is for {run} too.",
                f"Wait for it, stop it (scancel {number}), or queue behind it: --dependency afterany:{number}",
            )
    driver = holder(run) if run.is_dir() else None
    if driver is not None and base_of(driver.job) not in before:
        raise UsageError(f"{run} is in use: {driver}.", "Wait until it has finished, or stop it.")


def _read(line: str) -> JobNote | None:
    try:
        return JobNote.model_validate_json(line)
    except ValidationError:
        return None
