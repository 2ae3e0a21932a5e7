"""Where a fit's instances come from, a few at a time: a store, or files that were read once and put aside in pieces.

Workers open what they need themselves; nobody ever holds the whole fleet.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from distlfm.data import ReadReport, catalog, iter_reports, read, write_npz
from distlfm.data.prepare import scaled, windows
from distlfm.errors import DataError, Problem, UsageError
from distlfm.instance import Instance
from distlfm.pipeline.settings import DataConfig
from distlfm.store import Store, find_store, is_store

PIECE = 64
"""Instances in a file of the spool."""


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


@dataclass
class Intake:
    """What reading the data gave besides instances."""

    set_aside: list[Problem] = field(default_factory=list)
    notices: list[Problem] = field(default_factory=list)


class Held(Source):
    """Instances in memory."""

    def __init__(self, instances: Sequence[Instance]) -> None:
        self.instances = list(instances)
        self.count = len(self.instances)
        self.outputs = _outputs(self.instances)
        hashed = hashlib.sha256()
        for instance in self.instances:
            _add_to(hashed, instance)
        self.fingerprint = hashed.hexdigest()[:16]

    def read(self, start: int, stop: int) -> list[Instance]:
        return self.instances[start:stop]


class Stored(Source):
    """The instances of a store whose blocks are all there."""

    def __init__(self, path: Path) -> None:
        self.path = find_store(path).resolve()
        store = Store.open(self.path)
        missing = store.missing()
        if missing:
            raise UsageError(
                f"{path} is not complete: {len(missing)} of its blocks are missing.",
                "Finish it with the command that began it, then fit it.",
            )
        self.count, self.outputs = store.spec.instances, store.spec.outputs
        marks = "".join(
            f"{block}{json.dumps(mark.checksums, sort_keys=True)}" for block, mark in store.markers().items()
        )
        self.fingerprint = hashlib.sha256(marks.encode()).hexdigest()[:16]

    def read(self, start: int, stop: int) -> list[Instance]:
        return Store.open(self.path).instances(start, stop)


class Spooled(Source):
    """Instances that were read once, and lie in a folder in files of `PIECE`."""

    def __init__(self, folder: Path, count: int, outputs: tuple[str, ...], fingerprint: str) -> None:
        self.folder, self.count, self.outputs, self.fingerprint = folder, count, outputs, fingerprint

    def read(self, start: int, stop: int) -> list[Instance]:
        found: list[Instance] = []
        for piece in range(start // PIECE, (stop - 1) // PIECE + 1):
            instances = read(_piece(self.folder, piece)).instances
            first = piece * PIECE
            found += instances[max(start - first, 0) : stop - first]
        return found


def open_source(config: DataConfig, data: Sequence[Instance] | None, folder: Path | None) -> tuple[Source, Intake]:
    """The instances that a config's data section names, or `data`, and what was found on reading.

    A complete store is used where it lies. Anything else is read once, one file at a time, and put into `folder`;
    without a folder it stays in memory.
    """
    intake = Intake()
    stored = data is None and config.path is not None and is_store(config.path)
    if stored and config.window is None and config.scale == "none" and not config.only:
        assert config.path is not None
        return Stored(config.path), intake
    reports = iter([ReadReport(list(data))]) if data is not None else _reports(config)
    instances = _prepared(reports, config, intake)
    if folder is None:
        source: Source = Held(list(instances))
    else:
        source = _spool(instances, folder)
    if not source.count:
        raise DataError(_nothing(config, intake))
    return source, intake


def read_instances(config: DataConfig) -> ReadReport:
    """The instances that a config's data section names, all in memory."""
    source, intake = open_source(config, None, None)
    return ReadReport(source.read(0, source.count), intake.set_aside, intake.notices)


def _reports(config: DataConfig) -> Iterator[ReadReport]:
    if config.dataset is None and config.path is None:
        raise UsageError("No data are named.", "Give --data PATH, or set data.path or data.dataset in the config.")
    if config.path is None:
        assert config.dataset is not None
        yield catalog.load(config.dataset, config.columns)
    elif is_store(config.path):
        yield from (ReadReport(piece) for piece in Stored(config.path).pieces())
    else:
        columns = config.columns
        if columns is None and config.dataset is not None:
            columns = catalog.dataset(config.dataset).column_map
        yield from iter_reports(config.path, columns)


def _prepared(reports: Iterator[ReadReport], config: DataConfig, intake: Intake) -> Iterator[Instance]:
    """Instances chosen, cut and scaled as the config says; problems and notices go to `intake`."""
    known: list[str] = []
    wanted = set(config.only)
    for report in reports:
        intake.set_aside += report.set_aside
        intake.notices += report.notices
        instances = report.instances
        if wanted:
            known += [instance.id for instance in instances]
            instances = [instance for instance in instances if instance.id in wanted]
        if config.window is not None:
            instances = list(windows(instances, config.window))
        yield from (scaled(one) if config.scale == "output" else one for one in instances)
    missing = [name for name in config.only if name not in known]
    if missing:
        raise UsageError(f"There is no instance {missing[0]!r} in the data.", f"Known are: {', '.join(known[:20])}.")


def _spool(instances: Iterator[Instance], folder: Path) -> Spooled:
    """Put instances into files. What lies there already from the same data is not written again."""
    hashed, outputs, count = hashlib.sha256(), dict[str, None](), 0
    seen: set[str] = set()
    piece: list[Instance] = []
    folder.mkdir(parents=True, exist_ok=True)

    def write() -> None:
        number = (count - 1) // PIECE
        inner = Held(piece).fingerprint
        noted = folder / f"{number:06d}.sum"
        if not noted.exists() or noted.read_text() != inner:
            write_npz(_piece(folder, number), piece)
            noted.write_text(inner)
        piece.clear()

    for instance in instances:
        if instance.id in seen:
            raise UsageError(f"Two instances have the name {instance.id!r}.", "Give each its own name.")
        seen.add(instance.id)
        _add_to(hashed, instance)
        outputs |= dict.fromkeys(instance.outputs)
        piece.append(instance)
        count += 1
        if len(piece) == PIECE:
            write()
    if piece:
        write()
    return Spooled(folder, count, tuple(outputs), hashed.hexdigest()[:16])


def _piece(folder: Path, number: int) -> Path:
    return folder / f"{number:06d}.npz"


def _outputs(instances: Sequence[Instance]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for instance in instances for name in instance.outputs))


def _add_to(hashed: hashlib._Hash, instance: Instance) -> None:
    """What a fit may see of an instance goes into the hash."""
    hashed.update(json.dumps([instance.id, instance.outputs, instance.values.shape]).encode())
    for array in (instance.times, instance.values, instance.mask, instance.positions, instance.variance):
        if array is not None:
            hashed.update(np.ascontiguousarray(array).tobytes())


def _nothing(config: DataConfig, intake: Intake) -> Problem:
    if not intake.set_aside:
        return Problem("There is no instance in it.", "Give at least one with two times.", str(config.path or ""))
    first, others = intake.set_aside[0], len(intake.set_aside) - 1
    more = f" (There are {others} more problems.)" if others else ""
    return Problem(first.what + more, first.fix, first.file, first.row, first.column, first.instance)
