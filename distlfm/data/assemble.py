"""From the rows of a table to checked instances: the one door through which tabular data comes in.

An instance with a problem is set aside with its first problem, and its neighbours go on. Refused are the tables of
which nothing can be made: a column that is not there, or no rows.

Shapes: `n` rows of an instance, `N` its distinct points, `P` outputs, `L` forces.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from distlfm.data.base import ColumnMap, Numbers, ReadReport, Table, infer_columns
from distlfm.data.doubts import PartlyObserved
from distlfm.data.rows import IntArray, Merged, Rows, distinct_points, merge
from distlfm.errors import DataError, Doubt, Problem, refused
from distlfm.instance import MIN_TIMES, FloatArray, Instance, Truth

MAX_BACKWARD_FRACTION = 0.25
"""Times that step back more often than this are more than a slight disorder: most likely another column is the time."""

FEWEST_ROWS = 3
"""Rows that a series has on average, if a column that nobody named is to tell series apart."""

LEFT_OVER = 0.1
"""Part of the disorder of all rows that may be left within such series."""

UNOBSERVED_VARIANCE = 1.0
"""Stands where nothing was observed, so that dividing by a variance is safe before the mask is applied."""


def assemble(table: Table, columns: ColumnMap | None, default_id: str) -> ReadReport:
    """Check a table and cut it into instances; without a column map the columns are guessed from the header."""
    if not len(table) and not table.ragged:
        raise refused("The table has a header and no rows.", "Give at least two rows.", table.file)
    guessed = []
    if columns is None:
        columns, notice = infer_columns(table)
        guessed = [notice]
    for key, name in [*columns.roles(), *(("where", name) for name in columns.where)]:
        table.require(key, name)
    report = assemble_rows(table, columns, default_id)
    partly = PartlyObserved()
    partly.add(report.instances)
    return replace(report, notices=[*guessed, *report.notices, *partly.notices(table.file)])


def assemble_rows(table: Table, columns: ColumnMap, default_id: str) -> ReadReport:
    """Cut a table that has all of the columns into instances."""
    rows = Rows(table, columns, default_id)
    report = ReadReport(set_aside=rows.orphans)
    for label in rows.ids:
        try:
            rows.raise_fault(label)
            mixed = _several_in_one(table, rows, label) if columns.instance is None else []
            instance, notices = _Series(rows, label).build()
        except DataError as error:
            report.set_aside.append(replace(error.problem, file=table.file, instance=label))
        else:
            report.instances.append(instance)
            report.notices += [replace(one, file=table.file, instance=label) for one in (*mixed, *notices)]
    return report


def _several_in_one(table: Table, rows: Rows, label: str) -> list[Problem]:
    """Refuse rows that are out of order, if a column that nobody named cuts them into series that are in order.

    Where points that are there twice are to be averaged, it is only said what was.
    """
    columns, index = rows.columns, rows.members[label]
    disorder = _disorder(rows, index)
    used = {name for _, name in columns.roles()} | {*columns.where}
    for name in table.names if disorder else ():
        labels = np.array(table.labels(name))[index] if name not in used else np.array([])
        kinds = [one for one in dict.fromkeys(labels.tolist()) if one]
        if not 2 <= len(kinds) <= len(index) / FEWEST_ROWS or not _tells_apart(table.numbers(name)):
            continue
        if sum(_disorder(rows, index[labels == kind]) for kind in kinds) > LEFT_OVER * disorder:
            continue
        blocks = 1 + int((labels[1:] != labels[:-1]).sum())
        if blocks > len(kinds) and disorder < MAX_BACKWARD_FRACTION * len(index):  # it may be chance
            continue
        shown = f"{', '.join(map(repr, kinds[:3]))}{', …' if len(kinds) > 3 else ''}"
        if columns.duplicates == "average":
            what = f"Rows of {len(kinds)} values of {name!r} ({shown}) were put into one series and averaged."
            return [Doubt(what, f"If they are series of their own, set columns.instance={name}.", column=name)]
        raise refused(
            f"The rows look like {len(kinds)} series in one: times are in order within each value of {name!r} "
            f"({shown}), and not in the whole.",
            f"Set columns.instance={name}, or columns.output={name} if it names what was measured. If all is one "
            "series, leave that column out of the table.",
            column=name,
        )
    return []


def _tells_apart(numbers: Numbers) -> bool:
    """Whether a column may hold names: text, or whole numbers."""
    values = numbers.values[np.isfinite(numbers.values)]
    return not numbers.mostly_numeric or bool((values == np.round(values)).all())


def _disorder(rows: Rows, index: IntArray) -> int:
    """How many of these rows have a point that an earlier one has, or step back in time."""
    names = (rows.columns.time, *rows.columns.positions)
    outputs = rows.output_codes[index] if rows.columns.output is not None else np.zeros(len(index), np.int64)
    points = np.stack([outputs, *(rows.numbers[name].values[index] for name in names)])
    distinct, _ = distinct_points(points)
    repeated = len(index) - distinct.shape[1]
    if rows.columns.positions:
        return repeated
    order = np.argsort(outputs, kind="stable")
    back = (np.diff(points[1][order]) < 0) & (np.diff(outputs[order]) == 0)
    return repeated + int(back.sum())


class _Series:
    """The rows of one instance, on their way to its arrays."""

    def __init__(self, rows: Rows, label: str) -> None:
        self.rows = rows
        self.columns = rows.columns
        self.label = label
        self.index = rows.members[label]
        self.coordinate_names = (self.columns.time, *self.columns.positions)
        points, self.at = distinct_points(np.stack([self._cells(name) for name in self.coordinate_names]))
        self.times = points[0]
        self.positions = points[1:].T.copy() if self.columns.positions else None

    def build(self) -> tuple[Instance, list[Problem]]:
        """The instance, and notices of what was mended."""
        notices = [] if self.columns.positions else self._order_notices()
        values, origin = self._gather(self.columns.values)
        notices += self._repeat_notices(values, origin)
        shape = (len(self.rows.outputs), len(self.times))
        mask = values.present.reshape(shape)
        self._check_observed(self.times[mask.any(axis=0)])
        instance = Instance(
            id=self.label,
            outputs=self.rows.outputs,
            times=self.times,
            values=values.values.reshape(shape),
            mask=mask,
            positions=self.positions,
            variance=self._variance(values),
            truth=self._truth(),
            metadata={"source": Path(self.rows.file).name},
        )
        return instance, notices

    def _cells(self, name: str) -> FloatArray:
        return self.rows.numbers[name].values[self.index]

    def _row(self, index: int) -> int:
        return int(self.rows.row_numbers[index])

    def _gather(self, names: tuple[str, ...], shared: bool = False) -> tuple[Merged, IntArray]:
        """Merge columns onto [P × N] cells, or [columns × N] if `shared` by all outputs; and each entry's row index."""
        by_output = self.columns.output is not None and not shared
        cells, entries, origins = [], [], []
        for code, name in enumerate(names):
            filled = ~self.rows.numbers[name].empty[self.index]
            which = self.rows.output_codes[self.index] if by_output else code
            cells.append((which * len(self.times) + self.at)[filled])
            entries.append(self._cells(name)[filled])
            origins.append(self.index[filled])
        numbers, origin = np.concatenate(entries), np.concatenate(origins)
        num_rows = len(self.rows.outputs) if by_output else len(names)
        merged = merge(np.concatenate(cells), numbers, num_rows * len(self.times))
        if merged.conflict is not None and self.columns.duplicates == "refuse":
            first, later = merged.conflict
            column = names[int(np.searchsorted(np.cumsum([len(part) for part in origins]), later, side="right"))]
            place = ", ".join(
                f"{name} {self.rows.numbers[name].values[origin[later]]:g}" for name in self.coordinate_names
            )
            both = f"{numbers[first]:g} in row {self._row(origin[first])}, {numbers[later]:g} here"
            raise refused(
                f"One point ({place}) has two different values: {both}.",
                "Remove one, or set columns.duplicates to 'average'.",
                row=self._row(origin[later]),
                column=column,
            )
        return merged, origin

    def _repeat_notices(self, merged: Merged, origin: IntArray) -> list[Problem]:
        if not len(merged.repeated):
            return []
        rows = np.unique(self.rows.row_numbers[origin[merged.repeated]])
        how = "averaged" if merged.conflict is not None else "merged: they say the same"
        count = "1 row repeats a point and was" if len(rows) == 1 else f"{len(rows)} rows repeat a point and were"
        fix = "Remove what is repeated to be rid of this notice."
        return [Problem(f"{count} {how}.", fix, row=int(rows[0]), column=self.columns.time)]

    def _order_notices(self) -> list[Problem]:
        """Judge the order of times within each output, since rows may come output by output."""
        num_rows = len(self.index)
        series = self.rows.output_codes[self.index] if self.columns.output is not None else np.zeros(num_rows, np.int64)
        order = np.argsort(series, kind="stable")
        steps = np.diff(self._cells(self.columns.time)[order])
        within = np.diff(series[order]) == 0
        backward = np.flatnonzero((steps < 0) & within)
        if not len(backward):
            return []
        row = self._row(self.index[order[backward[0] + 1]])
        count = f"{len(backward)} of {within.sum()} steps"
        newest_first = not (steps[within] > 0).any()
        if len(backward) > max(1, MAX_BACKWARD_FRACTION * within.sum()) and not newest_first:
            raise refused(
                f"Times do not increase: {count} go back.",
                "Sort the rows by time, or set columns.time to the column that holds the time.",
                row=row,
                column=self.columns.time,
            )
        fix = "Sort the rows by time to be rid of this notice."
        return [Problem(f"Times were sorted: {count} went back.", fix, row=row, column=self.columns.time)]

    def _check_observed(self, observed: FloatArray) -> None:
        num_times = len(np.unique(observed))
        if num_times >= MIN_TIMES:
            return
        what, column = "There is no observed value: every cell is empty.", self.columns.values[0]
        if num_times == 1:
            what, column = f"Only one time point ({observed[0]:g}) has a value.", self.columns.time
        raise refused(what, "Give values at two times or more.", row=self._row(self.index[0]), column=column)

    def _variance(self, values: Merged) -> FloatArray | None:
        if not self.columns.variance_columns:
            return None
        variance, _ = self._gather(self.columns.variance_columns)
        # The mean of n independent measurements varies n times less.
        scaled = variance.values / values.averaged
        return np.where(values.present, scaled, UNOBSERVED_VARIANCE).reshape(-1, len(self.times))

    def _truth(self) -> Truth | None:
        """The truth at every point where all of its columns are filled, observed or not."""
        keep = np.ones(len(self.times), dtype=np.bool_)
        curves: list[FloatArray | None] = [None, None]
        for kind, names in enumerate((self.columns.truth_force, self.columns.truth_outputs)):
            if names:
                merged, _ = self._gather(names, shared=kind == 0)
                curves[kind] = merged.values.reshape(-1, len(self.times))
                keep &= merged.present.reshape(-1, len(self.times)).all(axis=0)
        if all(one is None for one in curves) or not keep.any():
            return None
        force, outputs = (None if one is None else one[:, keep] for one in curves)
        return Truth(self.times[keep], force, outputs, None if self.positions is None else self.positions[keep])
