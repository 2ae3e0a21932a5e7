"""A full fit of one instance in a process of its own: `python -m distlfm.serve.fit_child FOLDER`.

The folder has task.json and instance.npz; state.json says how far the work is, result.json what it gave. The process
ends with its parent, however that ends: standard input is a pipe that closes when the parent is gone.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.config import build
from distlfm.data import read
from distlfm.errors import DistlfmError
from distlfm.lfo import OperatorSchema
from distlfm.report.operator_plots import as_answer
from distlfm.report.page import picture
from distlfm.report.plots import plot_fit
from distlfm.report.words import direction_words, status_words
from distlfm.runs.settings import FitConfig
from distlfm.runtime.reporting import Step, watched
from distlfm.serve.answers import written
from distlfm.solvers.field.meshed import close_helper_groups
from distlfm.store.files import put_quickly
from distlfm.verbs.fit import fit


def end_with_parent() -> None:
    """End this process when its standard input closes: a pipe of the parent's, which the system closes with it."""
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


TASK, INSTANCE, STATE, RESULT = "task.json", "instance.npz", "state.json", "result.json"
STAGES = ("starting", "searching for force and parameters", "predicting on the operator's grid", "drawing")
EVERY = 0.5
"""Seconds between two notes of how far a search is."""


class Steps:
    """Writes down now and then where a fit is."""

    def __init__(self, folder: Path) -> None:
        self._state, self._written = folder / STATE, time.monotonic()

    def __call__(self, step: Step) -> None:
        if time.monotonic() - self._written >= EVERY:
            put(self._state, {"step": 1, "doing": str(step)})
            self._written = time.monotonic()


def work(folder: Path) -> None:
    """Do the task of a folder; what fails on purpose becomes a sentence in state.json."""
    try:
        put(folder / STATE, {"step": 1})
        task = json.loads((folder / TASK).read_text(encoding="utf-8"))
        (instance,) = read(folder / INSTANCE).instances
        with watched(Steps(folder)):
            (result,) = fit(build(FitConfig, task["config"], source="fit"), [instance]).results
        put(folder / STATE, {"step": 2})
        schema = build(OperatorSchema, task["schema"])
        answer = as_answer(result, [np.array(axis) for axis in task["axes"]], schema)
        files = written(answer, result.instance, schema)
        put(folder / STATE, {"step": 3})
        if result.instance.positions is None:
            figure = plot_fit(result)
            for form in ("svg", "png"):
                (folder / f"fit.{form}").write_bytes(picture(figure, form))
        more = {
            "method": result.method,
            "status": result.status,
            "words": status_words(result.status, result.advice),
            "open": [direction_words(one) for one in result.undetermined],
            "kinds": {one.name: one.kind for one in result.estimates},
            "seconds": result.seconds,
        }
        put(folder / RESULT, {"answer": files.content, **more})
    except DistlfmError as error:
        put(folder / STATE, {"error": str(error)})
    finally:
        close_helper_groups()


def put(path: Path, content: dict[str, Any]) -> None:
    put_quickly(path, json.dumps(content, allow_nan=False).encode())


if __name__ == "__main__":
    end_with_parent()
    work(Path(sys.argv[1]))
