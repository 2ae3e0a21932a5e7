"""A sweep that is killed goes on with what its trials had reached, and its winner is a config for training."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from distlfm.cluster.ray.sweep import SearchConfig
from distlfm.config import load
from distlfm.errors import UsageError
from distlfm.training.settings import TrainConfig
from distlfm.verbs.train import train
from distlfm.verbs.tune import tune
from tests.support.fleet_runs import Driver, all_gone, driving
from tests.support.train_runs import command, files, told, write_training

pytestmark = pytest.mark.slow

METRIC = SearchConfig().metric


def trials_of(out: Path) -> list[dict[str, Any]]:
    path = out / "trials.json"
    found: list[dict[str, Any]] = json.loads(path.read_text())["trials"] if path.exists() else []
    return found


def wait_for_ended(out: Path, count: int, driver: Driver, seconds: float = 200.0) -> None:
    until = time.monotonic() + seconds
    while not (found := trials_of(out)) or len([one for one in found if one["status"] != "running"]) < count:
        assert driver.process.poll() is None, f"it ended too early:\n{driver.text}"
        assert time.monotonic() < until, driver.text
        time.sleep(0.02)


def test_a_sweep_that_is_killed_and_stopped_finishes_with_every_trial_once(tmp_path: Path) -> None:
    folder, out = write_training(tmp_path), tmp_path / "sweep"
    with driving(command(folder, "tune", out), tmp_path / "log") as driver:
        wait_for_ended(out, 1, driver)
        driver.kill()
        assert all_gone(driver.family), "a process outlives its driver"
    before = {one["name"]: one for one in trials_of(out)}
    ended = {name for name, one in before.items() if one["status"] != "running"}
    assert 0 < len(ended) < 4, "it was killed too late to prove anything"
    kept = {name: told(out / "trials" / name, "epoch") for name in ended}

    with driving(command(folder, "tune", out), tmp_path / "log") as driver:
        assert driver.wait() == 0, driver.text
        assert f"{len(ended)} of 4 trials are done already" in driver.text
        assert all_gone(driver.family)
    found = {one["name"]: one for one in trials_of(out)}
    assert len(found) == 4
    assert before.keys() <= found.keys()
    assert {name: found[name] for name in ended} == {name: before[name] for name in ended}
    assert {name: told(out / "trials" / name, "epoch") for name in ended} == kept, "a trial was trained twice"
    for one in found.values():
        assert one["status"] in ("finished", "stopped")
        epochs = [line["epoch"] for line in told(out / "trials" / one["name"], "epoch")]
        assert epochs == list(range(len(epochs)))
        assert one["best"] == min(line[METRIC] for line in told(out / "trials" / one["name"], "epoch")[: one["epochs"]])
    assert len((out / "trials.csv").read_text().splitlines()) == 5
    assert not (out / ".ray").exists()

    best = load(TrainConfig, out / "best.yaml")
    winner = min(found.values(), key=lambda one: one["best"])
    assert best.optimiser.lr == winner["values"]["optimiser.lr"]
    run = train(out / "best.yaml", [f"run.dir={tmp_path / 'best'}", "run.tensorboard=off", "run.threads=1"])
    if winner["status"] == "finished":
        assert run.summary["best"][METRIC] == pytest.approx(winner["best"], rel=1e-4)
        assert "operator.pt" in files(out / "trials" / winner["name"])
    assert tune(folder / "tune.yaml", [f"run.dir={out}"]).winner.name == winner["name"]
    with pytest.raises(UsageError, match=r"asha\.grace"):
        tune(folder / "tune.yaml", [f"run.dir={out}", "asha.grace=3"])


def test_a_stopped_sweep_says_how_to_go_on(tmp_path: Path) -> None:
    folder, out = write_training(tmp_path), tmp_path / "sweep"
    with driving(command(folder, "tune", out), tmp_path / "log") as driver:
        wait_for_ended(out, 0, driver)
        os.kill(driver.process.pid, signal.SIGTERM)
        assert driver.wait(60) == 128 + signal.SIGTERM, driver.text
        assert "Stopped by SIGTERM after" in driver.text
        assert f"distlfm tune {out}/config.yaml" in driver.text
        assert "Traceback" not in driver.text
        assert all_gone(driver.family)
    assert not (out / ".ray").exists()
