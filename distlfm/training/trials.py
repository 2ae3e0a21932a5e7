"""The trials of a sweep: their names, the examples that they share, and the page at the end.

Those examples are read once, and kept by Ray's object store, one copy per node.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from distlfm.cluster.ray.sweep import Values
from distlfm.config import digest, dump
from distlfm.lfo import Examples
from distlfm.lfo.dataset import Arrays, Cache
from distlfm.report.operator_page import Trial, tune_page
from distlfm.report.page import Provenance
from distlfm.runs import REPORT
from distlfm.runs.folder import versions
from distlfm.training.settings import TrainConfig, TuneConfig
from distlfm.training.work import open_examples


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


def report_sweep(directory: Path, config: TuneConfig, tried: Sequence[Trial]) -> Path:
    """Write report.html. tried: in the order in which the trials began."""
    search, work = config.search, json.dumps(config.work(), sort_keys=True)
    more = {"sampler": search.sampler, "stopped early by": "asynchronous successive halving"}
    provenance = Provenance(dump(config), versions(), search.seed, digest(work), more=more)
    return tune_page(directory / REPORT, search.metric, search.mode, tried, provenance)
