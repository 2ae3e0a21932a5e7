"""A helper's environment: what a launcher left goes, what the user set stays."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from distlfm.errors import UsageError, WorkError
from distlfm.runtime import process as module
from distlfm.runtime.process import scrubbed_mpi_environment
from distlfm.solvers.fem.group.launcher import LaunchPlan, plan_launch, reachable_address

UNDER_A_LAUNCHER = {
    "HOME": "/home/someone",
    "PATH": "/usr/bin",
    "SLURM_JOB_ID": "7",
    "SLURM_CONF": "/etc/slurm.conf",
    "SLURM_PROCID": "1",
    "SLURM_STEP_ID": "0",
    "SLURMD_NODENAME": "n1",
    "PMI_FD": "9",
    "PMI2_RANK": "1",
    "PMIX_RANK": "1",
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_MCA_ess": "^singleton",
    "OMPI_MCA_orte_launch": "1",
    "OMPI_UNIVERSE_SIZE": "2",
    "ORTE_SCHIZO_DETECTION": "x",
    "OMPI_MCA_coll_tuned_priority": "40",
}


def test_local_group_sees_nothing_of_the_launcher_it_was_started_under() -> None:
    scrubbed = scrubbed_mpi_environment(UNDER_A_LAUNCHER)
    added = set(scrubbed) - set(UNDER_A_LAUNCHER)
    assert set(scrubbed) - added == {"HOME", "PATH", "OMPI_MCA_coll_tuned_priority"}
    assert scrubbed["OMPI_MCA_plm"] == "isolated"
    assert scrubbed["OMPI_MCA_btl"] == "self,vader"
    assert scrubbed["OMPI_MCA_rmaps_base_oversubscribe"] == "1"
    assert scrubbed["OMP_NUM_THREADS"] == "1"


def test_group_across_nodes_keeps_the_job_and_loses_the_step() -> None:
    scrubbed = scrubbed_mpi_environment(UNDER_A_LAUNCHER, local=False)
    assert scrubbed["SLURM_JOB_ID"] == "7"
    assert scrubbed["SLURM_CONF"] == "/etc/slurm.conf"
    assert not {"SLURM_PROCID", "SLURM_STEP_ID", "PMIX_RANK", "OMPI_COMM_WORLD_RANK"} & set(scrubbed)
    assert not {"OMPI_MCA_plm", "OMPI_MCA_btl", "OMPI_MCA_hwloc_base_binding_policy"} & set(scrubbed)


def test_callers_environment_is_not_changed() -> None:
    before = dict(UNDER_A_LAUNCHER)
    scrubbed_mpi_environment(UNDER_A_LAUNCHER)
    assert before == UNDER_A_LAUNCHER


def test_ranks_on_other_nodes_are_started_by_the_python_that_the_site_names_and_those_here_by_this_one() -> None:
    site = {"DISTLFM_PYTHON": "apptainer exec 'my image.sif' python3"}
    job = {"SLURM_JOB_ID": "7"}
    assert LaunchPlan("srun", (), job | site).python == ["apptainer", "exec", "my image.sif", "python3"]
    assert LaunchPlan("srun", (), job).python == [sys.executable]
    assert LaunchPlan("mpirun", (), site).python == LaunchPlan("python", (), site).python == [sys.executable]


def test_ranks_on_other_nodes_dial_in_over_the_network_that_the_site_names() -> None:
    assert reachable_address({"SLURM_JOB_NODELIST": "nowhere[1-2]", "DISTLFM_INTERFACE": "lo"}) == "127.0.0.1"
    with pytest.raises(UsageError, match=r"interface 'ib7'.*DISTLFM_INTERFACE"):
        reachable_address({"SLURM_JOB_NODELIST": "nowhere[1-2]", "DISTLFM_INTERFACE": "ib7"})


def test_a_container_without_slurms_commands_is_told_to_bind_them(tmp_path: Path) -> None:
    with pytest.raises(WorkError, match=r"srun cannot be started.*container"):
        plan_launch(2, "srun", {"SLURM_JOB_ID": "7", "PATH": str(tmp_path)})


@pytest.mark.parametrize(("user_id", "allowed"), [(0, True), (1000, False)])
def test_mpirun_is_allowed_to_root_only_when_root_calls(
    monkeypatch: pytest.MonkeyPatch, user_id: int, allowed: bool
) -> None:
    monkeypatch.setattr(module.os, "geteuid", lambda: user_id)
    scrubbed = scrubbed_mpi_environment({"HOME": "/home/someone"})
    assert ("OMPI_ALLOW_RUN_AS_ROOT" in scrubbed) is allowed
    assert ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM" in scrubbed) is allowed


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ({"HOME": "/home/someone"}, "/home/someone/.cache/distlfm/dijitso"),
        ({"HOME": "/home/someone", "XDG_CACHE_HOME": "/scratch/c"}, "/scratch/c/distlfm/dijitso"),
        ({"HOME": "/home/someone", "DIJITSO_CACHE_DIR": "/scratch/forms"}, "/scratch/forms"),
        ({}, str(Path.home() / ".cache/distlfm/dijitso")),
    ],
)
def test_compiled_forms_are_kept_where_the_user_keeps_caches(base: dict[str, str], expected: str) -> None:
    assert scrubbed_mpi_environment(base)["DIJITSO_CACHE_DIR"] == expected
