"""Train with several processes: a rank for each task of a Slurm job, or those that torchrun, srun or mpirun started.

    python -m distlfm.launch.ddp train CONFIG …

In a job's batch script it starts the ranks as one step. A process that a launcher has started already finds its own
place (`distlfm.cluster.ranks.place`) and is one rank; without Slurm and any launcher it is one process, or
`--workers` many.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from distlfm.cluster.ranks.place import find_place
from distlfm.cluster.slurm.allocation import Allocation
from distlfm.launch.preempt import JobLog, again_if_lost, launch, parser, verb_command, verb_of, work_environment
from distlfm.runtime.process import number_in

VERBS = ("train", "resume")
LEAVE_SECONDS = 60
"""Ranks that were warned all end with 75, some later than others; srun may end none of them before."""


def step_command(allocation: Allocation, words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The step whose tasks are the ranks.

    They leave together, warned or done; so one that has not left soon after another waits for a rank that failed.
    """
    python = shlex.split(environment.get("DISTLFM_PYTHON", "")) or [sys.executable]
    step = ["srun", f"--ntasks={allocation.tasks}", "--mpi=none", "--kill-on-bad-exit=0", f"--wait={LEAVE_SECONDS}"]
    if cpus := number_in(environment, "SLURM_CPUS_PER_TASK"):  # a step does not inherit it from its job
        step.append(f"--cpus-per-task={cpus}")
    return [*step, *python, "-m", "distlfm", *words]


def rank_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Ranks talk over the interface that the site names."""
    interface = environment.get("DISTLFM_INTERFACE")
    named = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface} if interface else {}
    return {**environment, **named}


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Be one rank, or start them."""
    options = parser("ddp", "Train with one process per task of this job, or as one of a launcher's processes.")
    words = verb_of(options.parse_args(arguments), options, VERBS)
    if find_place(os.environ).world > 1:
        command, environment = verb_command(words), work_environment(rank_environment(os.environ))
        os.execve(command[0], command, environment)  # noqa: S606 (a rank is one process)

    def work(log: JobLog) -> int:
        allocation = log.allocation
        if allocation is None:
            return log.run(verb_command(words))
        log.reporter.say(f"{allocation.tasks} ranks")
        code = log.run(step_command(allocation, words, os.environ), rank_environment(os.environ))
        return again_if_lost(log, code, "the training goes on from its last checkpoint")

    launch(work, words)


if __name__ == "__main__":
    main()
