"""What trials share is read once."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from distlfm.config import build
from distlfm.lfo import dataset
from distlfm.pipeline.generate import generate
from distlfm.pipeline.generate_settings import GenerateConfig
from distlfm.pipeline.train_settings import TrainConfig
from distlfm.pipeline.tune_data import shared_examples


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
    examples = shared_examples(build(TrainConfig, {"data": {"stores": [str(store)]}}))
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
    examples = shared_examples(build(TrainConfig, content))
    assert len(examples.batch([0, 9])) == 2
    assert len(pickle.dumps(examples)) < 10_000
