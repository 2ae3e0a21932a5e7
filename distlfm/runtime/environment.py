"""The environment of an MPI helper process, programs of the system that are started by name, and threads of torch.

A process that runs under Slurm, Ray or another mpirun carries variables that make a new MPI believe it belongs to that
launcher: `MPI_Init` then aborts or hangs. Helper groups therefore start from an environment without them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from distlfm.errors import StartError


def cannot_start(command: Sequence[str], error: OSError) -> StartError:
    """What is said of a program that is not there."""
    return StartError(
        f"{command[0]} cannot be started: {error.strerror}.",
        "Put it on the PATH; a container must be given Slurm's commands (slurm/site.example.sh shows how).",
    )


# Left by an enclosing launcher: PMI and PMIx, Open MPI 4 (ORTE) and 5 (PRRTE), Hydra (MPICH, Intel), Cray PALS.
# Of OMPI_MCA_*, only those that mpirun writes for its children; the user's own tuning stays.
LAUNCHER_PREFIXES = (
    "PMI",
    "OMPI_COMM_",
    "OMPI_APP_CTX_",
    "OMPI_NUM_APP_CTX",
    "OMPI_FIRST_RANKS",
    "OMPI_FILE_LOCATION",
    "OMPI_COMMAND",
    "OMPI_ARGV",
    "OMPI_UNIVERSE_SIZE",
    "OMPI_MCA_ess",
    "OMPI_MCA_orte_",
    "OMPI_MCA_pmix",
    "OMPI_MCA_initial_wdir",
    "OMPI_MCA_mpi_oversubscribe",
    "OMPI_MCA_shmem_RUNTIME_QUERY_hint",
    "ORTE_",
    "PRTE_",
    "HYDRA_",
    "HYDI_",
    "MPI_LOCAL",
    "PALS_",
)
SLURM_PREFIXES = ("SLURM_", "SLURMD_")
# An srun inside a job must still find the job; what belongs to the enclosing step or task would be inherited wrongly.
SLURM_STEP_PREFIXES = (
    "SLURM_STEP",
    "SLURM_SRUN_",
    "SLURM_PROCID",
    "SLURM_LOCALID",
    "SLURM_NODEID",
    "SLURM_GTIDS",
    "SLURM_TASK_PID",
    "SLURM_LAUNCH_NODE_IPADDR",
    "SLURM_MPI_TYPE",
    "SLURM_PMI",
    "SLURM_CPU_BIND",
    "SLURM_MEM_BIND",
    "SLURM_DISTRIBUTION",
)

# One node: no remote launcher, shared memory only. Ranks are not bound, because every mpirun counts cores from the
# first one, and two helper groups on a node would share it while the others idle.
LOCAL_SETTINGS = {
    "OMPI_MCA_plm": "isolated",
    "OMPI_MCA_btl": "self,vader",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
}
ROOT_SETTINGS = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}


def scrubbed_mpi_environment(base: Mapping[str, str], *, local: bool = True) -> dict[str, str]:
    """A copy of `base` in which an MPI program starts afresh.

    `local`: all ranks run on this node under mpirun, and nothing of Slurm remains. Otherwise the program is started by
    an `srun` inside the present job: the job's variables stay, those of the enclosing step and task go, and network
    and binding are left to the cluster.

    Compiled forms are cached in `DIJITSO_CACHE_DIR`, by default a directory of the user that is kept between runs;
    each rank computes with one thread.
    """
    dropped = LAUNCHER_PREFIXES + (SLURM_PREFIXES if local else SLURM_STEP_PREFIXES)
    environment = {name: value for name, value in base.items() if not name.startswith(dropped)}
    if local:
        environment |= LOCAL_SETTINGS
    if os.geteuid() == 0:
        environment |= ROOT_SETTINGS
    environment["OMP_NUM_THREADS"] = "1"
    environment.setdefault("DIJITSO_CACHE_DIR", str(user_cache_directory(base) / "dijitso"))
    return environment


def user_cache_directory(environment: Mapping[str, str]) -> Path:
    """Where this user keeps what can be rebuilt: `$XDG_CACHE_HOME/distlfm`, or `~/.cache/distlfm`."""
    if cache_home := environment.get("XDG_CACHE_HOME"):
        return Path(cache_home) / "distlfm"
    home = environment.get("HOME")
    return (Path(home) if home else Path.home()) / ".cache" / "distlfm"


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Tensor operations take `count` threads inside."""
    import torch  # a light process has no use for it

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
