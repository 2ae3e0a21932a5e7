"""A small store, trainings of a tiny operator on it, and what is compared of them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

from distlfm.config import build
from distlfm.lfo.checkpoint import TRAINING, load_checkpoint
from distlfm.runs.settings import GenerateConfig
from distlfm.training.log import read_metrics
from distlfm.verbs.generate import generate
from tests.support.fleet_runs import Driver

PROGRAM = Path(__file__).with_name("train_program.py")
INSTANCES = 66

CLOSE = 1e-7
"""Largest relative difference of the losses of two trainings that differ in the number of ranks, by rounding alone.

They are compared in double precision: Adam divides by the size of gradients, and where one is all rounding, the sums of
single precision in another order move a weight by the whole learning rate.
"""

STORE: dict[str, Any] = {
    "instances": INSTANCES,
    "points": 21,
    "num_outputs": 2,
    "seed": 3,
    "mechanism": {"kind": "transcription", "initial": "steady", "fixed": {"sensitivity": {"output_0": 1.0}}},
    "likelihood": {"shared": True, "prior": {"kind": "lognormal", "median": 0.02, "spread": 0.3}},
}
TRAIN: dict[str, Any] = {
    "verb": "train",
    "operator": {"width": 8, "modes": 4, "layers": 2, "head": 16, "pooled": 4},
    "loop": {"epochs": 8, "batch": 16, "seed": 5, "precision": "float64"},
    "run": {"threads": 1, "log_every": 1, "tensorboard": False},
}
TUNE: dict[str, Any] = {
    "verb": "tune",
    "train": {key: value for key, value in TRAIN.items() if key not in ("verb", "run")},
    "space": {
        "optimiser.lr": {"kind": "loguniform", "low": 1e-4, "high": 1e-2},
        "operator.modes": {"kind": "choice", "values": [4, [3]]},
        "operator.layers": {"kind": "int", "low": 1, "high": 2},
    },
    "search": {"trials": 4, "seed": 2},
    "asha": {"grace": 2, "reduction": 2},
    "run": {"workers": 2, "checkpoint_every": 0},
}


def write_training(folder: Path) -> Path:
    """store.zarr, train.yaml and tune.yaml in a folder."""
    generate(build(GenerateConfig, {**STORE, "run": {"dir": str(folder / "store.zarr"), "executor": "serial"}}))
    data = {"data": {"stores": [str(folder / "store.zarr")]}}
    (folder / "train.yaml").write_text(json.dumps(TRAIN | data), encoding="utf-8")
    (folder / "tune.yaml").write_text(json.dumps(TUNE | data), encoding="utf-8")
    return folder


def program(folder: Path, verb: str, out: Path, *overrides: str) -> list[str]:
    """What to call for a run in a process of its own."""
    return [str(PROGRAM), verb, str(folder / f"{verb}.yaml"), f"run.dir={out}", *overrides]


def command(folder: Path, verb: str, out: Path, *overrides: str) -> list[str]:
    return [sys.executable, *program(folder, verb, out, *overrides)]


def told(out: Path, event: str) -> list[dict[str, Any]]:
    """Lines of a run's metrics, without what no two runs share."""
    found = [line for line in read_metrics(out / "metrics.jsonl") if line["event"] == event]
    return [{key: value for key, value in line.items() if key != "seconds"} for line in found]


def weights(out: Path) -> dict[str, torch.Tensor]:
    """Of the last step and of the best epoch."""
    last = load_checkpoint(out / "checkpoints" / "last.pt", TRAINING)["training"]
    best: dict[str, torch.Tensor] = load_checkpoint(out / "operator.pt")["weights"]
    return {
        **{f"model.{name}": value for name, value in last["model"].items()},
        **{f"average.{name}": value for name, value in last["average"].items()},
        **{f"best.{name}": value for name, value in best.items()},
    }


def assert_same_run(out: Path, reference: Path) -> None:
    """The weights are the reference's to the last bit, and each step is told once, alike."""
    found, wanted = weights(out), weights(reference)
    assert found.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert torch.equal(found[name], tensor), name
    for event in ("step", "epoch"):
        assert told(out, event) == told(reference, event)


def assert_close_run(out: Path, reference: Path) -> None:
    """The losses of all steps are the reference's but for rounding."""
    found, wanted = told(out, "step"), told(reference, "step")
    assert [line["step"] for line in found] == [line["step"] for line in wanted]
    for mine, other in zip(found, wanted, strict=True):
        assert abs(mine["loss"] - other["loss"]) <= CLOSE * (1 + abs(other["loss"])), (mine, other)


def wait_for_step(out: Path, step: int, driver: Driver, seconds: float = 120.0) -> None:
    """Wait until a step is told."""
    until = time.monotonic() + seconds
    while True:
        path = out / "metrics.jsonl"
        if path.exists() and any(line["step"] >= step for line in read_metrics(path) if line["event"] == "step"):
            return
        assert driver.process.poll() is None, f"it ended too early:\n{driver.text}"
        assert time.monotonic() < until, f"no step {step} within {seconds} s:\n{driver.text}"
        time.sleep(0.005)


def files(out: Path) -> set[str]:
    """Everything in a run's folder."""
    return {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}


FILES = {"checkpoints/last.pt", "config.yaml", "lock", "metrics.jsonl", "operator.pt", "report.html", "summary.json"}
