"""What a source of instances is: a count, and any of them when they are asked for."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from distlfm.instance import Instance

PIECE = 64
"""Instances that are read together."""


class Source(ABC):
    """Instances 0 … count − 1. `fingerprint` tells whether they are still the same ones."""

    count: int
    outputs: tuple[str, ...]
    fingerprint: str

    @abstractmethod
    def read(self, start: int, stop: int) -> list[Instance]:
        """Instances `start` … `stop` − 1."""

    def pieces(self, size: int = PIECE) -> Iterator[list[Instance]]:
        """All instances, `size` at a time."""
        for start in range(0, self.count, size):
            yield self.read(start, min(start + size, self.count))


class Held(Source):
    """Instances in memory."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self.instances = list(instances)
        self.count = len(self.instances)
        self.outputs = tuple(dict.fromkeys(name for instance in self.instances for name in instance.outputs))
        hashed = hashlib.sha256()
        for instance in self.instances:
            add_to(hashed, instance)
        self.fingerprint = hashed.hexdigest()[:16]

    def read(self, start: int, stop: int) -> list[Instance]:
        return self.instances[start:stop]


def add_to(hashed: hashlib._Hash, instance: Instance) -> None:
    """What a fit may see of an instance goes into the hash."""
    hashed.update(json.dumps([instance.id, instance.outputs, instance.values.shape]).encode())
    for array in (instance.times, instance.values, instance.mask, instance.positions, instance.variance):
        if array is not None:
            hashed.update(np.ascontiguousarray(array).tobytes())
