"""The trials of a sweep: what is known of each, and which is best."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from distlfm.cluster.sweep_space import Values

RUNNING, STOPPED, FINISHED, FAILED = "running", "stopped", "finished", "failed"


@dataclass
class Trial:
    """One of the trainings. name: of its folder. best: the best metric so far, which it had at epoch `at`."""

    name: str
    values: dict[str, Any]
    status: str = RUNNING
    epochs: int = 0
    best: float | None = None
    at: int | None = None
    failure: str = ""

    @property
    def done(self) -> bool:
        return self.status != RUNNING


def ranked(trials: Sequence[Trial], mode: str) -> list[Trial]:
    """The best first; those without a figure last."""
    sign = 1 if mode == "min" else -1
    return sorted(trials, key=lambda one: math.inf if one.best is None else sign * one.best)


def trial_name(values: Values) -> str:
    """The same for the same values."""
    return hashlib.sha256(json.dumps(dict(values), sort_keys=True).encode()).hexdigest()[:10]
