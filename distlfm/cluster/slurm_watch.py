"""What a node does whose job has lost its first node.

`--no-kill` lets a job outlive any of its nodes, even the one with its batch script: Slurm would then keep the others
until the walltime ends, and nobody would work on them. So those that are left look after the job, and one queues it
again as soon as Slurm has given the first node up.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping

from distlfm.cluster.slurm import expand_hosts

LOOK_SECONDS = 5.0
"""How often Slurm is asked."""

ANSWER_SECONDS = 60.0


def look_after(job: str, first: str, me: str, pause: Callable[[float], bool]) -> bool:
    """Wait until the job has ended or has lost node `first`. Then it is queued again, by the first that is left.

    me: this node, as Slurm calls it. pause: waits for so many seconds, and tells whether to stop waiting. Gives whether
    the job was queued again from here.
    """
    while not pause(LOOK_SECONDS):
        answer = _ask("scontrol", "show", "job", "--oneliner", job)
        if answer is None:  # the controller is busy, or on its way to another machine
            continue
        facts = job_facts(answer)
        if facts.get("JobState") != "RUNNING":
            return False
        nodes = expand_hosts(facts["NodeList"])
        if first not in nodes:
            return nodes[0] == me and _ask("scontrol", "requeue", job) is not None
    return False


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
