"""The allocation of a Slurm job, as its environment says, and what is done when the job has lost a node.

An allocation has nodes, tasks, and the number of times that the job was begun. `--no-kill` lets a job outlive any of
its nodes, even the one with its batch script: Slurm would then keep the others until the walltime ends, and nobody
would work on them. So those that are left look after the job, and one queues it again as soon as Slurm has given the
first node up.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from distlfm.cluster.blocks.ledger import Share
from distlfm.errors import UsageError
from distlfm.runtime.process import expand_hosts, job_name, number_in, run_within

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
    tasks, restarts = number_in(environment, "SLURM_NTASKS", 1), number_in(environment, "SLURM_RESTART_COUNT")
    return Allocation(job_name(environment), int(number), nodes, tasks, restarts)


def array_share(environment: Mapping[str, str]) -> Share:
    """Which part of the work a task of an array has: the number of the task among its tasks."""
    names = ("ID", "MIN", "MAX", "COUNT")
    task, first, last, count = (number_in(environment, f"SLURM_ARRAY_TASK_{name}", -1) for name in names)
    if min(task, first, last, count) < 0:
        raise UsageError("This is not a task of a Slurm array.", "Submit it with sbatch --array=0-15.")
    step = number_in(environment, "SLURM_ARRAY_TASK_STEP", 1)
    place = (task - first) // step
    if (last - first) // step + 1 != count or (task - first) % step:
        raise UsageError(
            f"The array from {first} to {last} has {count} tasks, with holes between them.",
            "Number the tasks without holes: --array=0-15. What is done already is not done again.",
        )
    return Share(place + 1, count)


LOOK_SECONDS = 5.0
"""How often Slurm is asked."""

TURN_LOOKS = 4
"""Number of looks that each of the nodes that are left has for itself, before the next one tries too."""


def look_after(job: str, first: str, me: str, pause: Callable[[float], bool], again: bool = True) -> bool:
    """Wait until the job has ended or has lost node `first`. Then it is queued again, by the first left that can.

    me: this node, as Slurm calls it. pause: waits for some seconds, and says whether to stop waiting. again: else
    the job is cancelled, so that it does not keep nodes on which nobody works. Gives whether this was done from here.
    """
    looks = 0
    while True:
        # None: the controller is busy, or on its way to another machine.
        answer = _ask("scontrol", "show", "job", "--oneliner", job)
        if answer is not None:
            facts = job_facts(answer)
            if facts.get("JobState") != "RUNNING":
                return False
            nodes = expand_hosts(facts["NodeList"])
            if first not in nodes:
                mine = me in nodes and looks >= TURN_LOOKS * nodes.index(me)
                if mine and _ask(*(("scontrol", "requeue", job) if again else ("scancel", job))) is not None:
                    return True
                looks += 1
        if pause(LOOK_SECONDS):
            return False


def lost_a_node(allocation: Allocation) -> bool:
    """Whether a job that is to go on has a node on which no step can be started, though one can on its first node.

    Slurm itself notices a node that has crashed after some minutes only; the ranks on the others notice at once.
    """
    facts = job_facts(_ask("scontrol", "show", "job", "--oneliner", str(allocation.number)) or "")
    if facts.get("JobState") != "RUNNING":
        return False
    return not _reached(allocation.nodes) and _reached(allocation.nodes[:1])


def _reached(nodes: Sequence[str]) -> bool:
    """Does a step of this job start on all of these nodes?"""
    count, names = len(nodes), ",".join(nodes)
    where = (f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", f"--nodelist={names}")
    return _ask("srun", "--overlap", *where, "--mpi=none", "true") is not None


def job_facts(text: str) -> Mapping[str, str]:
    """What `scontrol show job` says, by name."""
    return dict(re.findall(r"(?:^|\s)(\w+)=(\S*)", text))


def _ask(*command: str) -> str | None:
    """A command's answer; None if it failed."""
    done = run_within(command)
    return done.stdout if done.returncode == 0 else None
