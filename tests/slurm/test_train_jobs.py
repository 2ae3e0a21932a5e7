"""Trainings by the tasks of a Slurm job have the losses of one process, even if it is preempted and a node crashes."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from distlfm.training.log import read_metrics
from distlfm.verbs.train import train
from tests.support.slurm_jobs import Job, Queue, wait_until
from tests.support.train_runs import assert_close_run, told, write_training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SLOW = 1.0
"""Seconds of a step: a warning comes before the last one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, a training of it in one process in `calm`, and a config that takes its time."""
    folder = write_training(tmp_path_factory.mktemp("training"))
    train(folder / "train.yaml", [f"run.dir={folder / 'calm'}"])
    slow = json.loads((folder / "train.yaml").read_text()) | {"plugins": ["tests.support.slowly"]}
    (folder / "slow.yaml").write_text(json.dumps(slow))
    return folder


def wait_for_step(out: Path, step: int, job: Job) -> None:
    path = out / "metrics.jsonl"
    wait_until(
        lambda: any(line["step"] >= step for line in read_metrics(path) if line["event"] == "step"),
        f"step {step}",
        job,
    )


def ranks(queue: Queue, node: str) -> list[int]:
    """The processes that train on a node."""
    return [pid for pid, line in queue.cluster.processes(node).items() if line.startswith(f"{sys.executable} -m ")]


def test_a_training_on_two_nodes_outlives_preemption_and_one_of_them_and_has_the_losses_of_one_process(
    queue: Queue, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    queue.pace(SLOW)
    job = queue.submit("train", folder / "slow.yaml", "--out", out)
    wait_for_step(out, 3, job)
    assert ranks(queue, "n2")
    urgent = queue.urgent()
    assert urgent.wait() == "COMPLETED", urgent.text
    job.wait_for_restart(1)
    assert f"job {job.name} is queued again" in job.text
    assert "2 ranks" in job.text
    found = re.search(r"Stopped by SIGUSR1 after (\d+) of", job.text)
    assert found is not None
    stopped = int(found[1])

    wait_for_step(out, stopped + 1, job)
    assert [line["step"] for line in told(out, "start")] == [stopped], "steps were lost or done twice"
    queue.cluster.cut_power("n2")
    wait_until(lambda: "n1: task 0: Exited with exit code 1" in job.text, "end of the rank that is left", job)
    assert job.state == "RUNNING", "it waits until Slurm notices, or srun gives the other rank up"
    queue.cluster.give_up("n2")
    job.wait_for_restart(2)
    queue.pace(0.0)
    queue.cluster.start_node("n2")
    assert job.wait() == "COMPLETED", job.text
    assert job.restarts == 2
    assert [line["step"] for line in told(out, "start")] == [stopped], "of a crash the last checkpoint is left"
    assert_close_run(out, folder / "calm")


def test_a_rank_that_dies_ends_its_job_with_a_failure_and_leaves_no_other(
    queue: Queue, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    queue.pace(SLOW)
    job = queue.submit("train", folder / "slow.yaml", "--out", out)
    wait_for_step(out, 3, job)
    [rank] = ranks(queue, "n2")
    os.kill(rank, signal.SIGKILL)
    assert job.wait() == "FAILED", job.text
    assert (job.code, job.restarts) == (128 + signal.SIGKILL, 0)
    queue.cluster.wait_quiet()
    assert not (out / "operator.pt").exists()
