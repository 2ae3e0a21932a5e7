"""A plugin that makes blocks and steps of training take their time, so that a job can be disturbed in the middle."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from distlfm.lfo import Ranks
from distlfm.pipeline.fit_job import FitWorker
from distlfm.pipeline.train_work import TrainWork

SECONDS = float(os.environ.get("SLOWLY", "0"))
LEAVE_LATE = 3.0
"""Seconds for which the first rank is still there when the others have ended."""

_run, _call = FitWorker.run, TrainWork.__call__


def run(self: FitWorker, block: int, left_out: Mapping[int, str]) -> Mapping[str, Any]:
    time.sleep(SECONDS)
    return _run(self, block, left_out)


def call(self: TrainWork, ranks: Ranks, stop: Callable[[], bool]) -> dict[str, Any]:
    def slow_stop() -> bool:
        time.sleep(SECONDS)
        return stop()

    if SECONDS and ranks.is_main:
        atexit.register(time.sleep, LEAVE_LATE)
    return _call(self, ranks, slow_stop)


FitWorker.run, TrainWork.__call__ = run, call  # type: ignore[method-assign]
