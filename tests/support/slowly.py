"""A plugin that makes blocks and steps of training take their time, so that a job can be disturbed in the middle.

How long they take is read from a file again and again, so that a test that has seen enough need not wait for them. The
first block of a worker and the first steps are quick.
"""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from distlfm.fleets.fit_job import FitWorker
from distlfm.lfo import Ranks
from distlfm.training.work import TrainWork

PACE = Path(os.environ["SLOWLY"])
OWN = PACE.with_name(f"{PACE.name}.{os.environ.get('SLURM_ARRAY_TASK_ID', '')}")
QUICK_STEPS = 4
LEAVE_LATE = 1.5
"""Seconds for which the first rank is still there when the others have ended."""

LOOK_SECONDS = 0.05
_run, _call = FitWorker.run, TrainWork.__call__


def seconds() -> float:
    """How long a block or a step takes in addition, as the file says now, or that of a task of an array."""
    return float((OWN if OWN.exists() else PACE).read_text())


def take_time() -> None:
    began = time.monotonic()
    while time.monotonic() - began < seconds():
        time.sleep(LOOK_SECONDS)


def run(self: FitWorker, block: int, left_out: Mapping[int, str]) -> Mapping[str, Any]:
    if hasattr(self, "warm"):
        take_time()
    self.warm = True  # type: ignore[attr-defined]
    return _run(self, block, left_out)


def call(self: TrainWork, ranks: Ranks, stop: Callable[[], bool]) -> dict[str, Any]:
    steps = count()

    def slow_stop() -> bool:
        if next(steps) >= QUICK_STEPS:
            take_time()
        return stop()

    if seconds() and ranks.is_main:
        atexit.register(time.sleep, LEAVE_LATE)
    return _call(self, ranks, slow_stop)


FitWorker.run, TrainWork.__call__ = run, call  # type: ignore[method-assign]
