"""Which of several processes this one is: asked of the environment that torchrun, mpirun or srun leaves.

The innermost launcher counts. torchrun may run in a step of srun, and mpirun starts its daemons by srun on the nodes of
a job, whose variables its processes then inherit: so torchrun is asked first, Open MPI next, and Slurm last.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from distlfm.errors import UsageError
from distlfm.runtime.process import LOOPBACK, expand_hosts

FIRST_PORT, PORTS = 15000, 5000
"""Ports below those that systems give out by themselves; which one, follows from the job's number."""


@dataclass(frozen=True)
class Place:
    """Process `rank` of `world`, and `local_rank` of the `local_world` on its machine.

    launcher: `torchrun`, `mpirun`, `srun`, or `single`. rendezvous: where the processes find each other, as torch
    writes it; empty for one alone.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    launcher: str = "single"
    rendezvous: str = ""


def find_place(environment: Mapping[str, str]) -> Place:
    """The place that the environment tells, a single process if it tells none."""
    for look in (_torchrun, _mpirun, _srun):
        place = look(environment)
        if place is not None:
            return place if place.world > 1 else Place()
    return Place()


def _torchrun(environment: Mapping[str, str]) -> Place | None:
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    number = partial(_number, environment, "")
    rank, world = number("RANK"), number("WORLD_SIZE")
    local = number("LOCAL_RANK", 0 if "LOCAL_WORLD_SIZE" in environment else rank)
    if world > 1 and not {"MASTER_ADDR", "MASTER_PORT"} <= environment.keys():
        raise UsageError(
            "RANK and WORLD_SIZE are set, but not MASTER_ADDR and MASTER_PORT.",
            "torchrun sets all four; without it, set them all, or none.",
        )
    return Place(rank, world, local, number("LOCAL_WORLD_SIZE", world), "torchrun", "env://")


def _mpirun(environment: Mapping[str, str]) -> Place | None:
    if "OMPI_COMM_WORLD_SIZE" not in environment:
        return None
    number = partial(_number, environment, "OMPI_COMM_WORLD_")
    rank, world, local_world = number("RANK"), number("SIZE"), number("LOCAL_SIZE", 1)
    host = environment.get("MASTER_ADDR") or (LOOPBACK if local_world == world else "")
    if world > 1 and not host:
        raise UsageError(
            "mpirun does not tell its processes on which node the first of them runs.",
            "Set it: mpirun -x MASTER_ADDR=HOST …, or start the processes by torchrun or srun.",
        )
    job = environment.get("PMIX_NAMESPACE") or environment.get("OMPI_MCA_ess_base_jobid", "")
    rendezvous = _rendezvous(environment, host, job)
    return Place(rank, world, number("LOCAL_RANK", 0), local_world, "mpirun", rendezvous)


def _srun(environment: Mapping[str, str]) -> Place | None:
    # A batch script has SLURM_NTASKS and SLURM_PROCID too, though it is not one of the tasks.
    if not {"SLURM_STEP_NUM_TASKS", "SLURM_PROCID"} <= environment.keys():
        return None
    number = partial(_number, environment, "SLURM_")
    rank, world, nodes = number("PROCID"), number("STEP_NUM_TASKS"), number("STEP_NUM_NODES", 1)
    names = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "")
    host = LOOPBACK if nodes == 1 else environment.get("MASTER_ADDR") or first_host(names)
    job = f"{environment.get('SLURM_JOB_ID', '')}.{environment.get('SLURM_STEP_ID', '')}"
    first = re.match(r"\d+", environment.get("SLURM_STEP_TASKS_PER_NODE", ""))  # of `4(x2),3` the 4
    local_world = world if nodes == 1 else int(first[0]) if first else 1
    return Place(rank, world, number("LOCALID", 0), local_world, "srun", _rendezvous(environment, host, job))


def _number(environment: Mapping[str, str], prefix: str, name: str, default: int | None = None) -> int:
    text = environment.get(prefix + name)
    if text is None and default is not None:
        return default
    if text is None or not text.isdigit():
        raise UsageError(
            f"The launcher's {prefix}{name} is {text!r}, which is not a number.",
            "Unset it, or start the processes by torchrun, srun or mpirun.",
        )
    return int(text)


def _rendezvous(environment: Mapping[str, str], host: str, job: str) -> str:
    port = environment.get("MASTER_PORT") or str(FIRST_PORT + zlib.crc32(job.encode()) % PORTS)
    return f"tcp://{host}:{port}"


def first_host(names: str) -> str:
    """The first of Slurm's list of nodes, such as `gpu[003-007,9],login`."""
    try:
        return expand_hosts(names)[0]
    except UsageError as error:
        raise UsageError(error.cause, "Set MASTER_ADDR to the first one.") from None
