"""Read a file or a folder, whatever its format.

A large file is read a part at a time, so that a fleet in it need not fit in memory. A table is then read twice: first
to see that the rows of each instance lie together and that every row is whole, then for the numbers. A table of which
that is not true is left to the reader of whole tables, which can say where it is wrong.

In a folder, each file is read by the reader of its ending, and a file that cannot be read is set aside. An instance
keeps its own id if that is the file's name, and else has the file's name before it: `site_a/001`.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from distlfm.data.assemble import assemble_rows
from distlfm.data.base import FORMATS, ColumnMap, ReadReport, Table, Unreadable, format_of, infer_columns, stem_of
from distlfm.data.doubts import Clocks, Gaps, InstanceChecks, PartlyObserved, StandIns
from distlfm.errors import DataError, DistlfmWarning, Problem, refused
from distlfm.instance import Instance

LARGE = 4 * 2**20
"""Bytes of a file from which on it is read in pieces."""


def file_reports(path: Path, columns: ColumnMap | None = None) -> Iterator[ReadReport]:
    """The reports of one file: a single one, or one a piece where it is large."""
    form, large = format_of(path), path.stat().st_size >= LARGE
    if large and form.steps is not None:
        yield from form.steps(path)
        return
    plan = _plan(form.chunks(path), columns) if large and form.chunks is not None else None
    if form.chunks is None or plan is None:
        yield form.read(path, columns)
        return
    try:
        yield from _reports(path, form.chunks(path), *plan)
    except Unreadable as error:
        what = "The file could be read a moment ago, and cannot be read now."
        raise refused(what, "Leave it alone while it is read, and try again.", str(path)) from error


def _plan(chunks: Iterable[Table], columns: ColumnMap | None) -> tuple[ColumnMap, list[Problem]] | None:
    """The map with the outputs of the whole table, and notices; None for a table that is to be read whole."""
    notices: list[Problem] = []
    closed: set[str] = set()
    outputs: dict[str, None] = {}
    last = ""
    try:
        for chunk in chunks:
            if columns is None:
                columns, notice = infer_columns(chunk)
                notices = [notice]
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
    if columns is not None and outputs and not columns.expected_outputs:
        columns = columns.model_copy(update={"expected_outputs": tuple(outputs)})
    return None if columns is None else (columns, notices)


def _reports(path: Path, chunks: Iterable[Table], columns: ColumnMap, notices: list[Problem]) -> Iterator[ReadReport]:
    partly = PartlyObserved()
    yield ReadReport(notices=notices)
    assert columns.instance is not None
    for table in _whole_instances(chunks, columns.instance):
        report = assemble_rows(table, columns, stem_of(path))
        partly.add(report.instances)
        yield report
    yield ReadReport(notices=partly.notices(str(path)))


def _whole_instances(chunks: Iterable[Table], instance: str) -> Iterator[Table]:
    """The same rows, cut where the last instance of each chunk begins."""
    rest: Table | None = None
    for chunk in chunks:
        table = chunk if rest is None else rest.followed_by(chunk)
        labels = table.labels(instance)
        cut = max((index for index in range(1, len(labels)) if labels[index] != labels[index - 1]), default=0)
        if cut:
            yield table.part(0, cut)
        rest = table.part(cut, len(table))
    if rest is not None and len(rest):
        yield rest


MOST_NAMED = 3
"""Entries of a folder that are named in a notice; others are counted."""


def iter_directory(path: Path, columns: ColumnMap | None = None) -> Iterator[ReadReport]:
    """One report per file, so that a large folder need not fit in memory."""
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    readable = tuple(sorted(FORMATS))
    files = [entry for entry in entries if entry.is_file() and entry.name.lower().endswith(readable)]
    left = [entry for entry in entries if entry not in files]
    folders = [entry for entry in left if entry.is_dir()]
    if not files:
        inside = f" Folders inside it are not opened: give one of them, such as {folders[0]}." if folders else ""
        raise refused(
            f"The folder has no file that can be read ({len(entries)} other entries).",
            f"Put files in it that end in one of: {', '.join(readable)}.{inside}",
            str(path),
        )
    if left:
        yield ReadReport(notices=[_left_notice(path, left, folders)])
    seen: dict[str, Path] = {}
    past: set[str] = set()
    for file in files:
        try:
            for report in file_reports(file, columns):
                # What is said of whole files, such as the guess of the columns, is said once and not a thousand times.
                report.notices = [item for item in report.notices if item.instance is not None or item.what not in past]
                past |= {item.what for item in report.notices}
                yield _named_by_file(report, file, seen)
        except DataError as error:
            yield ReadReport(set_aside=[error.problem])


def _left_notice(path: Path, left: list[Path], folders: list[Path]) -> Problem:
    """What of a folder was not read, and what to do if data are in it."""
    names = [f"{entry.name} (a folder)" if entry in folders else entry.name for entry in left]
    listed = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if names[MOST_NAMED:] else "")
    fixes = []
    if len(left) > len(folders):
        fixes.append(f"Only files that end in {', '.join(sorted(FORMATS))} are: save other data as .csv.")
    if folders:
        fixes.append("Folders inside are not opened: move data out of them, or fit each folder on its own.")
    fixes.append("If this is not data, all is well.")
    return Problem(f"{listed} {'was' if len(left) == 1 else 'were'} not read.", " ".join(fixes), str(path))


def _named_by_file(report: ReadReport, file: Path, seen: dict[str, Path]) -> ReadReport:
    stem = stem_of(file)

    def full(name: str) -> str:
        return name if name == stem else f"{stem}/{name}"

    def renamed(problem: Problem) -> Problem:
        return problem if problem.instance is None else replace(problem, instance=full(problem.instance))

    named = ReadReport([], [renamed(item) for item in report.set_aside], [renamed(item) for item in report.notices])
    for instance in report.instances:
        name = full(instance.id)
        if name in seen:
            what = f"The instance is already there, from {seen[name].name}."
            named.set_aside.append(Problem(what, "Give each file its own name.", str(file), instance=name))
        else:
            seen[name] = file
            named.instances.append(replace(instance, id=name))
    return named


def read(path: str | Path, columns: ColumnMap | None = None) -> ReadReport:
    """Read the instances of a file or folder.

    path: a file whose ending has a reader (such as .csv, .parquet or .npz), or a folder of them. columns: which column
    plays which part; by default the header suggests it, and a notice says what was taken.

    Returns a report, which is a sequence of instances. A bad instance is set aside in it and the others go on. Raises
    `DataError` if the file cannot be read at all, or if no instance of it can be used.
    """
    return usable(examine(path, columns))


def usable(report: ReadReport) -> ReadReport:
    """Refuse a report without any usable instance, with the first problem."""
    if not report.instances:
        first = report.set_aside[0]
        others = len(report.set_aside) - 1
        more = f" (There are {others} more problems.)" if others else ""
        raise DataError(replace(first, what=first.what + more))
    return report


def compared(reports: Iterable[ReadReport], file: str) -> Iterator[ReadReport]:
    """The same, then one with notices of what shows only when all instances are looked at."""
    watchers = (InstanceChecks(), StandIns(), Clocks(), Gaps())
    for report in reports:
        for instance in report.instances:
            for watcher in watchers:
                watcher.add(instance)
        yield report
    yield ReadReport(notices=[notice for watcher in watchers for notice in watcher.notices(file)])


def examine(path: str | Path, columns: ColumnMap | None = None) -> ReadReport:
    """Do as `read`, but also return a report without any usable instance. path, columns: as there."""
    return ReadReport.joined(iter_reports(path, columns))


def iter_reports(path: str | Path, columns: ColumnMap | None = None) -> Iterator[ReadReport]:
    """Return an iterator over reports, one per file or piece of a large one, so that not all must fit in memory.

    path, columns: as for `read`. The last report has what shows only when all are looked at. Raises `DataError` if
    nothing can be read.
    """
    path = _existing(Path(path))
    something = False
    reports = iter_directory(path, columns) if path.is_dir() else file_reports(path, columns)
    for report in compared(reports, str(path)):
        something = something or bool(report.instances or report.set_aside)
        yield report
    if not something:
        raise refused("There is no instance in it.", "Give at least one with two times.", str(path))


def iter_instances(path: str | Path, columns: ColumnMap | None = None) -> Iterator[Instance]:
    """Return an iterator over instances, which holds one file at a time; each set aside is a `DistlfmWarning`.

    path, columns: as for `read`. Raises `DataError` if nothing can be read.
    """
    for report in iter_reports(path, columns):
        for problem in report.set_aside:
            warnings.warn(str(problem), DistlfmWarning, stacklevel=2)
        yield from report.instances


def _existing(path: Path) -> Path:
    if path.exists():
        return path
    beside = [entry.name for entry in path.parent.iterdir()] if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, beside, n=1)
    fix = f"Did you mean {near[0]!r}?" if near else "Check the path."
    raise refused("There is no such file or folder.", fix, str(path))
