"""Which process this is, follows from the environment alone."""

from __future__ import annotations

import pytest

from distlfm.cluster.ranks.place import Place, find_place, first_host
from distlfm.errors import UsageError

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "4",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "2",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29400",
}
BATCH = {"SLURM_JOB_ID": "17", "SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NNODES": "2"}
STEP = {
    **BATCH,
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NODELIST": "gpu[003-004]",
    "SLURM_STEP_TASKS_PER_NODE": "2(x2)",
    "SLURM_PROCID": "2",
    "SLURM_LOCALID": "0",
}
MPIRUN = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "1234.1",
}
TORCHRUN_PLACE = Place(3, 4, 1, 2, "torchrun", "env://")


def srun(rank: int, local: int, rendezvous: str) -> Place:
    return Place(rank, 4, local, 2, "srun", rendezvous)


@pytest.mark.parametrize(
    ("environment", "place"),
    [
        pytest.param({}, Place(), id="nothing"),
        pytest.param(TORCHRUN, TORCHRUN_PLACE, id="torchrun"),
        pytest.param(TORCHRUN | STEP, TORCHRUN_PLACE, id="torchrun in a step of srun"),
        pytest.param(TORCHRUN | MPIRUN, TORCHRUN_PLACE, id="torchrun under mpirun"),
        pytest.param({**TORCHRUN, "RANK": "0", "WORLD_SIZE": "1"}, Place(), id="torchrun of one"),
        pytest.param(BATCH, Place(), id="a batch script is no task"),
        pytest.param({**STEP, "MASTER_PORT": "1"}, srun(2, 0, "tcp://gpu003:1"), id="srun"),
        pytest.param({**STEP, "MASTER_PORT": "1", "MASTER_ADDR": "a"}, srun(2, 0, "tcp://a:1"), id="srun, told where"),
        pytest.param({**STEP, "SLURM_STEP_NUM_TASKS": "1", "SLURM_PROCID": "0"}, Place(), id="srun of one"),
        pytest.param(
            {**STEP, "SLURM_STEP_NUM_NODES": "1", "MASTER_PORT": "1"},
            Place(2, 4, 0, 4, "srun", "tcp://127.0.0.1:1"),
            id="srun on one node",
        ),
        pytest.param(
            {**MPIRUN, "MASTER_PORT": "1"}, Place(1, 2, 1, 2, "mpirun", "tcp://127.0.0.1:1"), id="mpirun on one node"
        ),
        pytest.param(
            {**STEP, **MPIRUN, "MASTER_PORT": "1"},
            Place(1, 2, 1, 2, "mpirun", "tcp://127.0.0.1:1"),
            id="mpirun whose daemon was started by srun",
        ),
        pytest.param(
            {**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "1", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
            Place(1, 2, 1, 1, "mpirun", "tcp://a:1"),
            id="mpirun on several nodes",
        ),
    ],
)
def test_the_innermost_launcher_tells_the_place(environment: dict[str, str], place: Place) -> None:
    assert find_place(environment) == place


def test_all_tasks_of_a_step_agree_on_a_port_and_two_steps_do_not_share_it() -> None:
    first = {find_place({**STEP, "SLURM_PROCID": str(rank)}).rendezvous for rank in range(4)}
    second = find_place({**STEP, "SLURM_STEP_ID": "1"}).rendezvous
    assert len(first) == 1
    assert second not in first
    assert 15000 <= int(second.rpartition(":")[2]) < 20000


@pytest.mark.parametrize(
    ("names", "first"),
    [
        ("n1", "n1"),
        ("n1,n2", "n1"),
        ("gpu[003-007,9],login", "gpu003"),
        ("a[1,3]-ib,b", "a1-ib"),
        ("c-2-[07]", "c-2-07"),
        ("rack[1-2]n[3,5]", "rack1n3"),
    ],
)
def test_the_first_of_slurms_nodes(names: str, first: str) -> None:
    assert first_host(names) == first


@pytest.mark.parametrize(
    ("environment", "word"),
    [
        ({**TORCHRUN, "RANK": "x"}, "RANK"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({**MPIRUN, "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, "MASTER_ADDR"),
        ({**STEP, "SLURM_STEP_NODELIST": ""}, "MASTER_ADDR"),
    ],
)
def test_an_environment_that_tells_half_is_refused_with_a_word_on_it(environment: dict[str, str], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        find_place(environment)
