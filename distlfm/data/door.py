"""The public way to read: a file or a folder, whatever its format."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from distlfm.data.base import ColumnMap, ReadReport
from distlfm.data.clocks import Clocks
from distlfm.data.directory import iter_directory
from distlfm.data.fleet import Comparison
from distlfm.data.pieces import file_reports
from distlfm.data.stand_ins import StandIns
from distlfm.errors import DataError, DistlfmWarning, Problem
from distlfm.instance import Instance


def read(path: str | Path, columns: ColumnMap | None = None) -> ReadReport:
    """Read the instances of a file or folder.

    A bad instance is set aside in the report and the others go on. Raises DataError if the file cannot be read at all,
    or if no instance of it can be used.
    """
    report = examine(path, columns)
    if not report.instances:
        first = report.set_aside[0]
        others = len(report.set_aside) - 1
        more = f" (There are {others} more problems.)" if others else ""
        raise DataError(replace(first, what=first.what + more))
    return report


def examine(path: str | Path, columns: ColumnMap | None = None) -> ReadReport:
    """As `read`, but a report without any usable instance is an answer too."""
    report = ReadReport()
    for part in iter_reports(path, columns):
        report.instances += part.instances
        report.set_aside += part.set_aside
        report.notices += part.notices
    return report


def iter_reports(path: str | Path, columns: ColumnMap | None = None) -> Iterator[ReadReport]:
    """One report a file, or a piece of a large one, so that not all need fit in memory; the last tells of all."""
    path = _existing(Path(path))
    something = False
    watchers = (Comparison(), StandIns(), Clocks())
    for report in iter_directory(path, columns) if path.is_dir() else file_reports(path, columns):
        for instance in report.instances:
            for watcher in watchers:
                watcher.add(instance)
        something = something or bool(report.instances or report.set_aside)
        yield report
    if not something:
        raise DataError(Problem("There is no instance in it.", "Give at least one with two times.", str(path)))
    yield ReadReport(notices=[notice for watcher in watchers for notice in watcher.notices(str(path))])


def iter_instances(path: str | Path, columns: ColumnMap | None = None) -> Iterator[Instance]:
    """Instances one by one, holding one file at a time; each that is set aside is a DistlfmWarning."""
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
    raise DataError(Problem("There is no such file or folder.", fix, str(path)))
