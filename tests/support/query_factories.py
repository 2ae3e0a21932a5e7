"""Small trained operators and the stores they learned from, for tests of queries. Each is trained once a process."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from functools import cache
from pathlib import Path

from distlfm.lfo import Examples, LoopConfig, Operator, OperatorConfig, SplitConfig, Training, TrainSettings, finish
from distlfm.store import Store
from distlfm.verbs.generate import generate

PROJECT = Path(__file__).resolve().parents[2]
LINE = ("num_outputs=2", "points=21", "instances=160")
FIELD = ("points=9", "places=9", "instances=40")


@cache
def _folder() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="distlfm-query-tests-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def genes() -> tuple[Path, Path]:
    """A checkpoint and its store: two genes at 21 times."""
    return _trained("genes", "configs/generate/transcription.yaml", LINE, epochs=8)


@cache
def fresh_genes() -> Path:
    """A store of other instances of the same kind."""
    return _store("fresh", "configs/generate/transcription.yaml", (*LINE[:2], "instances=24", "seed=7"))


@cache
def field() -> tuple[Path, Path]:
    """A checkpoint and its store: a field on a line, 9 × 9 points."""
    return _trained("field", "configs/generate/reaction_diffusion.yaml", FIELD, epochs=1)


def _store(name: str, config: str, settings: tuple[str, ...]) -> Path:
    path = _folder() / f"{name}.zarr"
    generate(PROJECT / config, [*settings, f"run.dir={path}", "run.executor=serial"])
    return path


def _trained(name: str, config: str, settings: tuple[str, ...], epochs: int) -> tuple[Path, Path]:
    path = _store(name, config, settings)
    examples = Examples([Store.open(path)])
    options = TrainSettings(
        operator=OperatorConfig(layers=1, width=8, modes=4),
        loop=LoopConfig(epochs=epochs, batch=16),
        split=SplitConfig(validation=0.15, calibration=0.2),
    )
    training = Training(options, examples.schema, examples)
    training.run()
    checkpoint = _folder() / name / "operator.pt"
    finish(training).save(checkpoint)
    return checkpoint, path


def operator_of(checkpoint: Path) -> Operator:
    """The operator of a checkpoint."""
    return Operator.load(checkpoint)
