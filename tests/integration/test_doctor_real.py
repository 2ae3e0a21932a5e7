"""The doctor on a whole installation: all extras, FEniCS, MPI and Slurm's commands."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from distlfm.doctor.checks import PROBES, Check, run_checks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not all(shutil.which(command) for command in ("mpirun", "sinfo")), reason="needs Open MPI and Slurm's commands"
    ),
]


def processes_with(mark: str) -> list[str]:
    """Command lines of all processes whose environment holds `mark`: a child cannot lose it by leaving its session."""
    found = []
    for directory in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (directory / "environ").read_bytes():
                found.append((directory / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


@pytest.fixture(scope="module")
def mark() -> str:
    return f"DOCTOR_TEST_MARK={secrets.token_hex(8)}"


@pytest.fixture(scope="module")
def checks(mark: str, tmp_path_factory: pytest.TempPathFactory) -> list[Check]:
    name, _, value = mark.partition("=")
    return run_checks(tmp_path_factory.mktemp("runs"), environment={**os.environ, name: value})


def test_nothing_is_broken_and_nothing_but_cuda_is_missing(checks: list[Check]) -> None:
    assert [check.name for check in checks] == [probe.name for probe in PROBES]
    assert [check for check in checks if check.status == "broken"] == []
    has_gpu = Path("/proc/driver/nvidia/version").exists()
    assert [check.name for check in checks if check.status == "missing"] == ([] if has_gpu else ["cuda"])


def test_every_line_has_a_detail_and_every_fault_a_fix(checks: list[Check]) -> None:
    assert all(check.detail for check in checks)
    assert [check.name for check in checks if bool(check.fix) == (check.status == "ok")] == []


def test_no_process_that_the_doctor_started_survives_it(checks: list[Check], mark: str) -> None:
    assert {check.name: check.status for check in checks}["ray"] == "ok"
    assert processes_with(mark) == []


def test_mark_of_a_process_is_found(mark: str) -> None:
    """The search above can see what a probe starts while it runs."""
    name, _, value = mark.partition("=")
    child = subprocess.Popen(["sleep", "60"], env={**os.environ, name: value})
    try:
        time.sleep(0.2)
        assert processes_with(mark) == ["sleep 60 "]
    finally:
        child.kill()
        child.wait()


def test_ray_that_is_cut_short_leaves_no_process(tmp_path: Path) -> None:
    """A time limit in the middle of Ray's start, when its servers are up and its driver waits for them."""
    name, value = "DOCTOR_TEST_MARK", secrets.token_hex(8)
    for time_limit in (2.0, 3.5):
        run_checks(tmp_path, only=["ray"], time_limit=time_limit, environment={**os.environ, name: value})
        assert processes_with(f"{name}={value}") == []
