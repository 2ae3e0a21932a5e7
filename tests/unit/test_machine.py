"""Only what a process may use is used."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import TextIO

import pytest

from distlfm.cluster.machine import MEBIBYTE, free_bytes, object_store_bytes, usable_cpus
from distlfm.cluster.ray import pool as ray_pool
from distlfm.cluster.ray import session as ray_surroundings
from distlfm.cluster.ray.session import RaySession, ray_session, require_tokens
from distlfm.errors import UsageError, WorkError
from distlfm.runtime.process import short_temporary
from tests.support.pool_toy import ToyJob


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


MEMINFO = "MemTotal: 4000 kB\nMemFree: 100 kB\nMemAvailable: 2000 kB\n"


@pytest.mark.parametrize(
    ("files", "own", "free"),
    [
        ({}, "0::/a\n", 2_048_000),
        ({"a/memory.max": "max\n"}, "0::/a\n", 2_048_000),
        (
            {"a/memory.max": "900000", "a/memory.current": "500000", "a/memory.stat": "anon 7\ninactive_file 50000\n"},
            "0::/a/b\n",
            450_000,
        ),
        (
            {
                "memory/j/memory.limit_in_bytes": "900000",
                "memory/j/memory.usage_in_bytes": "800000",
                "memory/j/memory.stat": "inactive_file 9\ntotal_inactive_file 20000\n",
            },
            "4:memory:/j\n1:x:/\n",
            120_000,
        ),
        ({"a/memory.max": "10", "a/memory.current": "20", "a/memory.stat": ""}, "0::/a\n", 0),
        ({"a/memory.max": "nonsense"}, "0::/a\nnonsense\n", 2_048_000),
    ],
)
def test_free_memory_is_the_least_that_machine_and_control_groups_have(
    tmp_path: Path, files: dict[str, str], own: str, free: int
) -> None:
    tree, mine = groups(tmp_path, files, own)
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert free_bytes(tmp_path / "meminfo", tree, mine) == free


def test_where_nothing_tells_of_memory_nothing_is_said(tmp_path: Path) -> None:
    assert free_bytes(tmp_path / "none", tmp_path, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("asked", "local", "free", "memory", "workers"),
    [
        (None, True, 3_200 * MEBIBYTE, 1_200 * MEBIBYTE, 2),
        (None, True, 100 * MEBIBYTE, 1_200 * MEBIBYTE, 1),
        (None, True, 64_000 * MEBIBYTE, 1_200 * MEBIBYTE, 8),
        (None, True, None, 1_200 * MEBIBYTE, 8),
        (None, True, 100 * MEBIBYTE, 0, 8),
        (None, False, 100 * MEBIBYTE, 1_200 * MEBIBYTE, 8),
        (5, True, 100 * MEBIBYTE, 1_200 * MEBIBYTE, 5),
    ],
)
def test_a_machine_gets_no_more_workers_than_its_memory_holds_unless_they_are_asked_for(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: int | None,
    local: bool,
    free: int | None,
    memory: int,
    workers: int,
) -> None:
    monkeypatch.setattr(ray_pool, "free_bytes", lambda: free)
    session = RaySession(ModuleType("ray"), "127.0.0.1:1", local)
    monkeypatch.setattr(RaySession, "node_cpus", lambda _: {"here": 8})
    assert ray_pool.RayPool(session, asked).planned(ToyJob(tmp_path, memory=memory), 100) == workers


def test_a_private_directory_that_another_driver_sweeps_away_is_made_anew(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Between the making of its lock and the locking, a new directory looks like one that was left behind."""
    real, seen = fcntl.flock, []

    def swept(lock: TextIO, how: int) -> None:
        seen.append(Path(lock.name).parent)
        if len(seen) == 1:
            shutil.rmtree(seen[0])
        real(lock, how)

    monkeypatch.setattr(ray_surroundings, "short_temporary", lambda: tmp_path)
    monkeypatch.setattr("fcntl.flock", swept)
    with ray_surroundings.private_directory() as directory:
        assert (directory / "lock").exists()
        assert directory == seen[1] != seen[0]
    assert list(tmp_path.iterdir()) == []


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
