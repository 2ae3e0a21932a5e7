"""The jobs of a run: a folder beside it with scripts, configs and logs, a list of them, and what Slurm says of them.

States come from squeue, and from the accounting for jobs that have left the queue.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pydantic import Field, ValidationError

from distlfm.cluster.slurm.allocation import COMPLETE
from distlfm.config import Config
from distlfm.errors import UsageError, WorkError
from distlfm.runtime.process import TOO_LONG, run_within
from distlfm.runtime.reporting import append_line
from distlfm.store.files import storing
from distlfm.store.lock import holder

ANSWER_SECONDS, SEND_SECONDS = 20.0, 120.0
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

    @property
    def words(self) -> str:
        """One line for people."""
        elapsed = f" {self.elapsed}" if self.state in RUNNING and self.elapsed else ""
        nodes = f" on {self.nodes}" if self.nodes else ""
        why = f" ({self.why})" if self.why not in ("", "None", "0:0") else ""
        return f"{self.state.lower()}{elapsed}{nodes}{why}"


def _tasks(text: str | None) -> list[TaskState]:
    """Read lines of `SQUEUE` or `SACCT`, for which `CANCELLED by 1000` is CANCELLED, and no nodes `None assigned`."""
    rows = (line.strip().split("|") for line in (text or "").splitlines() if line.count("|") == 4)
    return [
        TaskState(job, state.split()[0] if state else UNKNOWN, elapsed, why, "" if nodes == "None assigned" else nodes)
        for job, state, elapsed, why, nodes in rows
    ]


def base_of(job: str) -> str:
    """The number of the array that a task belongs to, or the job's own."""
    return job.partition("_")[0]


def send(words: Sequence[str], site: Path | None = None) -> str:
    """Submit a job by `sbatch --parsable` with these options, script and arguments, and return its number."""
    if shutil.which("sbatch") is None:
        needed = "On a login node of the cluster it is there; --dry-run shows what would be sent without Slurm."
        raise UsageError("There is no Slurm here: sbatch is not on the PATH.", needed)
    command = ["sbatch", "--parsable", *words]
    if site is not None:
        command = ["bash", "-c", WITH_SITE, "distlfm", str(site), *command]
    # A variable of a surrounding job would be taken for an option of this one.
    kept = {name: value for name, value in os.environ.items() if not _of_a_job(name)}
    done = run_within(command, SEND_SECONDS, kept)
    if done.returncode == TOO_LONG:
        raise WorkError("sbatch did not answer.", "Ask Slurm's administrator; `squeue` shows what was sent.")
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        fix = f"Mend that, and submit it again. The call was: {shlex.join(['sbatch', *words])}"
        raise WorkError(f"sbatch refused the job: {_error_words(done.stderr)}.", fix)
    return lines[-1].partition(";")[0]


def _of_a_job(name: str) -> bool:
    """Whether a variable of the environment belongs to the job around, if there is one."""
    return name == COMPLETE or (name.startswith(("SLURM_", "SLURMD_")) and name not in ("SLURM_CONF", "SLURM_CLUSTERS"))


def _error_words(text: str) -> str:
    lines = (line.strip() for line in text.splitlines() if line.strip())
    words = (line.removeprefix("sbatch: ").removeprefix("error: ") for line in lines)
    return "; ".join(dict.fromkeys(words)).rstrip(".") or "it said nothing"


def _answer(command: Sequence[str]) -> str | None:
    """What a command prints, nothing if it knows no such job; None where Slurm is not there or does not answer."""
    done = run_within(command, ANSWER_SECONDS)
    if done.returncode != 0:
        return "" if NO_SUCH_JOB in done.stderr else None
    return done.stdout


SUFFIX, LIST = ".jobs", "jobs.jsonl"
MOST_SHOWN = 5
"""In a run that was often begun anew, the last jobs are of interest."""


class JobNote(Config):
    """A job that was sent. job: its number; time: when, as ISO text; config and script: what it got; log: its log.

    arguments: what its verb got beside the config.
    """

    job: str
    verb: str
    time: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    nodes: int
    config: str
    script: str
    log: str
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class RunJob:
    """A job of a run, and how it is now. tasks: none of one that Slurm no longer knows.

    heard: whether Slurm has answered.
    """

    note: JobNote
    tasks: tuple[TaskState, ...]
    heard: bool

    @property
    def active(self) -> bool:
        """Whether any of it waits or runs."""
        return any(task.state in WAITING + RUNNING for task in self.tasks)

    @property
    def words(self) -> str:
        """One line for people."""
        counts = Counter(task.state.lower() for task in self.tasks)
        if not self.heard:
            state = "Slurm does not answer here"
        elif not self.tasks:
            state = "no longer known to Slurm; its log says how it ended"
        elif len(self.tasks) == 1:
            state = self.tasks[0].words
        else:
            state = f"{len(self.tasks)} tasks: " + ", ".join(f"{counts[one]} {one}" for one in sorted(counts))
        return f"job {self.note.job} ({self.note.verb}): {state}"

    def plain(self) -> dict[str, object]:
        """As JSON has it."""
        return {**self.note.model_dump(), "active": self.active, "states": {one.id: one.state for one in self.tasks}}


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
    with storing("the list of jobs", folder):
        append_line(folder / LIST, note.model_dump_json())


def notes_of(run: Path) -> list[JobNote]:
    """The jobs that were sent for a run, the oldest first. A line that cannot be read is left out.

    A job that begins at once may note itself before whoever sent it does: it counts once.
    """
    try:
        lines = (jobs_folder(run) / LIST).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    notes: dict[str, JobNote] = {}
    for line in lines:
        with suppress(ValidationError):
            note = JobNote.model_validate_json(line)
            notes[note.job] = note
    return list(notes.values())


def jobs_of(run: Path) -> tuple[RunJob, ...]:
    """The last jobs of a run and how they are."""
    notes = notes_of(run)[-MOST_SHOWN:]
    answers = {note.job: _answer([*SQUEUE, f"--jobs={note.job}"]) for note in notes}
    tasks = [task for text in answers.values() for task in _tasks(text)]
    gone = sorted(job for job, text in answers.items() if text == "")
    if gone:
        tasks += _tasks(_answer([*SACCT, f"--jobs={','.join(gone)}"]))
    return tuple(
        RunJob(note, tuple(task for task in tasks if base_of(task.id) == note.job), answers[note.job] is not None)
        for note in notes
    )


def refuse_busy(run: Path, before: Collection[str] = ()) -> None:
    """Refuse a run that somebody works on, or that a job waits to work on. before: jobs whose end is awaited."""
    for one in jobs_of(run):
        number = one.note.job
        if one.active and number not in before:
            raise UsageError(
                f"{one.words}, and it is for {run} too.",
                f"Wait for it, stop it (scancel {number}), or queue behind it: --dependency afterany:{number}",
            )
    driver = holder(run) if run.is_dir() else None
    if driver is not None and base_of(driver.job) not in before:
        raise UsageError(f"{run} is in use: {driver}.", "Wait until it has finished, or stop it.")
