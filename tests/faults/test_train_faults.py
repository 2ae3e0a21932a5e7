"""A training that is killed or stopped goes on, and ends with the weights of an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from pathlib import Path

import pytest

from distlfm.verbs.train import train
from tests.support.fleet_runs import all_gone, descendants, driving
from tests.support.train_runs import (
    assert_close_run,
    assert_same_run,
    command,
    told,
    wait_for_step,
    write_training,
)

pytestmark = pytest.mark.slow

KILLS = 2
OFTEN, SELDOM = "run.checkpoint_every=0", "run.checkpoint_every=1000"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_training(tmp_path_factory.mktemp("training"))
    train(folder / "train.yaml", [f"run.dir={folder / 'calm'}"])
    return folder


def steps_of(folder: Path) -> int:
    return len(told(folder / "calm", "step"))


def test_a_run_killed_at_random_steps_ends_with_the_weights_of_an_undisturbed_one(folder: Path, tmp_path: Path) -> None:
    out, moments = tmp_path / "run", random.Random(7)
    last = 0
    for _ in range(KILLS):
        last = moments.randrange(last + 3, last + steps_of(folder) // 3)
        with driving(command(folder, "train", out, OFTEN), tmp_path / "log") as driver:
            wait_for_step(out, last, driver)
            driver.kill()
        assert not (out / "operator.pt").exists(), "it was killed too late to prove anything"
    with driving(command(folder, "train", out, OFTEN), tmp_path / "log") as driver:
        assert driver.wait() == 0, driver.text
        assert "steps are done already" in driver.text
    assert_same_run(out, folder / "calm")


@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGUSR1])
def test_a_stopped_run_keeps_all_that_was_done_and_says_how_to_go_on(
    folder: Path, tmp_path: Path, which: signal.Signals
) -> None:
    out = tmp_path / "run"
    with driving(command(folder, "train", out, SELDOM), tmp_path / "log") as driver:
        wait_for_step(out, 5, driver)
        os.kill(driver.process.pid, which)
        assert driver.wait(60) == (75 if which == signal.SIGUSR1 else 128 + which), driver.text
        assert f"Stopped by {which.name} after" in driver.text
        assert f"distlfm train {out}/config.yaml" in driver.text
        assert "Traceback" not in driver.text
    done = len(told(out, "step"))
    assert 5 <= done < steps_of(folder)
    again = train(out / "config.yaml")
    assert [line["step"] for line in told(out, "start")] == [done]
    assert again.summary["steps"] == steps_of(folder)
    assert_same_run(out, folder / "calm")


def test_ranks_stop_together_and_another_number_of_them_goes_on(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with driving(command(folder, "train", out, SELDOM, "run.workers=2"), tmp_path / "log") as driver:
        wait_for_step(out, 3, driver)
        os.killpg(driver.process.pid, signal.SIGINT)  # as a terminal does
        assert driver.wait(60) == 128 + signal.SIGINT, driver.text
        assert "steps. To go on" in driver.text
        assert all_gone(driver.family)
    train(out / "config.yaml", ["run.workers=1"])
    assert_close_run(out, folder / "calm")


def test_a_killed_rank_ends_the_run_and_is_named_and_none_outlives_a_killed_driver(
    folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    line = command(folder, "train", out, OFTEN, "run.workers=2")
    with driving(line, tmp_path / "log") as driver:
        wait_for_step(out, 3, driver)
        second = rank_of(driver.process.pid, 1)
        os.kill(second, signal.SIGKILL)
        assert driver.wait(60) == 1
        assert f"Process {second} of the training ended by SIGKILL" in driver.text
    with driving(line, tmp_path / "log") as driver:
        wait_for_step(out, 8, driver)
        first = rank_of(driver.process.pid, 0)
        os.kill(first, signal.SIGSTOP)  # it would be done before the other begins
        busy = subprocess.run(line, capture_output=True, text=True, check=False)
        assert busy.returncode == 2
        assert f"process {first}" in busy.stderr
        driver.kill()
        os.kill(first, signal.SIGCONT)
        assert all_gone(driver.family), "a rank outlives its driver"
    train(out / "config.yaml", ["run.workers=1"])
    assert_close_run(out, folder / "calm")


def rank_of(driver: int, number: int) -> int:
    for pid in descendants(driver):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if (
            b"distlfm.cluster.ranks.spawn" in words
            and words[words.index(b"distlfm.cluster.ranks.spawn") + 1] == b"%d" % number
        ):
            return pid
    raise AssertionError("there is no such rank")
