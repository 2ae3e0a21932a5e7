"""Where a fit's instances come from, a few at a time: a store, or files that were read once and put aside in pieces.

Workers open what they need themselves; nobody ever holds the whole fleet. Instances are made ready for a fit here: cut
into windows, and put into units of their own size.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from distlfm.data import ReadReport, catalog, iter_reports
from distlfm.errors import DataError, Doubt, Problem, UsageError, WorkError
from distlfm.fleets.spool import MemorySource, Source, spool
from distlfm.instance import MIN_TIMES, Instance, Truth
from distlfm.runs.settings import DataConfig
from distlfm.runtime.reporting import Reporter
from distlfm.store import Store, content_hash, find_store, is_store
from distlfm.store.layout import FAILED, STATUSES, UNKNOWN_UNIT

MIN_FILLED = 0.5
"""A window that holds fewer than this share of the points that the fullest one has is left out."""


def windows(instances: Iterable[Instance], length: float) -> Iterator[Instance]:
    """Each instance cut into pieces of `length` in time, named `id/0`, `id/1`, …; times count from a piece's start."""
    for instance in instances:
        number = np.floor((instance.times - instance.times[0]) / length + 1e-9).astype(int)
        counts = np.bincount(number)
        for piece in np.flatnonzero(counts >= max(MIN_TIMES, MIN_FILLED * counts.max())):
            here = number == piece
            if not instance.mask[:, here].any():
                continue
            part = instance.kept(here)
            metadata = {**part.metadata, "window_start": f"{part.times[0]:.17g}"}
            yield replace(
                part, id=f"{part.id}/{piece}", times=part.times - part.times[0], truth=None, metadata=metadata
            )


def scaled(instance: Instance) -> Instance:
    """Every output divided by its own root mean square; the metadata keep the divisors.

    True parameters are dropped, as their units no longer hold; the true force stays.
    """
    observed = np.where(instance.mask, instance.values, 0.0)
    count = np.maximum(instance.mask.sum(1), 1)
    size = np.sqrt((observed**2).sum(1) / count)
    size = np.where(size > 0, size, 1.0)[:, None]
    truth = instance.truth
    if truth is not None:
        outputs = None if truth.outputs is None else truth.outputs / size
        truth = Truth(truth.times, truth.force, outputs, truth.positions)
    divisors = {f"scale_{name}": f"{value:.17g}" for name, value in zip(instance.outputs, size[:, 0], strict=True)}
    return replace(
        instance,
        values=instance.values / size,
        variance=None if instance.variance is None else instance.variance / size**2,
        truth=truth,
        metadata={**instance.metadata, **divisors, "value_unit": "root mean square"},
    )


@dataclass
class Intake:
    """What reading the data gave besides instances."""

    set_aside: list[Problem] = field(default_factory=list)
    notices: list[Problem] = field(default_factory=list)

    @property
    def doubts(self) -> list[Doubt]:
        """Notices that belong with every answer."""
        return [notice for notice in self.notices if isinstance(notice, Doubt)]

    def tell(self, reporter: Reporter) -> None:
        """Say what was found."""
        for notice in self.notices:
            reporter.say(f"notice: {notice}")
        for problem in self.set_aside:
            reporter.warn(f"set aside: {problem}")


class Stored(Source):
    """The instances of a store whose blocks are all there. holes: those that are left out, and why."""

    holes: tuple[Problem, ...] = ()
    _unfit: frozenset[str] = frozenset()
    _rows: range | NDArray[np.int64]
    """Where in the store the instances are."""

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
        self._rows = range(self.count)
        markers = store.markers()
        self.fingerprint = content_hash(markers)
        broken = [mark.block for mark in markers.values() if mark.failed]
        if store.spec.kind == "generate" and broken:
            self._leave_out(store, broken)

    def _leave_out(self, store: Store, blocks: Sequence[int]) -> None:
        """Rows of these blocks that could not be generated have no numbers, and so are not instances."""
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

    def leave_out_unfit(self, config: DataConfig) -> None:
        """Set aside the instances of which the config leaves too little, as they are when they come from a file."""
        if config.stride == 1 and config.fraction == 1.0 and not Store.open(self.path).spec.space:
            return
        fit, problems = np.ones(self.count, dtype=bool), []
        for place, one in enumerate(itertools.chain.from_iterable(self.pieces())):
            try:
                for_fitting(one, config)
            except DataError as error:
                fit[place] = False
                problems.append(replace(error.problem, file=str(self.path), instance=one.id))
        if problems:
            self.holes += tuple(problems)
            self._unfit = frozenset(str(problem.instance) for problem in problems)
            self._rows = np.asarray(self._rows)[fit]
            self.count = len(self._rows)

    def read(self, start: int, stop: int) -> list[Instance]:
        if stop <= start:
            return []
        rows = self._rows[start:stop]
        within = Store.open(self.path).instances(int(rows[0]), int(rows[-1]) + 1)
        usable = [one for one in within if one.id not in self._unfit]
        if len(usable) != len(rows):
            raise WorkError(
                f"{self.path} has no observation in {len(rows) - len(usable)} of its rows {rows[0]} to {rows[-1]}.",
                "Export it with `distlfm store export --format npz`, which leaves those out, and fit that.",
            )
        return usable


def open_source(config: DataConfig, data: Sequence[Instance] | None, folder: Path | None) -> tuple[Source, Intake]:
    """The instances that a config's data section names, or `data`, and what was found on reading.

    A complete store is used where it lies. Anything else is read once, one file at a time, and put into `folder`;
    without a folder it stays in memory.
    """
    intake = Intake()
    as_it_is = data is None and config.window is None and config.scale == "none" and not config.only
    source: Source
    if as_it_is and config.path is not None and is_store(config.path):
        source = whole = Stored(config.path)
        whole.leave_out_unfit(config)
        intake.set_aside += whole.holes
    else:
        given = data if isinstance(data, ReadReport) else ReadReport(list(data or ()))
        instances = _prepared(_reports(config) if data is None else iter([given]), config, intake)
        source = MemorySource(list(instances)) if folder is None else spool(instances, folder)
    if not source.count:
        raise DataError(_nothing(config, intake))
    return source, intake


def known_units(source: Source, config: DataConfig) -> dict[str, str]:
    """`time_unit`, `value_unit` and `position_unit` as far as they are known: by the config, or else by the data."""
    metadata = source.read(0, 1)[0].metadata
    stated = {key: metadata.get(key, UNKNOWN_UNIT) for key in ("time_unit", "value_unit", "position_unit")}
    named = config.units.as_metadata()
    if config.scale == "output":
        named.pop("value_unit", None)
    return {key: unit for key, unit in {**stated, **named}.items() if unit != UNKNOWN_UNIT}


def read_instances(config: DataConfig) -> ReadReport:
    """The instances that a config's data section names, all in memory."""
    source, intake = open_source(config, None, None)
    return ReadReport(source.read(0, source.count), intake.set_aside, intake.notices)


def first_report(config: DataConfig) -> ReadReport:
    """What the first file of the data gives: mostly enough to know whether the others can be read."""
    return next(_reports(config))


def _reports(config: DataConfig) -> Iterator[ReadReport]:
    if config.dataset is None and config.path is None:
        fix = "Give them, on the command line as --data PATH, or set data.path or data.dataset in the config."
        raise UsageError("No data are named.", fix)
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
                named = replace(one, metadata={**one.metadata, **config.units.as_metadata()})
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
    """The same without truth before its first observation, where the equation begins: no fit goes further back."""
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


def _nothing(config: DataConfig, intake: Intake) -> Problem:
    if not intake.set_aside:
        return Problem("There is no instance in it.", "Give at least one with two times.", str(config.path or ""))
    first, others = intake.set_aside[0], len(intake.set_aside) - 1
    more = f" (There are {others} more problems.)" if others else ""
    return replace(first, what=first.what + more)
