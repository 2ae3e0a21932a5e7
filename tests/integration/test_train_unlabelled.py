"""Going on from a trained operator, with observations of which nobody knows the force."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from distlfm.cli import main
from distlfm.config import load
from distlfm.data import write_npz
from distlfm.errors import UsageError
from distlfm.lfo import Examples, Operator, SplitConfig, split
from distlfm.lfo.grid import GriddedData
from distlfm.lfo.loss import standing
from distlfm.store import Store
from distlfm.training.settings import TrainConfig
from distlfm.training.work import open_examples
from distlfm.verbs.evaluate import evaluate
from distlfm.verbs.train import train
from tests.support.train_runs import assert_same_run, write_training

PROJECT = Path(__file__).resolve().parents[2]
SHIPPED = PROJECT / "configs" / "train" / "observed.yaml"
HELD = ("split.validation=0.2", "split.calibration=0.2")
QUICK = (*HELD, "loop.epochs=3", "loop.batch=16", "run.threads=1", "run.log_every=1", "run.tensorboard=false")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store, an operator trained on it in `start`, and its series louder by half, without their truth."""
    folder = write_training(tmp_path_factory.mktemp("unlabelled"))
    train(folder / "train.yaml", [*QUICK, "loop.precision=auto", f"run.dir={folder / 'start'}"])
    series = Store.open(folder / "store.zarr").instances()
    louder = [replace(one.blind(), id=f"patient-{i}", values=1.5 * one.values) for i, one in enumerate(series)]
    write_npz(folder / "louder.npz", louder)
    return folder


def given(folder: Path, out: str, *more: str) -> list[str]:
    return [
        *(*QUICK, f"start={folder / 'start'}", f"data.observations.path={folder / 'louder.npz'}"),
        *(f"run.dir={folder / out}", *more),
    ]


def test_the_command_learns_from_a_file_without_labels_and_says_what_nothing_has_checked(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--start", folder / "start", "--observations", folder / "louder.npz", "--out", folder / "tuned"]
    assert main([str(one) for one in ("train", SHIPPED, *options, *QUICK, "loop.epochs=12")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "66 instances without labels" in told
    assert "validation: reconstruction" in told
    assert "nothing has checked its intervals" in told
    before, tuned = (Operator.load(folder / name / "operator.pt") for name in ("start", "tuned"))
    assert tuned.schema == before.schema
    assert tuned.calibration == before.calibration
    for name, one in before.model.normal.named_buffers():
        assert torch.equal(one, dict(tuned.model.normal.named_buffers())[name])
    lines = [json.loads(line) for line in (folder / "tuned" / "metrics.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["event"] == "epoch"]
    found = [line["validation_reconstruction"] for line in epochs]
    assert found[-1] < 0.8 * found[0]
    assert "validation_calibrated" not in epochs[0]
    assert tuned.training["best"]["validation_reconstruction"] == min(found)
    page = (folder / "tuned" / "report.html").read_text()
    assert "nothing has checked its intervals" in page
    summary = json.loads((folder / "tuned" / "summary.json").read_text())
    assert len(summary["notices"]) == 1


def test_labelled_instances_beside_them_keep_the_intervals_calibrated(folder: Path) -> None:
    run = train(SHIPPED, given(folder, "both", f"data.stores=[{folder / 'store.zarr'}]"))
    best = run.operator.training["best"]
    assert best["validation_standing"] == pytest.approx(
        best["validation_calibrated"] + best["validation_reconstruction"]
    )
    assert run.operator.training["unlabelled"] == 66
    assert run.operator.notices == ()
    assert run.operator.calibration != Operator.load(folder / "start" / "operator.pt").calibration
    assert "validation split" in evaluate(folder / "both", folder / "store.zarr", ["limit=3"]).what


@pytest.mark.slow
def test_a_tuning_goes_on_where_it_was_and_only_from_the_same_start(folder: Path, tmp_path: Path) -> None:
    train(SHIPPED, given(folder, "whole"))
    config = load(TrainConfig, SHIPPED, given(folder, "again")).resolved()
    assert config.operator == Operator.load(folder / "start" / "operator.pt").config
    train(config)
    assert_same_run(folder / "again", folder / "whole")
    train(folder / "again" / "config.yaml")
    assert_same_run(folder / "again", folder / "whole")
    moved = tmp_path / "elsewhere.pt"
    moved.write_bytes((folder / "start" / "operator.pt").read_bytes())
    train(config.model_copy(update={"start": moved}))
    other = Operator.load(moved)
    other.training = {}
    other.save(moved)
    with pytest.raises(UsageError, match="was begun with start"):
        train(config.model_copy(update={"start": moved}))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["start=null"], "Give --start"),
        (["loss.reconstruction=0"], "Set loss.reconstruction=1"),
        (["operator.width=16"], r"operator.width is 16 in the config, and 8"),
        (["start=nowhere.pt"], "There is no checkpoint"),
        (["data.outputs.output_0=other"], "the operator has no output 'other'"),
        (["data.observations.path=nowhere.csv"], "nowhere.csv"),
    ],
)
def test_what_cannot_be_is_told_in_a_sentence(folder: Path, changes: list[str], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        train(SHIPPED, given(folder, "refused", *changes))


def test_the_folder_of_the_start_is_not_written_over(folder: Path) -> None:
    with pytest.raises(UsageError, match="would be lost"):
        train(SHIPPED, given(folder, "start"))


def test_what_the_start_was_trained_on_is_not_held_out_by_another_split(folder: Path) -> None:
    with pytest.raises(UsageError, match="split in another way"):
        train(SHIPPED, given(folder, "refused", f"data.stores=[{folder / 'store.zarr'}]", "split.seed=9"))


def test_series_that_teach_nothing_are_set_aside(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    series = Store.open(folder / "store.zarr").instances(0, 30)
    late = [replace(one.blind(), id="late", times=one.times + 100.0) for one in series[:1]]
    strange = [replace(one.blind(), id="strange", outputs=("output_0", "unheard")) for one in series[1:2]]
    write_npz(folder / "odd.npz", [*(one.blind() for one in series[2:]), *late, *strange])
    config = load(TrainConfig, SHIPPED, given(folder, "odd", f"data.observations.path={folder / 'odd.npz'}"))
    assert len(open_examples(config.resolved())) == 28
    assert main(["train", str(SHIPPED), *given(folder, "odd", f"data.observations.path={folder / 'odd.npz'}")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "'late': None of it was observed" in told
    assert "unheard" in told
    write_npz(folder / "odd.npz", late)
    with pytest.raises(UsageError, match="Nothing of the observations"):
        open_examples(config.resolved())


def test_copies_of_a_series_are_on_one_side_whether_they_have_labels_or_not(folder: Path) -> None:
    store = Store.open(folder / "store.zarr")
    operator = Operator.load(folder / "start" / "operator.pt")
    values, mask = operator.arrays([one.blind() for one in store.instances()], operator.schema.shape)
    ids = [str(name) for name in store.read("id")]
    both = Examples([store], operator.schema, observed=GriddedData(ids, values.numpy(), mask.numpy()))
    assert both.labelled.tolist() == [True] * 66 + [False] * 66
    parts = split(both.ids, SplitConfig(validation=0.3, calibration=0.3))
    for part in (parts.train, parts.validation, parts.calibration):
        names = np.array(both.ids)[part]
        assert sorted(names[both.labelled[part]]) == sorted(names[~both.labelled[part]])
    batch = both.batch([70, 3, 131])
    assert torch.isnan(batch.force[[0, 2]]).all()
    assert torch.isfinite(batch.force[1]).all()
    assert torch.allclose(batch.values[0], both.batch([4]).values[0], atol=1e-5)


def test_an_epoch_without_labels_is_not_chosen_by_a_likelihood() -> None:
    assert standing({"validation_standing": 2.0, "validation_calibrated": -9.0}) == 2.0
    assert standing({"validation_calibrated": -9.0}) == -9.0
