"""Examples that many trials share: read once, and kept by Ray's object store, one copy a node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from distlfm.lfo import Examples
from distlfm.lfo.dataset import Arrays, Cache
from distlfm.pipeline.train_settings import TrainConfig
from distlfm.pipeline.train_work import open_examples


class Held(Cache):
    """All shards, read already. They are part of its pickle, whose arrays Ray maps into every process of a node."""

    def __init__(self, shards: Sequence[Arrays]) -> None:
        self._shards = list(shards)

    def fetch(self, keys: Iterable[int]) -> None:
        """All are here."""

    def get(self, key: int) -> Arrays:
        return self._shards[key]

    def __getstate__(self) -> dict[str, Any]:
        return {"shards": self._shards}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._shards = state["shards"]


def shared_examples(config: TrainConfig) -> Examples:
    """The examples of a config, all of them read if they fit in `loop.memory`; else each trial reads its own."""
    examples = open_examples(config)
    if len(examples._shards) <= examples._room:
        examples._cache = Held([examples._read(shard) for shard in range(len(examples._shards))])
    return examples
