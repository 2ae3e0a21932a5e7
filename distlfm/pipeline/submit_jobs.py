"""The jobs of a run: a folder beside it that holds their scripts, configs and logs, and a list of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from distlfm.cluster.queue import JobState, base_of, job_states
from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.store.files import storing
from distlfm.store.lock import holder

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
