"""Trainings by the tasks of a Slurm job: they have the losses of one process, and a preempted job goes on by itself."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from jobs import Job, Queue
from train_runs import assert_close_run, told, write_training

from distlfm.pipeline.train import train
from distlfm.pipeline.train_log import lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


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


def test_a_preempted_training_on_two_nodes_goes_on_and_has_the_losses_of_one_process(
    queue: Queue, folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    queue.settle(slowly=0.2)
    job = queue.submit("train", folder / "slow.yaml", "--out", out)
    wait_for_step(out, 4, job)
    assert any("distlfm train" in line for line in queue.cluster.processes("n2").values())
    queue.settle()
    urgent = queue.urgent()
    assert urgent.wait() == "COMPLETED", urgent.text
    assert job.wait() == "COMPLETED", job.text
    assert job.restarts == 1
    assert f"job {job.name} is queued again" in job.text
    assert "2 ranks" in job.text
    stopped = re.search(r"Stopped by SIGUSR1 after (\d+) of", job.text)
    assert stopped is not None
    assert [line["step"] for line in told(out, "start")] == [int(stopped[1])], "steps were lost or done twice"
    assert_close_run(out, folder / "calm")
