"""A large file, read a part at a time, so that a fleet in it need not fit in memory.

A table is read twice: first to see that the rows of each instance lie together and that every row is whole, then for
the numbers. A table of which that is not true is left to the reader of whole tables, which can say where it is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from distlfm.data.assemble import assemble_rows
from distlfm.data.base import ColumnMap, ReadReport, chunks_for, reader_for, stem_of, steps_for
from distlfm.data.fleet import PartlyObserved
from distlfm.data.infer import infer_columns
from distlfm.data.table import Table, Unreadable
from distlfm.errors import DataError, Problem

LARGE = 4 * 2**20
"""Bytes of a file from which on it is read in pieces."""

Chunks = Callable[[], Iterator[Table]]


def file_reports(path: Path, columns: ColumnMap | None = None) -> Iterator[ReadReport]:
    """The reports of one file: a single one, or one a piece where it is large."""
    chunks, steps = chunks_for(path), steps_for(path)
    if steps is not None and path.stat().st_size >= LARGE:
        yield from steps(path)
        return
    plan = None
    if chunks is not None and path.stat().st_size >= LARGE:
        plan = _plan(lambda: chunks(path), columns)
    if plan is None:
        yield reader_for(path)(path, columns)
    else:
        try:
            yield from _reports(plan, stem_of(path))
        except Unreadable as error:
            what = "The file could be read a moment ago, and cannot be read now."
            raise DataError(Problem(what, "Leave it alone while it is read, and try again.", str(path))) from error


@dataclass(frozen=True)
class _Plan:
    """A table that can be read in pieces. columns: the map, with the outputs of the whole table."""

    chunks: Chunks
    columns: ColumnMap
    instance: str
    notices: tuple[Problem, ...]


def _plan(chunks: Chunks, columns: ColumnMap | None) -> _Plan | None:
    notices: tuple[Problem, ...] = ()
    closed: set[str] = set()
    outputs: dict[str, None] = {}
    last = ""
    try:
        for chunk in chunks():
            if columns is None:
                columns, notice = infer_columns(chunk)
                notices = (notice,)
            named = {name for _, name in columns.roles()}
            if columns.instance is None or columns.where or chunk.ragged or not named <= set(chunk.names):
                return None
            for label in filter(None, chunk.labels(columns.instance)):
                if label != last:
                    closed.add(last)
                    last = label
                    if label in closed:
                        return None
            if columns.output is not None:
                outputs |= dict.fromkeys(filter(None, chunk.labels(columns.output)))
    except (Unreadable, DataError):
        return None
    if columns is None or columns.instance is None:
        return None
    instance = columns.instance
    if outputs and not columns.expected_outputs:
        columns = columns.model_copy(update={"expected_outputs": tuple(outputs)})
    return _Plan(chunks, columns, instance, notices)


def _reports(plan: _Plan, default_id: str) -> Iterator[ReadReport]:
    partly, file = PartlyObserved(), ""
    yield ReadReport(notices=list(plan.notices))
    for table in _whole_instances(plan.chunks(), plan.instance):
        file = table.file
        report = assemble_rows(table, plan.columns, default_id)
        partly.add(report.instances)
        yield report
    yield ReadReport(notices=partly.notices(file))


def _whole_instances(chunks: Iterator[Table], instance: str) -> Iterator[Table]:
    """The same rows, cut where an instance begins."""
    rest: Table | None = None
    for chunk in chunks:
        table = chunk if rest is None else rest.followed_by(chunk)
        cut = _last_start(table.labels(instance))
        if cut:
            yield table.part(0, cut)
        rest = table.part(cut, len(table))
    if rest is not None and len(rest):
        yield rest


def _last_start(labels: Sequence[str]) -> int:
    """Where the last run of equal labels begins."""
    return max((index + 1 for index, (left, right) in enumerate(pairwise(labels)) if left != right), default=0)
