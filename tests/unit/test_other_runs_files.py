"""`query`, `evaluate`, `train` and `tune` leave the files of other runs, and of their user, as they are."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.store import Store
from distlfm.training.settings import TrainConfig, TuneConfig
from distlfm.verbs import submit as submit_check
from distlfm.verbs.evaluate import evaluate
from distlfm.verbs.query import query
from distlfm.verbs.submit import Setting
from distlfm.verbs.train import train
from distlfm.verbs.tune import tune
from tests.support import lfo_toy
from tests.support.query_factories import fresh_genes, genes

TINY: dict[str, Any] = {"operator": {"width": 8, "layers": 1, "modes": 4}, "loop": {"epochs": 1, "batch": 16}}


def train_config(out: Path) -> TrainConfig:
    run = {"dir": str(out), "launcher": "inline", "tensorboard": False}
    return build(TrainConfig, {**TINY, "data": {"stores": [str(out.parent / "toy.zarr")]}, "run": run})


def tune_config(out: Path) -> TuneConfig:
    space = {"optimiser.lr": {"kind": "loguniform", "low": 1e-3, "high": 1e-2}}
    content = {**TINY, "data": {"stores": [str(out.parent / "toy.zarr")]}}
    return build(TuneConfig, {"train": content, "space": space, "run": {"dir": str(out)}})


VERBS: dict[str, Callable[[Path], object]] = {
    "query": lambda out: query(genes()[0], fresh_genes(), [f"run.dir={out}"]),
    "evaluate": lambda out: evaluate(genes()[0], fresh_genes(), [f"run.dir={out}"]),
    "train": lambda out: train(train_config(out)),
    "tune": lambda out: tune(tune_config(out)),
    "submit train": lambda out: submit_check.CHECKS["train"](train_config(out), Setting()),
    "submit tune": lambda out: submit_check.CHECKS["tune"](tune_config(out), Setting()),
}
CONFIGS: dict[str, str] = {
    **{verb: f"verb: {verb}\n" for verb in ("fit", "query", "evaluate", "train", "tune")},
    "": "colour: red\n",
    "no YAML": "{",
}


@pytest.fixture
def out(tmp_path: Path) -> Path:
    lfo_toy.make_store(tmp_path / "toy.zarr")
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("call", "other"), [(call, other) for call in VERBS for other in CONFIGS if other != call.removeprefix("submit ")]
)
def test_the_config_of_another_verb_or_of_none_is_not_written_over(call: str, other: str, out: Path) -> None:
    verb = call.removeprefix("submit ")
    (out / "config.yaml").write_text(CONFIGS[other])
    (out / "summary.json").write_text("{}")
    before = content(out)
    what = f"is a run of `distlfm {other}`, and" if "verb" in CONFIGS[other] else "is not a run of"
    with pytest.raises(UsageError, match=rf"{what} .*would write over its config.yaml\. Choose another --out") as told:
        VERBS[call](out)
    assert f"`distlfm {verb}`" in str(told.value)
    assert content(out) == before
    assert [path.name for path in out.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("call", "name"),
    [
        *(("query", name) for name in ("answers.csv", "parameters.csv", "answers.json", "summary.json", "report.html")),
        *(("evaluate", name) for name in ("summary.json", "report.html")),
        *(("train", name) for name in ("metrics.jsonl", "operator.pt", "summary.json", "report.html")),
        *(("tune", name) for name in ("trials.json", "trials.csv", "best.yaml", "report.html")),
    ],
)
def test_files_without_a_config_are_not_written_over(call: str, name: str, out: Path) -> None:
    (out / name).write_text("mine")
    with pytest.raises(UsageError, match=rf"would write over its {name}\. Choose another --out"):
        VERBS[call](out)
    assert content(out) == {name: b"mine"}


def test_other_files_of_the_user_are_no_hindrance_and_stay(out: Path) -> None:
    (out / "notes.txt").write_text("mine")
    query(genes()[0], fresh_genes(), [f"run.dir={out}"])
    query(genes()[0], fresh_genes(), [f"run.dir={out}"])
    assert (out / "notes.txt").read_text() == "mine"
    assert yaml.safe_load((out / "config.yaml").read_text())["verb"] == "query"


def test_a_training_goes_on_in_its_own_folder_even_where_its_config_is_lost(out: Path) -> None:
    train(train_config(out))
    learned = (out / "operator.pt").read_bytes()
    (out / "config.yaml").unlink()
    train(train_config(out))
    assert (out / "operator.pt").read_bytes() == learned
    assert (out / "config.yaml").is_file()


def test_nothing_of_the_answers_before_is_left_beside_new_ones(out: Path) -> None:
    checkpoint, patients = genes()[0], Store.open(fresh_genes()).instances(0, 2)
    query(checkpoint, patients[:1], [f"run.dir={out}", "plot=true"])
    assert len(list((out / "plots").iterdir())) == 2
    (out / "plots" / "00001_mine.png").write_text("mine")
    query(checkpoint, patients[1:], [f"run.dir={out}", "plot=true"])
    drawn = {f"00000_{patients[1].id}.{form}" for form in ("png", "svg")}
    assert {path.name for path in (out / "plots").iterdir()} == {*drawn, "00001_mine.png"}
    assert patients[0].id not in (out / "report.html").read_text()
    (out / "plots" / "00001_mine.png").unlink()
    query(checkpoint, patients[:1], [f"run.dir={out}"])
    assert not (out / "report.html").exists()
    assert not (out / "plots").exists()
    assert patients[0].id in (out / "answers.csv").read_text()


def test_answers_stay_where_a_later_query_fails(out: Path) -> None:
    query(genes()[0], fresh_genes(), [f"run.dir={out}"])
    before = content(out)
    with pytest.raises(UsageError):
        query(genes()[0], out.parent / "missing.csv", [f"run.dir={out}"])
    assert content(out) == before


def test_the_report_of_an_evaluation_is_gone_if_the_next_one_cannot_draw_its_own(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (out / "config.yaml").write_text("verb: evaluate\n")
    (out / "report.html").write_text("old")

    def full(*_: object) -> None:
        raise OSError("full")

    monkeypatch.setattr("distlfm.verbs.evaluate.evaluation_page", full)
    with pytest.raises(OSError, match="full"):
        evaluate(genes()[0], fresh_genes(), [f"run.dir={out}", "limit=2"])
    assert not (out / "report.html").exists()
    assert (out / "summary.json").is_file()
