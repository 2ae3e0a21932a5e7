"""dolfin-adjoint on the UFL of the installed dolfin: gradients are right, alone and on two ranks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from distlfm.runtime.process import scrubbed_mpi_environment
from tests.support.importing import ROOT

PROGRAM = ROOT / "tests" / "support" / "heat_gradient_program.py"
pytestmark = pytest.mark.slow


def run_heat(*launcher: str) -> dict[str, Any]:
    finished = subprocess.run(
        [*launcher, sys.executable, str(PROGRAM)],
        env=scrubbed_mpi_environment(os.environ),
        capture_output=True,
        text=True,
        timeout=120,  # the forms are compiled once, into a cache that is kept
    )
    assert finished.returncode == 0, finished.stderr
    answer: dict[str, Any] = json.loads(finished.stdout.strip().splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def serial() -> dict[str, Any]:
    return run_heat()


def test_forms_of_dolfin_and_of_dolfin_adjoint_are_one_class(serial: dict[str, Any]) -> None:
    assert serial["one_form_class"] is True


@pytest.mark.parametrize("control", ["force", "diffusivity"])
def test_gradient_of_the_heat_equation_passes_the_taylor_test(serial: dict[str, Any], control: str) -> None:
    without_gradient, with_gradient = serial[control]["R0"], serial[control]["R1"]
    assert len(with_gradient) >= 3
    assert 0.9 < min(without_gradient) <= max(without_gradient) < 1.1, without_gradient
    assert 1.9 < min(with_gradient) <= max(with_gradient) < 2.1, with_gradient


def test_two_ranks_give_the_functional_and_gradient_of_one(serial: dict[str, Any]) -> None:
    parallel = run_heat("mpirun", "-n", "2")
    assert (serial["num_ranks"], parallel["num_ranks"]) == (1, 2)
    for quantity in ("functional", "force_derivative", "diffusivity_derivative"):
        assert parallel[quantity] == pytest.approx(serial[quantity], rel=1e-10), quantity
        assert abs(serial[quantity]) > 1e-4, f"{quantity} is too small for the comparison to mean anything"


def test_helper_group_starts_inside_another_mpirun(tmp_path: Path) -> None:
    """The variables of the enclosing launcher would make the inner MPI join it, and abort."""
    inner = tmp_path / "inner.py"
    inner.write_text(
        "from mpi4py import MPI\n"
        "ranks = MPI.COMM_WORLD.gather(MPI.COMM_WORLD.Get_rank())\n"
        "if MPI.COMM_WORLD.Get_rank() == 0: print('ranks', ranks)\n"
    )
    outer = tmp_path / "outer.py"
    outer.write_text(
        "import os, subprocess, sys\n"
        "from distlfm.runtime.process import scrubbed_mpi_environment\n"
        "assert 'PMIX_RANK' in os.environ\n"
        f"command = ['mpirun', '-n', '2', sys.executable, {str(inner)!r}]\n"
        "subprocess.run(command, env=scrubbed_mpi_environment(os.environ), check=True, timeout=60)\n"
    )
    finished = subprocess.run(
        ["mpirun", "-n", "1", sys.executable, str(outer)],
        env=scrubbed_mpi_environment(os.environ),
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.strip() == "ranks [0, 1]"
