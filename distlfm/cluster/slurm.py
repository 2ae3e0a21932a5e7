"""The allocation of a Slurm job, as its environment tells: which nodes, how many tasks, the how-many-th attempt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from distlfm.cluster.share import Share
from distlfm.errors import UsageError
from distlfm.runtime.hosts import expand_hosts
from distlfm.runtime.scheduler import job_name

FIRST_PORT, PORTS = 20000, 10000
"""Where a job's Ray listens: the port follows from the job's number, so that two jobs on a node seldom meet."""

COMPLETE = "DISTLFM_COMPLETE"
"""Names a run in the environment of a job: if all of it is accounted for, though some instances failed, the job counts
as done. Those that wait for it may then begin."""


@dataclass(frozen=True)
class Allocation:
    """What Slurm gave a job. job: as people write it, `17`, or `12_3` for a task of an array.

    number: Slurm's own number of this job or task. nodes: their names, the batch script's own first. tasks: how many a
    step has unless it says otherwise. restarts: how often the job was begun before.
    """

    job: str
    number: int
    nodes: tuple[str, ...]
    tasks: int = 1
    restarts: int = 0

    @property
    def port(self) -> int:
        return FIRST_PORT + self.number % PORTS

    @property
    def words(self) -> str:
        count = f"{len(self.nodes)} node{'s' if len(self.nodes) > 1 else ''}"
        again = f", begun for the {self.restarts + 1}. time" if self.restarts else ""
        return f"job {self.job} on {count} ({','.join(self.nodes)}){again}"


def find_allocation(environment: Mapping[str, str]) -> Allocation | None:
    """The job that this process belongs to; None outside of Slurm."""
    number = environment.get("SLURM_JOB_ID", "")
    if not number.isdigit():
        return None
    nodes = expand_hosts(environment.get("SLURM_JOB_NODELIST") or environment.get("SLURM_NODELIST", ""))
    tasks = environment.get("SLURM_NTASKS", "")
    restarts = environment.get("SLURM_RESTART_COUNT", "")
    return Allocation(
        job=job_name(environment),
        number=int(number),
        nodes=nodes,
        tasks=int(tasks) if tasks.isdigit() else 1,
        restarts=int(restarts) if restarts.isdigit() else 0,
    )


def array_share(environment: Mapping[str, str]) -> Share:
    """Which part of the work a task of an array has: the how-many-th of its tasks it is."""
    told = [environment.get(f"SLURM_ARRAY_TASK_{name}", "") for name in ("ID", "MIN", "MAX", "COUNT", "STEP")]
    if not all(text.isdigit() for text in told[:4]):
        raise UsageError("This is no task of a Slurm array.", "Submit it with sbatch --array=0-15.")
    task, first, last, count = (int(text) for text in told[:4])
    step = int(told[4]) if told[4].isdigit() else 1
    place = (task - first) // step
    if (last - first) // step + 1 != count or (task - first) % step:
        raise UsageError(
            f"The array from {first} to {last} has {count} tasks, with holes between them.",
            "Number the tasks without holes: --array=0-15. What is done already is not done again.",
        )
    return Share(place + 1, count)
