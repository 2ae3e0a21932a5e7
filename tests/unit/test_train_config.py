"""What a training's config allows, who computes by it, and what of its log survives."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from distlfm.cluster.ranks.place import Place
from distlfm.config import build, load
from distlfm.errors import Stopped, UsageError, WorkError
from distlfm.lfo import Alone, Training
from distlfm.runtime.reporting import Plain, Silent
from distlfm.training.log import Follower, Progress, RunLog, read_metrics
from distlfm.training.settings import TrainConfig, TrainRunConfig, TuneConfig
from distlfm.training.work import together
from distlfm.verbs.train import launcher_for
from distlfm.verbs.tune import trial_name

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
RANKS = Place(0, 2, 0, 2, "torchrun", "env://")
SPACE = {"optimiser.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-2}}


@pytest.mark.parametrize("path", sorted((CONFIGS / "train").glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_trainings_are_valid(path: Path) -> None:
    data = load(TrainConfig, path).data
    assert data.stores or data.observations is not None


def test_the_shipped_sweep_is_valid_and_gives_trainings() -> None:
    config = load(TuneConfig, CONFIGS / "tune" / "transcription.yaml")
    assert config.trial({"optimiser.lr": 0.005}).optimiser.lr == 0.005
    assert config.trial({}).data.stores == config.train.data.stores


@pytest.mark.parametrize(
    ("run", "place", "launcher"),
    [
        ({}, Place(), "inline"),
        ({}, RANKS, "environment"),
        ({"launcher": "ddp"}, RANKS, "environment"),
        ({"workers": 2}, Place(), "spawn"),
        ({"workers": 1}, Place(), "inline"),
        ({"launcher": "ddp"}, Place(), "spawn"),
        ({"launcher": "ray"}, Place(), "ray"),
        ({"address": "auto"}, Place(), "ray"),
        ({"launcher": "inline", "workers": 4}, Place(), "inline"),
    ],
)
def test_who_computes(run: dict[str, object], place: Place, launcher: str) -> None:
    assert launcher_for(build(TrainRunConfig, run), place) == launcher


@pytest.mark.parametrize("launcher", ["ray", "inline"])
def test_ranks_that_are_there_are_not_passed_over(launcher: str) -> None:
    with pytest.raises(UsageError, match="torchrun has started 2 processes"):
        launcher_for(build(TrainRunConfig, {"launcher": launcher}), RANKS)


def test_neither_place_nor_workers_belong_to_the_work() -> None:
    one = build(TrainConfig, {"run": {"dir": "a", "workers": 2}, "data": {"stores": ["x"]}, "title": "t"})
    assert one.work() == TrainConfig().work()
    assert build(TrainConfig, {"optimiser": {"lr": 0.5}}).work() != TrainConfig().work()


@pytest.mark.parametrize(
    ("space", "word"),
    [
        ({"optimiser.lrr": SPACE["optimiser.lr"]}, "lrr"),
        ({"data.stores": {"kind": "choice", "values": [["a"], ["b"]]}}, "cannot be searched"),
        ({"operator.layers": {"kind": "int", "low": 0, "high": 2}}, "operator.layers"),
        ({"optimiser.lr": {"kind": "uniform", "low": 2, "high": 1}}, "below high"),
        ({"optimiser.lr": {"kind": "loguniform", "low": 0, "high": 1}}, "greater than 0"),
        ({}, "space"),
    ],
)
def test_a_space_that_cannot_be_searched_is_refused_before_anything_runs(space: dict[str, object], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        build(TuneConfig, {"train": {}, "space": space})


@pytest.mark.parametrize(
    ("search", "train", "word"),
    [
        (
            {"metric": "validation_calibratd"},
            {},
            "'validation_calibratd'. Did you mean 'validation_calibrated'",
        ),
        ({}, {"split": {"validation": 0.0}}, "validation_calibrated needs a validation split"),
    ],
)
def test_a_figure_that_no_epoch_will_have_is_refused_before_anything_runs(
    search: dict[str, object], train: dict[str, object], word: str
) -> None:
    with pytest.raises(UsageError, match=word):
        build(TuneConfig, {"train": train, "space": SPACE, "search": search})
    build(TuneConfig, {"train": train, "space": SPACE, "search": {"metric": "train_total"}})


def test_data_beside_the_training_are_the_trainings() -> None:
    config = build(TuneConfig, {"train": {"loop": {"epochs": 3}}, "space": SPACE, "data": {"stores": ["a"]}})
    assert config.train.data.stores == (Path("a"),)


def test_more_trials_of_the_same_sweep_are_the_same_work() -> None:
    one, more, other = (
        build(TuneConfig, {"train": {}, "space": SPACE, "search": search})
        for search in ({"trials": 4}, {"trials": 8}, {"seed": 1})
    )
    assert one.work() == more.work() != other.work()


def test_a_trials_name_follows_from_its_values_in_any_order() -> None:
    assert trial_name({"a": 1, "b": [2, 3]}) == trial_name({"b": [2, 3], "a": 1}) != trial_name({"a": 1, "b": [3, 2]})


def test_a_stop_tells_when_and_the_command() -> None:
    error = Stopped(signal.SIGUSR1, "after 3 of 10 steps", "distlfm train x")
    assert str(error) == "Stopped by SIGUSR1 after 3 of 10 steps. To go on: distlfm train x"
    assert error.exit_code == 75


class Several(Alone):
    """One of some ranks, who are at these steps."""

    def __init__(self, rank: int, steps: list[int]) -> None:
        super().__init__()
        self.rank, self.world, self.steps = rank, len(steps), steps
        self._asked = 0

    def sum(self, tensor: Tensor) -> Tensor:
        self._asked += 1
        if self._asked == 1:
            return torch.tensor(float(sum(self.steps)), dtype=torch.float64)
        wrong = [len(self.steps) * one != sum(self.steps) for one in self.steps]
        assert float(tensor) == wrong[self.rank]
        return torch.tensor(float(sum(wrong)))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_ranks_that_see_different_checkpoints_are_refused_all_of_them(rank: int) -> None:
    together(cast(Training, SimpleNamespace(step=70, ranks=Several(rank, [70, 70, 70]))))
    steps = [0, 70, 140]
    with pytest.raises(WorkError, match=f"rank {rank} is at step {steps[rank]}. Give a run.dir that all nodes see"):
        together(cast(Training, SimpleNamespace(step=steps[rank], ranks=Several(rank, steps))))


def test_a_log_that_goes_on_forgets_what_came_after_the_checkpoint(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 0, False)
    log.write("start", {"step": 0, "total": 9})
    for step in range(1, 6):
        log.write("step", {"step": step, "loss": float("nan") if step == 1 else 1.0})
    log.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "step", "st')  # cut off by a kill
    again = RunLog(tmp_path, 3, False)
    again.write("start", {"step": 3, "total": 9})
    again.write("step", {"step": 4, "loss": 2.0})
    again.close()
    found = read_metrics(tmp_path / "metrics.jsonl")
    assert [(line["event"], line["step"]) for line in found] == [
        ("step", 1),
        ("step", 2),
        ("step", 3),
        ("start", 3),
        ("step", 4),
    ]
    assert found[0]["loss"] is None


def test_a_follower_shows_new_lines_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import os
    import sys

    path = tmp_path / "metrics.jsonl"
    path.write_text(json.dumps({"event": "start", "step": 0, "total": 2}) + "\n")
    os.utime(path, (1, 1))
    follower = Follower(tmp_path, Progress(Plain(sys.stdout)))
    follower.look()
    assert capsys.readouterr().out == ""
    log = RunLog(tmp_path, 1, False)
    log.write("start", {"step": 1, "total": 2})
    follower.look()
    assert "1 of 2 steps are done already" in capsys.readouterr().out
    log.write("step", {"step": 2, "loss": 0.5})
    log.write("epoch", {"step": 2, "epoch": 0, "validation_loss": 0.25})
    log.close()
    follower.look()
    assert "train: 1/1" in (shown := capsys.readouterr().out)
    assert "loss 0.5, validation 0.25" in shown


def test_events_are_written_for_tensorboard(tmp_path: Path) -> None:
    log = RunLog(tmp_path, 0, True)
    log.write("step", {"step": 1, "loss": 2.0})
    log.close()
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"step/loss" in events.read_bytes()


def test_a_silent_progress_needs_no_start() -> None:
    progress = Progress(Silent())
    progress.see({"event": "step", "step": 1, "loss": 1.0})
    progress.close()
