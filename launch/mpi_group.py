"""Fit fields whose mesh is divided among the tasks of a Slurm job: each task is a rank of MPI, on any node.

    python -m distlfm.launch.mpi_group [--ranks N] fit CONFIG …

The fit itself is one process; its helper group is a step of the job. Without Slurm mpirun starts the ranks, here. A fit
whose group cannot be started ends; if that is because a node of the job is gone, the job is queued again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import NoReturn

from distlfm.cluster.machine import usable_cpus
from distlfm.launch.preempt import JobLog, again_if_lost, launch, parser, verb_command, verb_of
from distlfm.solvers.fem.group.launcher import LAUNCHER

VERBS = ("fit",)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the fit with as many ranks as there are tasks."""
    options = parser("mpi_group", "Fit fields whose mesh is divided among the tasks of this job.")
    options.add_argument("--ranks", type=int, help="how many ranks; one per task of the job, or per core, by default")
    given = options.parse_args(arguments)
    words = verb_of(given, options, VERBS)

    def work(log: JobLog) -> int:
        ranks = given.ranks or (log.allocation.tasks if log.allocation else usable_cpus())
        started = {LAUNCHER: "srun"} if log.allocation and ranks > 1 else {}
        log.reporter.say(f"a group of {ranks} ranks, started by {'srun' if started else 'mpirun'}")
        # One fit at a time has them all: several groups would share the same cores.
        command = [*verb_command(words), "--mpi-ranks", str(ranks), "--executor", "serial"]
        code = log.run(command, {**os.environ, **started})
        return again_if_lost(log, code, "the fit goes on with what is not stored yet")

    launch(work, words)


if __name__ == "__main__":
    main()
