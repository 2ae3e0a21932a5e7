"""A training in this process: what it leaves, how it goes on, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from distlfm.cli import main
from distlfm.config import load
from distlfm.errors import UsageError
from distlfm.lfo import Operator
from distlfm.store import driver_lock
from distlfm.training.settings import TrainConfig
from distlfm.verbs.train import open_run, resume_train, train
from tests.support.train_runs import FILES, TRAIN, assert_same_run, files, told, write_training

SMALL = ("loop.epochs=2",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with its configs, and in `calm` a finished training."""
    folder = write_training(tmp_path_factory.mktemp("training"))
    train(folder / "train.yaml", [*SMALL, f"run.dir={folder / 'calm'}"])
    return folder


def test_a_run_leaves_config_metrics_checkpoint_operator_and_summary(folder: Path) -> None:
    out = folder / "calm"
    assert files(out) == FILES
    summary = json.loads((out / "summary.json").read_text())
    steps = told(out, "step")
    assert [line["step"] for line in steps] == list(range(1, summary["steps"] + 1))
    assert [line["epoch"] for line in told(out, "epoch")] == [0, 1]
    assert sum(summary["instances"].values()) == 66
    assert summary["best"]["validation_loss"] == min(line["validation_loss"] for line in told(out, "epoch"))
    assert Operator.load(out / "operator.pt").schema.outputs == ("output_0", "output_1")
    assert load(TrainConfig, out / "config.yaml").loop.epochs == 2


def test_train_and_resume_write_the_report_themselves(folder: Path) -> None:
    page = folder / "calm" / "report.html"
    assert "validation" in page.read_text()
    page.unlink()
    resume_train(folder / "calm")
    assert page.is_file()
    page.unlink()
    assert main(["-q", "resume", str(folder / "calm")]) == 0
    assert page.is_file()


def test_the_same_call_again_trains_nothing_anew(folder: Path) -> None:
    out = folder / "calm"
    before = told(out, "step")
    run = train(folder / "train.yaml", [*SMALL, f"run.dir={out}"])
    assert told(out, "step") == before
    assert run.history == open_run(out).history
    assert run.operator.schema.forces
    assert resume_train(out).summary["steps"] == run.summary["steps"]


def test_without_a_folder_all_is_in_memory(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = train(folder / "train.yaml", SMALL)
    assert run.directory is None
    assert run.operator.model.training is False
    assert [line["loss"] for line in run.metrics if line["event"] == "step"] == [
        line["loss"] for line in told(folder / "calm", "step")
    ]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("overrides", "word"),
    [
        (["loop.epochs=3"], "loop.epochs=2, and it is 3 now"),
        (["loop.epochs=2", "optimiser.lr=0.1"], "optimiser.lr"),
        (["loop.epochs=2", "split.seed=1"], "split.seed"),
    ],
)
def test_a_run_begun_with_other_settings_is_refused_naming_the_key(
    folder: Path, overrides: list[str], word: str
) -> None:
    before = {
        path: path.read_bytes() for path in (folder / "calm").rglob("*") if path.is_file() and path.name != "lock"
    }
    with pytest.raises(UsageError, match=word):
        train(folder / "train.yaml", [*overrides, f"run.dir={folder / 'calm'}"])
    assert {path: path.read_bytes() for path in before} == before


def test_a_run_begun_with_other_data_is_refused_but_a_store_may_move(folder: Path, tmp_path: Path) -> None:
    other = write_training(tmp_path)
    shutil.copytree(folder / "calm", tmp_path / "run")  # which keeps the place of the data that it last saw
    same = [*SMALL, f"run.dir={tmp_path / 'run'}"]
    train(other / "train.yaml", same)  # the same instances, elsewhere
    two = json.dumps([str(folder / "store.zarr"), str(other / "store.zarr")])
    with pytest.raises(UsageError, match="other data"):
        train(folder / "train.yaml", [*same, f"data.stores={two}"])


def test_a_second_driver_is_refused_and_told_who_is_the_first(folder: Path) -> None:
    with driver_lock(folder / "calm", "train"), pytest.raises(UsageError, match=r"is in use: train on .*, process"):
        train(folder / "train.yaml", [*SMALL, f"run.dir={folder / 'calm'}"])


def test_without_data_or_a_folder_it_says_what_to_give(folder: Path) -> None:
    with pytest.raises(UsageError, match=r"data\.stores"):
        train(TrainConfig())
    with pytest.raises(UsageError, match="--out"):
        train(folder / "train.yaml", ["run.workers=2"])
    with pytest.raises(UsageError, match="not a training run"):
        resume_train(folder)


def test_a_run_that_failed_before_its_first_checkpoint_may_begin_anew(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    (out / "config.yaml").write_text(yaml.safe_dump(TRAIN))
    train(folder / "train.yaml", [*SMALL, f"run.dir={out}"])
    assert_same_run(out, folder / "calm")


def test_drafts_of_killed_writers_are_gone_once_a_run_goes_on(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "checkpoints").mkdir(parents=True)
    for draft in ("checkpoints/.last.pt.4194305.part", ".operator.pt.4194305.part", ".config.yaml.4194305.part"):
        (out / draft).write_bytes(b"half of it")
    train(folder / "train.yaml", [*SMALL, f"run.dir={out}"])
    assert files(out) == FILES


def test_the_lock_is_needed_to_clear_drafts(folder: Path) -> None:
    draft = folder / "calm" / "checkpoints" / ".last.pt.4194305.part"
    with driver_lock(folder / "calm", "train"):
        draft.write_bytes(b"being written")
        with pytest.raises(UsageError, match="in use"):
            train(folder / "train.yaml", [*SMALL, f"run.dir={folder / 'calm'}"])
        assert draft.exists()
    train(folder / "train.yaml", [*SMALL, f"run.dir={folder / 'calm'}"])
    assert not draft.exists()
