"""What Slurm says of jobs: asked of squeue, and of the accounting for those that have left the queue."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from distlfm.cluster.slurm import COMPLETE
from distlfm.errors import UsageError, WorkError

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
