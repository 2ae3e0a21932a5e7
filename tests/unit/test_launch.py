"""The launch programs: what they start, how they pass signals on, and when a job is queued again."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from distlfm.cluster.blocks.job import GRACE_SECONDS
from distlfm.cluster.ray import session as ray_session
from distlfm.cluster.ray.hosts import Machines, start_command
from distlfm.cluster.ray.node import NodeStarted, Orders, environment_of
from distlfm.cluster.ray.node import arguments as ray_arguments
from distlfm.cluster.slurm.allocation import Allocation
from distlfm.errors import UsageError
from distlfm.launch import ddp, mpi_group, preempt, ray_cluster
from distlfm.launch.ddp import rank_environment, step_command
from distlfm.launch.preempt import work_environment
from distlfm.launch.ray_cluster import site_of
from distlfm.runtime.process import LOOPBACK, free_port, interface_address, own_address

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


class Verb:
    """A stand-in for a verb's process, that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[signal.Signals] = []

    def send_signal(self, which: signal.Signals) -> None:
        self.told.append(which)


@pytest.mark.parametrize(("in_slurm", "at_once"), [(True, []), (False, [signal.SIGTERM])])
def test_an_end_that_only_the_launcher_was_told_of_reaches_the_verb_once_slurm_would_have_told_it(
    in_slurm: bool, at_once: list[signal.Signals], monkeypatch: pytest.MonkeyPatch
) -> None:
    verb: Any = Verb()
    clock = [0.0]
    monkeypatch.setattr(preempt.time, "monotonic", lambda: clock[0])
    with preempt.Relay(in_slurm).listening() as relay:
        os.kill(os.getpid(), signal.SIGTERM)
        for clock[0] in (0.0, 5.0, GRACE_SECONDS):
            relay.pass_on(verb)
        assert verb.told == at_once
        for clock[0] in (GRACE_SECONDS + 3, GRACE_SECONDS + 30):
            relay.pass_on(verb)
        assert verb.told == [signal.SIGTERM]


def test_a_program_that_is_not_there_is_told_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for name, value in {**JOB, "SLURM_NTASKS": "2"}.items():
        monkeypatch.setenv(name, value)
    for program in (ddp, ray_cluster):
        with pytest.raises(SystemExit) as ended:
            program.main(["train", "a.yaml"])
        assert ended.value.code == 1
        assert "distlfm: srun cannot be started: No such file or directory." in capsys.readouterr().err


@pytest.mark.parametrize("launcher", [ddp, mpi_group])
@pytest.mark.parametrize(
    ("state", "reached", "code"),
    [("RUNNING", "n1", 75), ("RUNNING", "n*", 3), ("RUNNING", "none", 3), ("COMPLETING", "n1", 3)],
    ids=["a node is lost", "all nodes are there", "srun starts nothing", "the job is cancelled"],
)
def test_ranks_that_fail_because_a_node_is_lost_are_tried_again_and_others_are_not(
    launcher: Any, state: str, reached: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = f'case "$*" in *--nodelist={reached}\\ *) exit 0;; *) exit 1;; esac'
    program(tmp_path, "srun", f'case "$*" in *" true") {probe};; *) exit 3;; esac')
    monkeypatch.setattr(mpi_group, "verb_command", lambda _: ["sh", "-c", "exit 3"])
    program(tmp_path, "scontrol", f'echo "$@" >> {tmp_path}/asked; echo JobId=17 JobState={state} NodeList=n[1-2]')
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, value in {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as ended:
        launcher.main([launcher.VERBS[0], "a.yaml"])
    assert ended.value.code == code
    assert ("requeue 17" in asked(tmp_path)) == (code == 75)


def program(folder: Path, name: str, body: str) -> None:
    """A stand-in for one of Slurm's commands."""
    (folder / name).write_text(f"#!/bin/sh\n{body}\n")
    (folder / name).chmod(0o755)


def test_a_node_of_ray_is_told_what_it_may_use_and_shares_no_port(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU", "SLURM_CPUS_ON_NODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("distlfm.cluster.ray.node.object_store_bytes", lambda: 100 * 2**20)
    up = NodeStarted("n1", "10.0.0.1:20017", 4, 1, "/tmp/a")

    def told(**environment: str) -> list[str]:
        with pytest.MonkeyPatch.context() as around:
            for name, value in environment.items():
                around.setenv(name, value)
            return list(ray_arguments(up, "10.0.0.1", 20017))

    assert {"--num-cpus=4", "--num-gpus=1", "--port=20017", "--head", "--no-monitor"} <= set(told())
    assert {"--dashboard-agent-listen-port=0", "--min-worker-port=0", "--max-worker-port=0"} <= set(told())
    assert not any(word.startswith("--memory=") for word in told(SLURM_CPUS_ON_NODE="4"))
    memory = f"--memory={(8000 - 100) * 2**20}"
    assert memory in told(SLURM_MEM_PER_NODE="8000")
    assert memory in told(SLURM_MEM_PER_CPU="2000", SLURM_CPUS_ON_NODE="4")
    assert list(ray_arguments(up, "10.0.0.2", 0))[-1] == "--address=10.0.0.1:20017"


def test_a_nodes_ray_heeds_what_the_site_says_of_patience_and_nothing_of_another_ray() -> None:
    around = {"RAY_ADDRESS": "other:1", "RAY_AUTH_MODE": "none", "PATH": "/bin"}
    patience = "RAY_gcs_rpc_server_reconnect_timeout_s"
    found = environment_of(Orders("secret"), around)
    assert (found["RAY_AUTH_MODE"], found["RAY_AUTH_TOKEN"], found["PATH"]) == ("token", "secret", "/bin")
    assert "RAY_ADDRESS" not in found
    assert found[patience] == "15"
    assert environment_of(Orders("secret"), {patience: "5"})[patience] == "5"


@pytest.mark.parametrize(("joined", "asked"), [("n1:20017", "reach"), ("n2:20017", "contact"), ("", "contact")])
def test_a_ray_that_has_let_the_launcher_in_is_not_tried_once_more(
    joined: str, asked: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setenv(ray_session.JOINED, joined)
    for name in ("reach", "contact"):
        monkeypatch.setattr(ray_session, name, lambda address, name=name: called.append(f"{name} {address}"))
    monkeypatch.setattr(ray_session, "_connected", lambda *_: nullcontext())
    monkeypatch.setattr(ray_session, "_address", lambda _: "n1:20017")
    for name in ray_session.NO_HISTORY:
        monkeypatch.setenv(name, "")
    with ray_session._joined(ModuleType("ray"), "n1:20017"):
        assert called == [f"{asked} n1:20017"]


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
    site = Machines(python=("/some where/python",))
    by_srun = start_command("n2", "srun", site)
    assert by_srun[0] == "srun"
    assert "--nodelist=n2" in by_srun
    by_ssh = start_command("elsewhere", "ssh", site)
    assert by_ssh[:4] == ["ssh", "-o", "BatchMode=yes", "elsewhere"]
    assert "'/some where/python' -m distlfm.cluster.ray.node" in by_ssh[4]
    assert start_command(socket.gethostname(), "ssh", site)[0] == "/some where/python"


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
