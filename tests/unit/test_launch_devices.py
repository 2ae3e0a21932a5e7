"""Which device a rank takes: a GPU of its own wherever there is one for each, and never the CPU without a word."""

from __future__ import annotations

import warnings

import pytest
import torch

from distlfm.cluster.ranks.group import device_of
from distlfm.cluster.ranks.place import Place
from distlfm.errors import DistlfmWarning

GPUS, PER_TASK = {"SLURM_GPUS_ON_NODE": "4"}, {"SLURM_GPUS_PER_TASK": "1"}


def place(local_rank: int, launcher: str = "srun") -> Place:
    """One of eight ranks, four on each machine."""
    return Place(4 + local_rank, 8, local_rank, 4, launcher, "tcp://n1:15000")


def has_gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("seen", "environment", "indices"),
    [
        pytest.param(4, GPUS, [0, 1, 2, 3], id="all of the machine's"),
        pytest.param(4, {}, [0, 1, 2, 3], id="without a word of Slurm"),
        pytest.param(1, PER_TASK | GPUS, [0, 0, 0, 0], id="one a task"),
        pytest.param(1, GPUS, [0, 0, 0, 0], id="bound one by one"),
        pytest.param(2, {"SLURM_GPUS_PER_TASK": "a100:2"}, [0, 0, 0, 0], id="two a task"),
    ],
)
def test_a_rank_takes_a_gpu_of_its_own_whether_it_sees_all_or_only_this_one(
    monkeypatch: pytest.MonkeyPatch, seen: int, environment: dict[str, str], indices: list[int]
) -> None:
    has_gpus(monkeypatch, seen)
    found = [device_of(place(rank), environment) for rank in range(4)]
    assert found == [torch.device("cuda", index) for index in indices]


@pytest.mark.parametrize(
    ("launcher", "environment"),
    [("srun", {"SLURM_GPUS_ON_NODE": "1"}), ("srun", {}), ("torchrun", PER_TASK | GPUS), ("mpirun", PER_TASK)],
)
def test_ranks_that_would_share_a_gpu_take_the_cpu_and_the_first_of_a_machine_says_so(
    monkeypatch: pytest.MonkeyPatch, launcher: str, environment: dict[str, str]
) -> None:
    has_gpus(monkeypatch, 1)
    with pytest.warns(
        DistlfmWarning, match=r"4 ranks .* see 1 GPU, too few .* on the CPU: start as many ranks"
    ) as said:
        found = [device_of(place(rank, launcher), environment) for rank in range(4)]
    assert len(said) == 1
    assert {device.type for device in found} == {"cpu"}


def test_without_gpus_nothing_is_said_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    has_gpus(monkeypatch, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert device_of(place(0), PER_TASK).type == "cpu"
