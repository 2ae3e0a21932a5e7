"""A folder of files, each read by the reader of its ending; a file that cannot be read is set aside.

An instance keeps its own id if that is the file's name, and else has the file's name before it: `site_a/001`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from distlfm.data.base import ColumnMap, ReadReport, known_suffixes, stem_of, suffix_of
from distlfm.data.pieces import file_reports
from distlfm.errors import DataError, Problem

MOST_NAMED = 3
"""Entries of a folder that are named in a notice; of others the number is told."""


def iter_directory(path: Path, columns: ColumnMap | None = None) -> Iterator[ReadReport]:
    """One report a file, so that a large folder need not fit in memory."""
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    files = [entry for entry in entries if entry.is_file() and suffix_of(entry) is not None]
    left = [entry for entry in entries if entry not in files]
    folders = [entry for entry in left if entry.is_dir()]
    if not files:
        inside = f" Folders inside it are not opened: give one of them, such as {folders[0]}." if folders else ""
        raise DataError(
            Problem(
                f"The folder has no file that can be read ({len(entries)} other entries).",
                f"Put files in it that end in one of: {', '.join(known_suffixes())}.{inside}",
                str(path),
            )
        )
    if left:
        yield ReadReport(notices=[_left_notice(path, left, folders)])
    seen: dict[str, Path] = {}
    said: set[str] = set()
    for file in files:
        try:
            for report in file_reports(file, columns):
                # What is said of whole files, such as the guess of the columns, is said once and not a thousand times.
                report.notices = [item for item in report.notices if item.instance is not None or item.what not in said]
                said |= {item.what for item in report.notices}
                yield _named_by_file(report, file, seen)
        except DataError as error:
            yield ReadReport(set_aside=[error.problem])


def _left_notice(path: Path, left: list[Path], folders: list[Path]) -> Problem:
    """What of a folder was not read, and what to do if data are in it."""
    names = [f"{entry.name} (a folder)" if entry in folders else entry.name for entry in left]
    listed = ", ".join(names[:MOST_NAMED]) + (f" and {len(names) - MOST_NAMED} more" if names[MOST_NAMED:] else "")
    fixes = []
    if len(left) > len(folders):
        fixes.append(f"Only files that end in {', '.join(known_suffixes())} are: save other data as .csv.")
    if folders:
        fixes.append("Folders inside are not opened: move data out of them, or fit each folder on its own.")
    fixes.append("If this is no data, all is well.")
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
