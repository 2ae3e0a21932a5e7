"""Where a fit's instances come from, a few at a time: a store, or files that were read once and put aside in pieces.

Workers open what they need themselves; nobody ever holds the whole fleet.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distlfm.data import ReadReport, catalog, iter_reports, read, write_npz
from distlfm.data.prepare import scaled, windows
from distlfm.errors import DataError, Problem, UsageError, WorkError
from distlfm.instance import Instance
from distlfm.pipeline.settings import DataConfig
from distlfm.store import Store, find_store, is_store
from distlfm.store.files import flush, put_quickly, storing
from distlfm.store.layout import FAILED, STATUSES

PIECE = 64
"""Instances in a file of the spool."""

_NOTED = re.compile(r"(\d{6})\.sum")
_DRAFT = re.compile(r"\.\d{6}\.(npz|sum)\.\d+\.part")


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
    """The instances of a store whose blocks are all there. holes: those that could not be generated, left out."""

    holes: tuple[Problem, ...] = ()
    _rows: NDArray[np.int64] | None = None
    """Where in the store the instances are, if not all of its rows are some."""

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
        markers = store.markers()
        marks = "".join(f"{block}{json.dumps(mark.checksums, sort_keys=True)}" for block, mark in markers.items())
        self.fingerprint = hashlib.sha256(marks.encode()).hexdigest()[:16]
        broken = [mark.block for mark in markers.values() if any(mark.statuses.get(name) for name in FAILED)]
        if store.spec.kind == "generate" and broken:
            self._leave_out(store, broken)

    def _leave_out(self, store: Store, blocks: Sequence[int]) -> None:
        """Rows of these blocks that could not be generated have no numbers, and so are no instances."""
        lost = [STATUSES[name] for name in FAILED]
        empty: list[int] = []
        for where in map(store.block_range, blocks):
            statuses = store.read("status", where.start, where.stop)
            empty += [row for row, status in zip(where, statuses, strict=True) if status in lost]
        names = [str(store.read("id", row, row + 1)[0]) for row in empty]
        what, fix = "It could not be generated: it has no numbers.", "Fit the others, or generate with narrower priors."
        self.holes = tuple(Problem(what, fix, str(self.path), instance=name) for name in names)
        self._rows = np.setdiff1d(np.arange(self.count), empty)
        self.count = len(self._rows)

    def read(self, start: int, stop: int) -> list[Instance]:
        if stop <= start:
            return []
        rows = range(start, stop) if self._rows is None else self._rows[start:stop]
        found = Store.open(self.path).instances(int(rows[0]), int(rows[-1]) + 1)
        if len(found) != len(rows):
            raise WorkError(
                f"{self.path} has no observation in {len(rows) - len(found)} of its rows {rows[0]} to {rows[-1]}.",
                "Export it with `distlfm store export --format npz`, which leaves those out, and fit that.",
            )
        return found


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
        whole = Stored(config.path)
        intake.set_aside += whole.holes
        if not whole.count:
            raise DataError(_nothing(config, intake))
        return whole, intake
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


def first_report(config: DataConfig) -> ReadReport:
    """What the first file of the data gives: mostly enough to know whether the others can be read."""
    return next(_reports(config))


def _reports(config: DataConfig) -> Iterator[ReadReport]:
    if config.dataset is None and config.path is None:
        raise UsageError("No data are named.", "Give --data PATH, or set data.path or data.dataset in the config.")
    if config.path is None:
        assert config.dataset is not None
        yield catalog.load(config.dataset, config.columns)
    elif is_store(config.path):
        stored = Stored(config.path)
        yield ReadReport(set_aside=list(stored.holes))
        yield from (ReadReport(piece) for piece in stored.pieces())
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
        for one in instances:
            try:
                for_fitting(one, config)
            except DataError as error:  # too little is left of it
                intake.set_aside.append(error.problem)
            else:
                named = replace(one, metadata={**one.metadata, **config.units.told()})
                yield scaled(named) if config.scale == "output" else named
    missing = [name for name in config.only if name not in known]
    if missing:
        raise UsageError(f"There is no instance {missing[0]!r} in the data.", f"Known are: {', '.join(known[:20])}.")


def for_fitting(instance: Instance, data: DataConfig) -> Instance:
    """The observations of an instance that a fit may see."""
    thinned = instance.thinned(data.stride)
    if thinned.positions is not None:
        thinned = thinned.observed()
    return _scorable(thinned if data.fraction == 1.0 else thinned.sampled(data.fraction, data.split_seed))


def _scorable(instance: Instance) -> Instance:
    """The same without what is true before its first observation, where the equation begins: no fit tells of that."""
    truth = instance.truth
    if truth is None or truth.positions is not None or instance.positions is not None:
        return instance
    keep = truth.times >= instance.times[0]
    if keep.all():
        return instance
    force, outputs = (None if curve is None else curve[:, keep] for curve in (truth.force, truth.outputs))
    scored = None if truth.scored is None else truth.scored[keep]
    if not keep.any():
        force = outputs = None
    return replace(instance, truth=replace(truth, times=truth.times[keep], force=force, outputs=outputs, scored=scored))


def _spool(instances: Iterator[Instance], folder: Path) -> Spooled:
    """Put instances into files. What lies there already from the same data is not written again."""
    hashed, outputs, count = hashlib.sha256(), dict[str, None](), 0
    seen: set[str] = set()
    piece: list[Instance] = []
    with storing("a copy of the data", folder):
        folder.mkdir(parents=True, exist_ok=True)
    refuse_others(folder)

    def write() -> None:
        number = (count - 1) // PIECE
        inner = Held(piece).fingerprint.encode()
        noted, copy = folder / f"{number:06d}.sum", _piece(folder, number)
        with storing("a copy of the data", folder):
            if not noted.exists() or noted.read_bytes() != inner or not copy.exists():
                noted.write_bytes(b"")  # until the piece is there, its sum is nobody's
                write_npz(copy, piece)
                flush(copy)
                put_quickly(noted, inner)
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


def refuse_others(folder: Path) -> None:
    """Refuse to put a spool where somebody else's files are: it would write over them, and remove them at the end."""
    others = sorted({one.name for one in _inside(folder)} - {one.name for one in _spooled(folder)})
    if others:
        raise UsageError(
            f"{folder}, where a run keeps a copy of its data, has files of somebody else, such as {others[0]}.",
            "Choose another --out directory.",
        )


def clear_spool(folder: Path) -> None:
    """Remove a spool, and nothing else."""
    for file in _spooled(folder):
        file.unlink(missing_ok=True)
    with suppress(OSError):  # not there, or it has something else in it
        folder.rmdir()


def _spooled(folder: Path) -> list[Path]:
    """The files of a spool: pieces have a sum beside them."""
    names = [one.name for one in _inside(folder)]
    numbers = {found.group(1) for name in names if (found := _NOTED.fullmatch(name))}
    return [folder / name for name in names if name.partition(".")[0] in numbers or _DRAFT.fullmatch(name)]


def _inside(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


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
