"""The launch programs: what they start, how they pass signals on, and when a job is queued again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from distlfm.cluster.network import LOOPBACK, free_port, interface_address, own_address
from distlfm.cluster.ray_hosts import Site, start_command
from distlfm.cluster.slurm import Allocation
from distlfm.errors import UsageError
from distlfm.launch.chain import chain, links
from distlfm.launch.ddp import rank_environment, step_command
from distlfm.launch.preempt import work_environment
from distlfm.launch.ray_cluster import site_of

ALLOCATION = Allocation("17", 17, ("n1", "n2"), tasks=2)
PLAIN = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "DISTLFM_"))}
JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n1"}
VERB = """import signal, sys, time
open(sys.argv[1] + "/began", "w").close()
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
open(sys.argv[1] + "/ready", "w").close()
time.sleep(60)
"""
PROGRAM = """import sys
from distlfm.launch import preempt
preempt.launch(lambda log: log.run([sys.executable, "-c", sys.argv[1], sys.argv[2]]))
"""


def launched(folder: Path, environment: dict[str, str], verb: str = VERB) -> subprocess.Popen[str]:
    """A launch program around a verb, with a `scontrol` that keeps what it was asked."""
    fake = folder / "scontrol"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {folder}/asked\n')
    fake.chmod(0o755)
    path = {"PATH": f"{folder}:{os.environ['PATH']}"}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, verb, str(folder)],
        env={**PLAIN, **environment, **path},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def after(folder: Path, process: subprocess.Popen[str], *which: signal.Signals) -> tuple[int, str]:
    """Signals as soon as the verb is ready; the code and what was said."""
    until = time.monotonic() + 60
    while not (folder / "ready").exists():
        assert time.monotonic() < until
        time.sleep(0.01)
    for one in which:
        process.send_signal(one)
    said = process.communicate(timeout=60)[0]
    return process.returncode, said


def asked(folder: Path) -> list[str]:
    return (folder / "asked").read_text().splitlines() if (folder / "asked").exists() else []


@pytest.mark.slow
def test_a_warned_job_is_queued_again(tmp_path: Path) -> None:
    code, said = after(tmp_path, launched(tmp_path, JOB), signal.SIGUSR1)
    assert (code, asked(tmp_path)) == (75, ["requeue 17"])
    assert "job 17 is queued again" in said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({}, "no Slurm job"),
        ({**JOB, "DISTLFM_REQUEUE": "0"}, "DISTLFM_REQUEUE is 0"),
        ({**JOB, "SLURM_RESTART_COUNT": "50"}, "after 50 times"),
    ],
)
def test_a_job_is_not_queued_again_without_slurm_against_the_sites_will_or_for_ever(
    tmp_path: Path, environment: dict[str, str], reason: str
) -> None:
    code, said = after(tmp_path, launched(tmp_path, environment), signal.SIGUSR1)
    assert (code, asked(tmp_path)) == (75, [])
    assert reason in said


@pytest.mark.slow
def test_a_verb_that_dies_of_the_warning_before_it_listens_is_queued_again_all_the_same(tmp_path: Path) -> None:
    deaf = "import sys, time; open(sys.argv[1] + '/ready', 'w').close(); time.sleep(60)"
    code, _ = after(tmp_path, launched(tmp_path, JOB, deaf), signal.SIGUSR1)
    assert (code, asked(tmp_path)) == (75, ["requeue 17"])


@pytest.mark.slow
def test_a_cancelled_job_is_not_queued_again(tmp_path: Path) -> None:
    code, _ = after(tmp_path, launched(tmp_path, {}), signal.SIGTERM)
    assert (code, asked(tmp_path)) == (143, [])


@pytest.mark.slow
def test_a_failure_is_the_jobs_failure(tmp_path: Path) -> None:
    verb = "import sys; open(sys.argv[1] + '/ready', 'w').close(); sys.exit(2)"
    code, said = after(tmp_path, launched(tmp_path, JOB, verb))
    assert (code, asked(tmp_path)) == (2, [])
    assert "ended with exit code 2" in said


def test_ranks_are_the_tasks_of_a_step_with_the_cores_of_the_job() -> None:
    environment = {"DISTLFM_PYTHON": "apptainer exec a.sif python3", "SLURM_CPUS_PER_TASK": "8"}
    words = step_command(ALLOCATION, ["train", "a.yaml"], environment)
    assert words[:2] == ["srun", "--ntasks=2"]
    assert "--cpus-per-task=8" in words
    assert words[-8:] == ["apptainer", "exec", "a.sif", "python3", "-m", "distlfm", "train", "a.yaml"]


def test_ranks_talk_over_the_network_that_the_site_names() -> None:
    found = rank_environment({"DISTLFM_INTERFACE": "ib0"})
    assert (found["GLOO_SOCKET_IFNAME"], found["NCCL_SOCKET_IFNAME"]) == ("ib0", "ib0")
    assert rank_environment({}) == {}


def test_temporary_files_go_where_the_site_wants_them_or_else_where_they_always_go() -> None:
    assert work_environment({"DISTLFM_SCRATCH": "/local", "TMPDIR": "/home/tmp"})["TMPDIR"] == "/local"
    assert work_environment({"TMPDIR": "/home/tmp"})["TMPDIR"] == "/home/tmp"
    assert "TMPDIR" not in work_environment({})


def test_a_node_is_started_by_srun_in_a_job_by_ssh_elsewhere_and_directly_here() -> None:
    site = site_of({"DISTLFM_PYTHON": "/a venv/python"} | {"DISTLFM_SCRATCH": "/scratch"}, ALLOCATION)
    assert (site.port, site.scratch) == (20017, "/scratch")
    site = Site(python=("/some where/python",))
    by_srun = start_command("n2", "srun", site)
    assert by_srun[0] == "srun"
    assert "--nodelist=n2" in by_srun
    by_ssh = start_command("elsewhere", "ssh", site)
    assert by_ssh[:4] == ["ssh", "-o", "BatchMode=yes", "elsewhere"]
    assert "'/some where/python' -m distlfm.cluster.ray_node" in by_ssh[4]
    assert start_command(socket.gethostname(), "ssh", site)[0] == "/some where/python"


def test_a_chain_sends_each_job_after_the_one_before(tmp_path: Path) -> None:
    sent: list[list[str]] = []

    def send(words: list[str]) -> str:
        sent.append(list(words))
        return str(100 + len(sent))

    found = links(tmp_path, Path("g.yaml"), Path("f.yaml"), Path("t.yaml"))
    numbers = chain(found, Path("slurm"), ["--partition=long"], send)
    assert numbers == {"generate": "101", "fit": "102", "train": "103", "evaluate": "104"}
    waits = [[word for word in words if word.startswith("--dependency")] for words in sent]
    assert waits == [[], ["--dependency=afterok:101"], ["--dependency=afterok:102"], ["--dependency=afterok:103"]]
    assert all("--partition=long" in words for words in sent)
    given = [words[[word.endswith(".sbatch") for word in words].index(True) :] for words in sent]
    store, fits, operator = tmp_path / "store.zarr", tmp_path / "fits", tmp_path / "operator"
    assert given == [
        ["slurm/generate.sbatch", "g.yaml", "--out", str(store)],
        ["slurm/fit.sbatch", "f.yaml", "--data", str(store), "--out", str(fits)],
        ["slurm/train.sbatch", "t.yaml", "--data", str(fits), "--out", str(operator)],
        ["slurm/evaluate.sbatch", str(operator), str(fits), "--out", str(tmp_path / "judged")],
    ]
    assert f"--export=ALL,DISTLFM_COMPLETE={fits}" in sent[1]


def test_a_chain_refuses_a_place_that_sbatch_would_not_hand_on_whole(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has a comma"):
        links(tmp_path / "a,b", Path("g.yaml"), Path("f.yaml"), Path("t.yaml"))


def test_a_taken_port_is_left_out() -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert free_port(port) > port


def test_an_interface_has_an_address_and_an_unknown_one_is_refused_with_those_that_are_known() -> None:
    assert interface_address("lo") == LOOPBACK == own_address()
    with pytest.raises(UsageError, match=r"no IPv4 address .*'ib7'.* one of: .*lo"):
        own_address(interface="ib7")
