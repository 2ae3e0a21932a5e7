"""However many processes train, and whoever started them, the losses are those of one, and one writes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from distlfm.config import load
from distlfm.lfo import split
from distlfm.training.settings import TrainConfig
from distlfm.training.work import open_examples
from distlfm.verbs.train import train
from tests.support.fleet_runs import all_gone, descendants, driving
from tests.support.train_runs import (
    CLOSE,
    FILES,
    TRAIN,
    assert_close_run,
    command,
    files,
    told,
    wait_for_step,
    write_training,
)

pytestmark = pytest.mark.slow

EPOCHS = "loop.epochs=3"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with its config, whose last batch of an epoch has one example: one of two ranks gets none of it."""
    folder = write_training(tmp_path_factory.mktemp("training"))
    path = folder / "train.yaml"
    config = load(TrainConfig, path)
    most = len(split(open_examples(config).ids, config.split).train) - 1
    batch = max(size for size in range(2, 17) if most % size == 0)
    path.write_text(json.dumps({**json.loads(path.read_text()), "loop": {**TRAIN["loop"], "batch": batch}}))
    train(path, [EPOCHS, f"run.dir={folder / 'alone'}"])
    return folder


def test_two_spawned_ranks_agree_with_one_at_every_step_though_one_may_have_no_example(
    folder: Path, tmp_path: Path
) -> None:
    train(folder / "train.yaml", [EPOCHS, f"run.dir={tmp_path}", "run.workers=2"])
    assert_close_run(tmp_path, folder / "alone")
    assert files(tmp_path) == FILES
    assert told(tmp_path, "start")[0]["world"] == 2
    assert {line["samples"] for line in told(tmp_path, "step")} > {1}
    for mine, other in zip(told(tmp_path, "epoch"), told(folder / "alone", "epoch"), strict=True):
        assert mine["validation_q2"] == pytest.approx(other["validation_q2"], rel=CLOSE, abs=CLOSE)


def test_ranks_of_torchrun_are_found_in_the_environment(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    verb = ["-m", "distlfm", "train", str(folder / "train.yaml"), "--out", str(out), EPOCHS]
    done = subprocess.run([*torchrun, *verb], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert_close_run(out, folder / "alone")
    assert files(out) == FILES | {"report.html"}
    assert done.stdout.count("train: ") == 1, "one rank speaks"


def test_ray_train_agrees_with_one_process_though_a_worker_is_killed_and_leaves_nothing_behind(
    folder: Path, tmp_path: Path
) -> None:
    out, longer = tmp_path / "run", "loop.epochs=12"
    train(folder / "train.yaml", [longer, f"run.dir={tmp_path / 'one'}"])
    ray = ("run.launcher=ray", "run.workers=2", "run.checkpoint_every=0.05")
    with driving(command(folder, "train", out, longer, *ray), tmp_path / "log") as driver:
        wait_for_step(out, 3, driver)
        os.kill(next(ray_workers(driver.process.pid)), signal.SIGKILL)
        assert driver.wait() == 0, driver.text
        assert all_gone(driver.family)
    assert "Ray Train: 2 workers" in driver.text
    assert "new ones go on from the last checkpoint" in driver.text
    assert_close_run(out, tmp_path / "one")
    assert files(out) == FILES


def ray_workers(driver: int) -> Iterator[int]:
    for pid in descendants(driver):
        with suppress(OSError):
            if b"TrainWorker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                yield pid
