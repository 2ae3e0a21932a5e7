"""What trials share is read once."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.lfo import dataset
from distlfm.runs.settings import GenerateConfig
from distlfm.training.settings import TrainConfig, TuneConfig
from distlfm.training.work import open_examples
from distlfm.verbs.generate import generate
from distlfm.verbs.tune import TrialWork, tune


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shared") / "store.zarr"
    run = {"dir": str(path), "executor": "serial", "block": 4}
    content = {"instances": 10, "points": 11, "num_outputs": 2, "mechanism": {"kind": "transcription"}, "run": run}
    generate(build(GenerateConfig, content))
    return path


def test_examples_cross_processes_with_their_arrays_and_without_a_copy(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = open_examples(build(TrainConfig, {"data": {"stores": [str(store)]}})).in_memory()
    wanted = examples.batch([9, 0, 4])
    buffers: list[pickle.PickleBuffer] = []
    text = pickle.dumps(examples, protocol=5, buffer_callback=buffers.append)
    assert len(buffers) >= 3 * 8, "each array of each shard goes beside the pickle"

    def no_reading(*_: object) -> None:
        raise AssertionError("it is read again")

    monkeypatch.setattr(dataset, "read_rows", no_reading)
    found = pickle.loads(text, buffers=[memoryview(one.raw()).toreadonly() for one in buffers]).batch([9, 0, 4])
    assert found.ids == wanted.ids
    np.testing.assert_array_equal(found.values, wanted.values)


def test_more_than_fits_in_memory_is_left_to_the_trials(store: Path) -> None:
    content = {"data": {"stores": [str(store)]}, "loop": {"memory": 1e-3}}
    examples = open_examples(build(TrainConfig, content)).in_memory()
    assert len(examples.batch([0, 9])) == 2
    assert len(pickle.dumps(examples)) < 10_000


def tuned(store: Path, **split: float) -> TuneConfig:
    small = {"layers": 1, "width": 4, "modes": 2, "head": 4, "pooled": 2, "regressions": 0}
    training = {"operator": small, "loop": {"epochs": 2}, "split": split, "data": {"stores": [str(store)]}}
    return build(TuneConfig, {"train": training, "space": {"optimiser.lr": {"kind": "choice", "values": [0.01]}}})


def test_a_trial_reports_its_figure_and_writes_events_for_tensorboard(store: Path, tmp_path: Path) -> None:
    config, told = tuned(store, validation=0.5, calibration=0.0), []
    TrialWork(config, tmp_path)({"optimiser.lr": 0.01}, told.append, open_examples(config.train).in_memory())
    assert [set(one) for one in told] == [{"validation_calibrated", "time_units"}] * 2
    (events,) = tmp_path.glob("trials/*/tensorboard/*")
    assert b"epoch/validation_calibrated" in events.read_bytes()


def test_a_sweep_whose_instances_are_all_on_one_side_is_refused_before_anything_runs(
    store: Path, tmp_path: Path
) -> None:
    config = tuned(store, validation=1e-6)
    config = config.model_copy(update={"run": config.run.model_copy(update={"dir": tmp_path / "sweep"})})
    with pytest.raises(UsageError, match=r"None of 10 instances is in the validation split.* larger train\.split"):
        tune(config)
    assert not (tmp_path / "sweep").exists()
