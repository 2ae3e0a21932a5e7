"""Run a verb on a Ray that spans the nodes of a Slurm job, or a list of hosts, and that ends with it.

    python -m distlfm.launch.ray_cluster [--hosts a,b] fit|generate|tune|train|resume ARGUMENTS…

Inside a job Ray takes what Slurm gave: its nodes, its cores, its GPUs, its memory. With `--hosts` it is started there
by ssh; without both, on this machine. The verb gets `--address`.
"""

from __future__ import annotations

import os
import shlex
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from distlfm.cluster.ray.hosts import Machines, Reach, ray_over
from distlfm.cluster.slurm.allocation import FIRST_PORT, Allocation
from distlfm.launch.preempt import JobLog, launch, parser, verb_command, verb_of
from distlfm.runtime.process import expand_hosts

VERBS = ("fit", "generate", "tune", "train", "resume")


def site_of(environment: Mapping[str, str], allocation: Allocation | None, cpus: int = 0) -> Machines:
    """What the site file has set."""
    return Machines(
        python=tuple(shlex.split(environment.get("DISTLFM_PYTHON", ""))) or (sys.executable,),
        interface=environment.get("DISTLFM_INTERFACE", ""),
        scratch=environment.get("DISTLFM_SCRATCH", ""),
        port=allocation.port if allocation else FIRST_PORT,
        cpus=cpus,
    )


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Start Ray, run the verb, end Ray."""
    options = parser("ray_cluster", "Run a verb on a Ray over the nodes of this job, or over some hosts.")
    options.add_argument("--hosts", help="hosts to reach by ssh, such as a,b or node[1-4]; the first is the head")
    options.add_argument("--cpus", type=int, default=0, help="CPUs of each host; all that may be used by default")
    given = options.parse_args(arguments)
    words = verb_of(given, options, VERBS)

    def work(log: JobLog) -> int:
        allocation = log.allocation
        reach: Reach = "srun" if allocation and not given.hosts else "ssh"
        if given.hosts:
            hosts = expand_hosts(given.hosts)
        else:
            hosts = allocation.nodes if allocation else (socket.gethostname(),)
        site = site_of(os.environ, allocation, given.cpus)
        with ray_over(hosts, reach, site, log.reporter, log.relay.check) as ray:
            return log.run([*verb_command(words), "--address", ray.address], ray.environment, ray.look)

    launch(work, words)


if __name__ == "__main__":
    main()
