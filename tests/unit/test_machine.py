"""Only what a process may use is used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from distlfm.cluster.machine import object_store_bytes, short_temporary, usable_cpus
from distlfm.cluster.ray_session import ray_session, require_tokens
from distlfm.errors import UsageError, WorkError


@pytest.fixture
def no_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))


def groups(folder: Path, files: dict[str, str], own: str) -> tuple[Path, Path]:
    """A tree of control groups, and the file that says which is ours."""
    for name, text in files.items():
        (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "tree" / name).write_text(text)
    (folder / "own").write_text(own)
    return folder / "tree", folder / "own"


@pytest.mark.parametrize(
    ("files", "own", "cpus"),
    [
        ({"a/b/cpu.max": "max 100000\n", "a/cpu.max": "300000 100000\n"}, "0::/a/b\n", 3),
        ({"a/cpu.max": "50000 100000\n"}, "0::/a\n", 1),
        ({"a/cpu.max": "max 100000\n"}, "0::/a\n", 64),
        ({"cpu.max": "250000 100000\n"}, "0::/\n", 2),
        ({"cpu/j/cpu.cfs_quota_us": "400000\n", "cpu/j/cpu.cfs_period_us": "100000\n"}, "4:cpu,cpuacct:/j\n1:x:/\n", 4),
        ({"cpu/j/cpu.cfs_quota_us": "-1\n", "cpu/j/cpu.cfs_period_us": "100000\n"}, "4:cpu,cpuacct:/j\n", 64),
        ({"a/cpu.max": "nonsense"}, "0::/a\nnonsense\n", 64),
    ],
)
@pytest.mark.usefixtures("no_affinity")
def test_a_quota_of_the_control_group_limits_the_cores(
    tmp_path: Path, files: dict[str, str], own: str, cpus: int
) -> None:
    tree, mine = groups(tmp_path, files, own)
    assert usable_cpus({}, tree, mine) == cpus


@pytest.mark.parametrize(
    ("environment", "cpus"),
    [
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "16"}, 4),
        ({"SLURM_CPUS_ON_NODE": "16"}, 16),
        ({"SLURM_CPUS_PER_TASK": "what", "SLURM_CPUS_ON_NODE": "8"}, 8),
        ({"SLURM_CPUS_PER_TASK": "1000"}, 64),
        ({"SLURM_CPUS_PER_TASK": "0"}, 1),
    ],
)
@pytest.mark.usefixtures("no_affinity")
def test_slurms_allotment_limits_the_cores(tmp_path: Path, environment: dict[str, str], cpus: int) -> None:
    assert usable_cpus(environment, tmp_path, tmp_path / "none") == cpus


def test_affinity_limits_the_cores(tmp_path: Path) -> None:
    assert usable_cpus({}, tmp_path, tmp_path / "none") == len(os.sched_getaffinity(0))


def test_the_object_store_is_modest() -> None:
    assert 80 * 2**20 <= object_store_bytes() <= 256 * 2**20


def test_a_long_temporary_directory_is_avoided(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / ("x" * 80)))
    assert len(str(short_temporary())) < 30


def test_a_ray_that_lets_everybody_in_is_refused() -> None:
    require_tokens("2.52.0")
    require_tokens("3.0.0.dev0")
    with pytest.raises(UsageError, match=r"Install 2\.52 or newer"):
        require_tokens("2.40.0")


def test_a_ray_that_the_machine_is_too_slow_for_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(**_: object) -> None:
        raise Exception("The current node timed out\nduring startup.")

    monkeypatch.setattr("ray.init", never)
    told = r"Cannot start Ray on this machine: The current node timed out during startup\. If this machine is very busy"
    with pytest.raises(WorkError, match=told), ray_session():
        pass
