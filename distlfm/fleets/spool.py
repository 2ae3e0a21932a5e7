"""Sources of instances: a count, and any of them when they are asked for.

`Spooled` is a copy of a fleet's data in a run's folder, in pieces, from which its workers read. A piece has the sum of
what is in it as part of its name, and none is ever written over: whoever comes with other data to a run that others
work on puts theirs beside, and is refused.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.data import read, write_npz
from distlfm.errors import DataError, StorageError, UsageError
from distlfm.instance import Instance
from distlfm.store.files import flush, replacing, storing

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


class MemorySource(Source):
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


_NAME = re.compile(r"\d{6}-[0-9a-f]{16}\.npz")
_DRAFT = re.compile(rf"\.+{_NAME.pattern}(\.\d+\.part){{1,2}}")


@dataclass(frozen=True)
class Spooled(Source):
    """Instances that were read once, and lie in a folder in files of `PIECE`. sums: of each piece."""

    folder: Path
    outputs: tuple[str, ...]
    fingerprint: str
    count: int
    sums: Sequence[str]

    def read(self, start: int, stop: int) -> list[Instance]:
        instances: list[Instance] = []
        for piece in range(start // PIECE, (stop - 1) // PIECE + 1):
            first = piece * PIECE
            instances += self._piece(piece)[max(start - first, 0) : stop - first]
        return instances

    def _piece(self, number: int) -> list[Instance]:
        path = _place(self.folder, number, self.sums[number])
        try:
            instances = read(path).instances
        except DataError as error:
            raise _damaged(path, self.folder) from error
        if _sum(instances) != self.sums[number]:
            raise _damaged(path, self.folder)
        return instances


def spool(instances: Iterator[Instance], folder: Path) -> Spooled:
    """Put instances into files. What lies there already from the same data is not written again."""
    with storing("a copy of the data", folder):
        folder.mkdir(parents=True, exist_ok=True)
    refuse_others(folder)
    hashed, outputs, count, sums = hashlib.sha256(), dict[str, None](), 0, list[str]()
    while piece := list(itertools.islice(instances, PIECE)):
        for instance in piece:
            add_to(hashed, instance)
            outputs |= dict.fromkeys(instance.outputs)
        count += len(piece)
        sums.append(_sum(piece))
        path = _place(folder, len(sums) - 1, sums[-1])
        if not path.exists():
            with storing("a copy of the data", folder), replacing(path) as draft:
                write_npz(draft, piece)
                flush(draft)
    return Spooled(folder, tuple(outputs), hashed.hexdigest()[:16], count, sums)


@contextmanager
def removed_if_refused(folder: Path) -> Iterator[None]:
    """What is put into a spool inside this context stays only if nothing goes wrong there."""
    before = set(_spooled(folder))
    try:
        yield
    except Exception:
        _remove(folder, [file for file in _spooled(folder) if file not in before])
        raise


def refuse_others(folder: Path) -> None:
    """Refuse to put a spool where somebody else's files are: a run's folder `input` is its own."""
    others = sorted({one.name for one in _inside(folder)} - {one.name for one in _spooled(folder)})
    if others:
        raise UsageError(
            f"{folder}, where a run keeps a copy of its data, has files of somebody else, such as {others[0]}.",
            "Choose another --out directory.",
        )


def clear_spool(folder: Path) -> None:
    """Remove a spool, and nothing else."""
    _remove(folder, _spooled(folder))


def _remove(folder: Path, files: Sequence[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
    with suppress(OSError):  # not there, or it has something else in it
        folder.rmdir()


def _spooled(folder: Path) -> list[Path]:
    return [one for one in _inside(folder) if _NAME.fullmatch(one.name) or _DRAFT.fullmatch(one.name)]


def _inside(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _place(folder: Path, number: int, sum_: str) -> Path:
    return folder / f"{number:06d}-{sum_}.npz"


def _damaged(path: Path, folder: Path) -> StorageError:
    return StorageError(
        f"{path}, a piece of the copy of the data, is damaged or gone.",
        f"Remove {folder}; then the same command makes it anew and goes on where it stopped.",
    )


def _sum(instances: Sequence[Instance]) -> str:
    """Checksum of instances as a file gives them back, with their truth: values that were not observed are 0 there."""
    hashed = hashlib.sha256()
    for one in instances:
        metadata = {key: str(value) for key, value in sorted(one.metadata.items())}
        hashed.update(json.dumps([one.id, one.outputs, one.values.shape, metadata]).encode())
        arrays: list[Any] = [one.times, np.where(one.mask, one.values, 0.0), one.mask, one.positions, one.variance]
        if one.truth is not None:
            truth = one.truth
            arrays += [truth.times, truth.force, truth.outputs, truth.positions]
            arrays += [value for _, value in sorted(truth.parameters.items())]
        for array in arrays:
            hashed.update(b"-" if array is None else np.ascontiguousarray(array, dtype=np.float64).tobytes())
    return hashed.hexdigest()[:16]
