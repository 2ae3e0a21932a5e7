"""Trainings by the tasks of a Slurm job: they have the losses of one process, and a preempted job goes on by itself."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
from jobs import Job, Queue
from train_runs import assert_close_run, told, write_training

from distlfm.pipeline.train import train
from distlfm.pipeline.train_log import lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SLOW = 1.0
"""Seconds of a step: a warning comes before the last one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, a training of it in one process in `calm`, and a config that takes its time."""
    folder = write_training(tmp_path_factory.mktemp("training"))
    train(folder / "train.yaml", [f"run.dir={folder / 'calm'}"])
    slow = json.loads((folder / "train.yaml").read_text()) | {"plugins": ["slowly"]}
    (folder / "slow.yaml").write_text(json.dumps(slow))
    return folder


def wait_for_step(out: Path, step: int, job: Job, seconds: float = 240.0) -> None:
    until, path = time.monotonic() + seconds, out / "metrics.jsonl"
    while not (path.exists() and any(line["step"] >= step for line in lines(path) if line["event"] == "step")):
        assert time.monotonic() < until, f"no step {step} within {seconds:g} s:\n{job.text}"
        time.sleep(0.02)


def ranks(queue: Queue, node: str) -> list[int]:
    """The processes that train on a node."""
    return [pid for pid, line in queue.cluster.processes(node).items() if line.startswith(f"{sys.executable} -m ")]


def test_a_preempted_training_on_two_nodes_goes_on_and_has_the_losses_of_one_process(
    queue: Queue, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    queue.pace(SLOW)
    job = queue.submit("train", folder / "slow.yaml", "--out", out)
    wait_for_step(out, 3, job)
    assert ranks(queue, "n2")
    urgent = queue.urgent()
    assert urgent.wait() == "COMPLETED", urgent.text
    job.wait_for({"PENDING"})
    queue.pace(0.0)
    assert job.wait() == "COMPLETED", job.text
    assert job.restarts == 1
    assert f"job {job.name} is queued again" in job.text
    assert "2 ranks" in job.text
    stopped = re.search(r"Stopped by SIGUSR1 after (\d+) of", job.text)
    assert stopped is not None
    assert [line["step"] for line in told(out, "start")] == [int(stopped[1])], "steps were lost or done twice"
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
