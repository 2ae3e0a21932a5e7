"""The trials of a sweep: what is known of each, which is best, and the page at the end.

Examples that many trials share are read once, and kept by Ray's object store, one copy per node.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distlfm.cluster.ray.sweep import Values
from distlfm.config import digest, dump
from distlfm.lfo import Examples
from distlfm.lfo.dataset import Arrays, Cache
from distlfm.report.operator_page import TrialRow, tune_page
from distlfm.report.page import Provenance
from distlfm.runs import REPORT
from distlfm.runs.folder import versions
from distlfm.training.settings import TrainConfig, TuneConfig
from distlfm.training.work import open_examples

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


class MemoryCache(Cache):
    """All shards, read already. They are part of its pickle, whose arrays Ray maps into every process of a node."""

    def __init__(self, shards: Sequence[Arrays]) -> None:
        self._shards = list(shards)

    def fetch(self, keys: Iterable[int]) -> None:
        """All are here."""

    def get(self, key: int) -> Arrays:
        return self._shards[key]

    def __reduce__(self) -> tuple[Any, ...]:
        return MemoryCache, (self._shards,)


def shared_examples(config: TrainConfig) -> Examples:
    """The examples of a config, all of them read if they fit in `loop.memory`; else each trial reads its own."""
    examples = open_examples(config)
    if len(examples._shards) <= examples._room:
        examples._cache = MemoryCache([examples._read(shard) for shard in range(len(examples._shards))])
    return examples


def report_sweep(directory: Path, config: TuneConfig, tried: Sequence[TrialRow]) -> Path:
    """Write report.html. tried: in the order in which the trials began."""
    search, work = config.search, json.dumps(config.work(), sort_keys=True)
    more = {"sampler": search.sampler, "stopped early by": "asynchronous successive halving"}
    provenance = Provenance(dump(config), versions(), search.seed, digest(work), more=more)
    return tune_page(directory / REPORT, search.metric, search.mode, tried, provenance)
