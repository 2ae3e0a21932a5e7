"""The doctor names what is missing or broken and how to mend it, and survives every part that fails.

Parts are broken by real means: modules on the probes' path that fail, an empty PATH, a directory below a file.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distlfm.doctor.checks import PROBES, Check, run_checks, to_json, to_rows
from distlfm.doctor.probe import Finding
from distlfm.doctor.system import free_space, race_replacements
from distlfm.errors import UsageError
from distlfm.optional import install_line


def only_check(name: str, directory: Path, time_limit: float | None = None, **changes: str) -> Check:
    """The one check `name`, its probe seeing this environment with `changes`."""
    (check,) = run_checks(directory, only=[name], time_limit=time_limit, environment={**os.environ, **changes})
    assert check.name == name
    return check


def alive(pid: int) -> bool:
    """Whether the process runs; one that ended and was not yet collected does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return False


def wait_for(path: Path, seconds: float = 20.0) -> str:
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < deadline, f"{path} did not appear"
        time.sleep(0.02)
    return path.read_text()


def test_library_that_fails_on_import_is_broken_with_the_last_line_of_its_error(tmp_path: Path) -> None:
    (tmp_path / "gpytorch.py").write_text("raise RuntimeError('compiled for another torch')\n")
    check = only_check("gpytorch", tmp_path, PYTHONPATH=str(tmp_path))
    assert check.status == "broken"
    assert check.detail == "RuntimeError: compiled for another torch"
    assert check.fix == "pip install --force-reinstall gpytorch"


def test_library_that_crashes_the_process_is_broken_by_its_signal(tmp_path: Path) -> None:
    (tmp_path / "dolfin.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    check = only_check("fenics", tmp_path, PYTHONPATH=str(tmp_path))
    assert (check.status, check.detail) == ("broken", "ended by SIGSEGV")
    assert check.fix.startswith("apt-get install python3-dolfin")


def test_library_that_ends_the_process_quietly_is_broken(tmp_path: Path) -> None:
    (tmp_path / "gpytorch.py").write_text("import os\nos._exit(0)\n")
    check = only_check("gpytorch", tmp_path, PYTHONPATH=str(tmp_path))
    assert (check.status, check.detail) == ("broken", "ended with exit code 0")


@pytest.mark.parametrize(
    ("name", "module", "fix"),
    [
        ("fenics", "dolfin", "apt-get install python3-dolfin python3-petsc4py python3-mpi4py openmpi-bin"),
        ("dolfin-adjoint", "dolfin", install_line("fem")),
        ("petsc", "petsc4py", "apt-get install python3-petsc4py"),
        ("mpi", "mpi4py", "apt-get install openmpi-bin python3-mpi4py"),
        ("ray", "ray", 'pip install "distlfm[ray]"'),
        ("flower", "flwr", 'pip install "distlfm[federated]"'),
        ("page", "starlette", 'pip install "distlfm[serve]"'),
        ("torch", "torch", "pip install --force-reinstall torch"),
    ],
)
def test_absent_library_is_missing_with_its_install_line(tmp_path: Path, name: str, module: str, fix: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{module!r}] = None\n")
    check = only_check(name, tmp_path, PYTHONPATH=str(tmp_path))
    assert (check.status, check.fix) == ("missing", fix)
    assert f"{module} is not installed" in check.detail


@pytest.mark.parametrize(
    ("name", "command", "fix"),
    [
        ("mpi", "mpirun", "apt-get install openmpi-bin python3-mpi4py"),
        ("slurm", "sinfo, sbatch, srun", "apt-get install slurm-wlm"),
    ],
)
def test_command_that_is_not_on_the_path_is_missing(tmp_path: Path, name: str, command: str, fix: str) -> None:
    check = only_check(name, tmp_path, PATH=str(tmp_path))
    assert (check.status, check.fix) == ("missing", fix)
    assert check.detail.startswith(f"{command} ")


def test_mpirun_that_fails_is_broken_with_what_it_said(tmp_path: Path) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!{sys.executable}\nraise SystemExit('no slots on this machine')\n")
    mpirun.chmod(0o755)
    check = only_check("mpi", tmp_path, PATH=str(tmp_path))
    assert (check.status, check.detail) == ("broken", "mpirun: no slots on this machine")


def test_mpirun_of_another_mpi_is_broken(tmp_path: Path) -> None:
    """Such an mpirun starts two programs, each of which believes to be alone."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text('#!/bin/sh\nshift 2\n"$@" && "$@"\n')
    mpirun.chmod(0o755)
    check = only_check("mpi", tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert (check.status, check.fix) == ("broken", "apt-get install openmpi-bin python3-mpi4py")
    assert "worlds of size 1, 1" in check.detail


def test_slurm_command_that_fails_is_broken(tmp_path: Path) -> None:
    for command in ("sinfo", "sbatch", "srun"):
        (tmp_path / command).write_text(f"#!/bin/sh\n[ {command} = sbatch ] && exit 1\necho slurm 1.2\n")
        (tmp_path / command).chmod(0o755)
    check = only_check("slurm", tmp_path, PATH=f"{tmp_path}:/usr/bin:/bin")
    assert (check.status, check.detail) == ("broken", "sbatch -V fails")
    assert check.fix == "apt-get install slurm-wlm"


@pytest.mark.slow
def test_hanging_probe_is_broken_at_its_time_limit_and_nothing_of_it_survives(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    (tmp_path / "gpytorch.py").write_text(
        "import os, signal, subprocess, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = subprocess.Popen(['sleep', '300'])\n"
        f"open({str(pids)!r}, 'w').write(f'{{os.getpid()}} {{child.pid}}')\n"
        "time.sleep(300)\n"
    )
    start = time.monotonic()
    check = only_check("gpytorch", tmp_path, time_limit=1.5, PYTHONPATH=str(tmp_path))
    assert time.monotonic() - start < 15
    assert (check.status, check.detail) == ("broken", "no answer within 1.5 s")
    assert check.fix == "pip install --force-reinstall gpytorch"
    assert [alive(int(pid)) for pid in pids.read_text().split()] == [False, False]


def test_child_that_outlives_its_probe_is_ended_and_does_not_delay_the_answer(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    (tmp_path / "gpytorch.py").write_text(
        "import subprocess\n"
        f"open({str(pid_file)!r}, 'w').write(str(subprocess.Popen(['sleep', '300']).pid))\n"
        "raise RuntimeError('left a child')\n"
    )
    start = time.monotonic()
    check = only_check("gpytorch", tmp_path, time_limit=60, PYTHONPATH=str(tmp_path))
    assert check.detail == "RuntimeError: left a child"
    assert time.monotonic() - start < 20
    assert not alive(int(pid_file.read_text()))


def test_interrupt_ends_the_probes_too(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    (tmp_path / "gpytorch.py").write_text(
        f"import os, time\nopen({str(pid_file)!r}, 'w').write(str(os.getpid()))\ntime.sleep(300)\n"
    )
    call = f"from pathlib import Path\nrun_checks(Path({str(tmp_path)!r}), only=['gpytorch'])"
    doctor = subprocess.Popen(
        [sys.executable, "-c", f"from distlfm.doctor.checks import run_checks\n{call}"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        text=True,
    )
    probe = int(wait_for(pid_file))
    doctor.send_signal(signal.SIGINT)
    _, stderr = doctor.communicate(timeout=20)
    assert "KeyboardInterrupt" in stderr
    assert not alive(probe)


@pytest.mark.parametrize("name", ["zarr", "rename", "disk"])
def test_directory_below_a_file_is_broken(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").write_text("")
    check = only_check(name, tmp_path / "file" / "runs")
    assert (check.status, check.detail) == ("broken", f"{tmp_path / 'file'} is a file, not a directory")
    assert check.fix.startswith("distlfm doctor --dir DIR")


@pytest.mark.parametrize("name", ["zarr", "rename", "disk"])
def test_directory_that_does_not_exist_is_missing_with_the_command_that_makes_it(tmp_path: Path, name: str) -> None:
    check = only_check(name, tmp_path / "my runs")
    assert (check.status, check.fix) == ("missing", f"mkdir -p '{tmp_path / 'my runs'}'")


def test_checks_of_storage_leave_the_directory_as_it_was(tmp_path: Path) -> None:
    checks = run_checks(tmp_path, only=["zarr", "rename", "disk"])
    assert [check.status for check in checks] == ["ok", "ok", "ok"]
    assert "MB/s" in checks[0].detail
    assert list(tmp_path.iterdir()) == []


def test_replacement_that_is_not_atomic_is_seen(tmp_path: Path) -> None:
    assert race_replacements(tmp_path, shutil.copyfile, seconds=0.5).num_torn > 0


def test_rename_is_raced_by_reads_and_is_atomic_here(tmp_path: Path) -> None:
    race = race_replacements(tmp_path, os.replace, seconds=0.3)
    assert race.num_replacements > 10
    assert race.num_reads > 10
    assert race.num_torn == 0


def test_full_disk_is_broken(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    assert "GB free" in free_space(tmp_path, minimum=0)
    with pytest.raises(Finding) as caught:
        free_space(tmp_path, minimum=2 * free)
    assert caught.value.status == "broken"
    assert caught.value.fix.startswith("du ")


def test_too_few_open_files_is_broken(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        check = only_check("open-files", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (check.status, check.fix) == ("broken", "ulimit -n 4096")
    assert "only 512 open files" in check.detail


def test_machine_without_loopback_has_broken_ports(tmp_path: Path) -> None:
    apart = ["unshare", "--map-root-user", "--net"]
    if subprocess.run([*apart, "true"], capture_output=True).returncode != 0:
        pytest.skip("network namespaces are not allowed here")
    call = f"print(to_json(run_checks(Path({str(tmp_path)!r}), only=['ports'])))"
    program = f"from pathlib import Path\nfrom distlfm.doctor.checks import run_checks, to_json\n{call}"
    finished = subprocess.run([*apart, sys.executable, "-c", program], capture_output=True, text=True, check=True)
    (check,) = json.loads(finished.stdout)
    assert (check["status"], check["fix"]) == ("broken", "ip link set lo up")


def test_one_broken_part_leaves_the_other_lines_alone(tmp_path: Path) -> None:
    (tmp_path / "zarr.py").write_text("raise ImportError('half an installation')\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    checks = run_checks(tmp_path, only=["zarr", "ports", "disk"], environment=environment)
    assert {check.name: check.status for check in checks} == {"zarr": "broken", "ports": "ok", "disk": "ok"}


def test_quick_leaves_out_what_starts_mpi_or_ray(tmp_path: Path) -> None:
    heavy = ["fenics", "dolfin-adjoint", "petsc", "mpi", "ray"]
    checks = run_checks(tmp_path, quick=True, only=[*heavy, "ports", "open-files"])
    assert [check.name for check in checks] == ["ports", "open-files"]
    assert {probe.name for probe in PROBES if probe.starts_processes} == set(heavy)


def test_unknown_check_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"No check is called rays.*There are: torch.*ray"):
        run_checks(tmp_path, only=["rays"])


def test_every_line_is_written_for_programs_and_for_people() -> None:
    checks = [Check("mpi", "missing", "mpirun is not on the PATH", "apt-get install openmpi-bin")]
    assert json.loads(to_json(checks)) == [
        {
            "name": "mpi",
            "status": "missing",
            "detail": "mpirun is not on the PATH",
            "fix": "apt-get install openmpi-bin",
        }
    ]
    assert to_rows(checks) == [("mpi", "missing", "mpirun is not on the PATH", "apt-get install openmpi-bin")]
