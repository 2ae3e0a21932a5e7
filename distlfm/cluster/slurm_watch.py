"""What is done when a job has lost a node.

`--no-kill` lets a job outlive any of its nodes, even the one with its batch script: Slurm would then keep the others
until the walltime ends, and nobody would work on them. So those that are left look after the job, and one queues it
again as soon as Slurm has given the first node up.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence

from distlfm.cluster.slurm import Allocation
from distlfm.runtime.hosts import expand_hosts

LOOK_SECONDS = 5.0
"""How often Slurm is asked."""

TURN_LOOKS = 4
"""Each of the nodes that are left has so many looks for itself, before the next one tries too."""

ANSWER_SECONDS = 60.0


def look_after(job: str, first: str, me: str, pause: Callable[[float], bool], again: bool = True) -> bool:
    """Wait until the job has ended or has lost node `first`. Then it is queued again, by the first left that can.

    me: this node, as Slurm calls it. pause: waits for so many seconds, and tells whether to stop waiting. again: else
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
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
