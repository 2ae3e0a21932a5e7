"""The rows of a table sorted by instance, with everything that is wrong with single rows.

`distinct_points` and `merge` gather rows into cells: which points there are, and which cells were given more than once.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from distlfm.data.base import ColumnMap, Numbers, Table
from distlfm.errors import DataError, Problem, refused
from distlfm.instance import BoolArray, FloatArray

IntArray = NDArray[np.int64]


def distinct_points(coordinates: FloatArray) -> tuple[FloatArray, IntArray]:
    """The distinct columns of `coordinates` [d, n], sorted by the first row, then the second, and so on.

    Returns the points [d, N], and for each of the n columns the index of its point.
    """
    coordinates = coordinates + 0.0  # turns -0.0 into 0.0, which is the same place
    order = np.lexsort(coordinates[::-1])
    ordered = coordinates[:, order]
    fresh = np.ones(ordered.shape[1], dtype=np.bool_)
    fresh[1:] = (np.diff(ordered, axis=1) != 0).any(axis=0)
    at = np.empty(len(order), dtype=np.int64)
    at[order] = np.cumsum(fresh) - 1
    return ordered[:, fresh], at


@dataclass(frozen=True)
class Merged:
    """Entries gathered into cells.

    values: [size], the mean of a cell's entries, zero where there are none. present: [size], True where there are.
    averaged: [size], how many entries were averaged; 1 where all entries of a cell agree.
    repeated: indices of entries beyond the first of their cell. conflict: the first two entries that differ.
    """

    values: FloatArray
    present: BoolArray
    averaged: IntArray
    repeated: IntArray
    conflict: tuple[int, int] | None


def merge(cells: IntArray, entries: FloatArray, size: int) -> Merged:
    """Gather `entries` [n] into `size` cells, entry i into cell `cells[i]`."""
    counts = np.bincount(cells, minlength=size).astype(np.int64)
    first = np.zeros(size, dtype=np.int64)
    first[cells[::-1]] = np.arange(len(cells))[::-1]
    values = np.zeros(size)
    values[cells] = entries[first[cells]]
    averaged = np.ones(size, dtype=np.int64)
    repeated = np.flatnonzero(first[cells] != np.arange(len(cells)))
    differing = repeated[entries[repeated] != values[cells[repeated]]]
    conflict = None
    if len(differing):
        conflict = (int(first[cells[differing[0]]]), int(differing[0]))
        # Only cells in conflict take the mean: the others keep the number they were given, bit for bit.
        mixed = np.unique(cells[differing])
        values[mixed] = np.bincount(cells, weights=entries, minlength=size)[mixed] / counts[mixed]
        averaged[mixed] = counts[mixed]
    return Merged(values, counts > 0, averaged, repeated, conflict)


class Rows:
    """The columns of a table in their parts, and which rows belong to which instance.

    members: row indices of each instance. numbers: the numeric columns. outputs: the names of the outputs.
    output_codes: [rows], which output a row belongs to, where a row holds one value; else empty.
    orphans: rows that name no instance.
    """

    def __init__(self, table: Table, columns: ColumnMap, default_id: str) -> None:
        self.file = table.file
        self.columns = columns
        self.row_numbers = np.asarray(table.row_numbers, dtype=np.int64)
        self.orphans: list[Problem] = []
        self._faults: dict[str, list[Problem]] = defaultdict(list)
        self._chosen = _chosen_rows(table, columns)
        self._labels = table.labels(columns.instance) if columns.instance is not None else [default_id] * len(table)
        self.members = self._group()
        self.numbers = {
            name: self._checked(table, name, required=key in ("time", "positions"))
            for key, name in columns.roles()
            if key not in ("instance", "output")
        }
        self.outputs, self.output_codes = self._name_outputs(table)
        self._check_variances()
        self._check_ragged(table, default_id)

    @property
    def ids(self) -> list[str]:
        """Every instance that the table names, good or bad, in order of appearance."""
        return list(dict.fromkeys([*self.members, *self._faults]))

    def raise_fault(self, label: str) -> None:
        """Raise the first of what is wrong with the rows of an instance, if anything is."""
        faults = self._faults.get(label)
        if faults:
            first = min(faults, key=lambda fault: fault.row or 0)
            more = f" (There are {len(faults) - 1} more problems in this instance.)" if len(faults) > 1 else ""
            raise DataError(replace(first, what=first.what + more))

    def _group(self) -> dict[str, IntArray]:
        groups: dict[str, list[int]] = {}
        for index, label in enumerate(self._labels):
            if self._chosen[index]:
                groups.setdefault(label, []).append(index)
        if self.columns.instance is not None:
            for index in groups.pop("", []):
                what = "The row does not say which instance it belongs to; it is left out."
                row = int(self.row_numbers[index])
                self.orphans.append(Problem(what, "Fill the cell.", self.file, row, self.columns.instance))
        return {label: np.array(indices, dtype=np.int64) for label, indices in groups.items()}

    def _fault(self, index: int, column: str | None, what: str, fix: str) -> None:
        label = self._labels[index]
        if self._chosen[index] and label in self.members:
            self._faults[label].append(Problem(what, fix, row=int(self.row_numbers[index]), column=column))

    def _checked(self, table: Table, name: str, required: bool) -> Numbers:
        numbers = table.numbers(name)
        for index, text in numbers.bad.items():
            self._fault(index, name, *_why_bad(text, required))
        if required:
            for index in np.flatnonzero(numbers.empty).tolist():
                self._fault(index, name, "The cell is empty.", "Fill it with a number, or remove the row.")
        return numbers

    def _name_outputs(self, table: Table) -> tuple[tuple[str, ...], IntArray]:
        if self.columns.output is None:
            return self.columns.values, np.zeros(0, dtype=np.int64)
        labels = table.labels(self.columns.output)
        expected = self.columns.expected_outputs
        codes = {name: code for code, name in enumerate(expected)}
        for index, name in enumerate(labels):
            if name in codes or not self._chosen[index]:
                continue
            if not name:
                self._fault(index, self.columns.output, "The row does not name its output.", "Fill the cell.")
            elif expected:
                fix = f"Use one of: {', '.join(expected)}; or add it to columns.expected_outputs."
                self._fault(index, self.columns.output, f"The output {name!r} is not known.", fix)
            else:
                codes[name] = len(codes)
        return tuple(codes), np.array([codes.get(name, 0) for name in labels], dtype=np.int64)

    def _check_variances(self) -> None:
        for value, variance in zip(self.columns.values, self.columns.variance_columns, strict=False):
            numbers = self.numbers[variance]
            for index in np.flatnonzero(numbers.values < 0).tolist():
                what = f"The variance {numbers.values[index]:g} is negative."
                self._fault(index, variance, what, "Give the variance of the noise, not its logarithm.")
            for index in np.flatnonzero(numbers.empty & ~self.numbers[value].empty).tolist():
                fix = "Fill the cell, or leave out columns.variance."
                self._fault(index, variance, "A value has no variance.", fix)

    def _check_ragged(self, table: Table, default_id: str) -> None:
        for row, found in table.ragged:
            cells = dict(zip(table.names, found, strict=False))
            if any(cells.get(name, text).strip() != text for name, text in self.columns.where.items()):
                continue
            what = f"The row has {len(found)} cells, and the header has {len(table.names)}."
            fix = "Give every row one cell per column; a cell that contains a comma needs quotation marks."
            label = default_id if self.columns.instance is None else cells.get(self.columns.instance, "").strip()
            if label:
                self._faults[label].append(Problem(what, fix, row=row))
            else:
                self.orphans.append(Problem(f"{what} It is left out.", fix, self.file, row))


def refuse_repeated(names: Sequence[str], file: str, row: int | None = None) -> None:
    """Refuse a table in which two columns have one name."""
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise refused(f"Two columns are named {twice[0]!r}.", "Give each its own name.", file, row, twice[0])


def _chosen_rows(table: Table, columns: ColumnMap) -> list[bool]:
    chosen = [True] * len(table)
    for name, text in columns.where.items():
        chosen = [keep and cell == text for keep, cell in zip(chosen, table.labels(name), strict=True)]
    if columns.where and len(table) and not any(chosen):
        wanted = " and ".join(f"{name} = {text!r}" for name, text in columns.where.items())
        raise refused(f"No row has {wanted}.", "Change columns.where.", table.file)
    return chosen


def _why_bad(text: str, required: bool) -> tuple[str, str]:
    """What is wrong with a cell that is not a finite number, and what to write instead."""
    instead = "Write a number, or remove the row." if required else "Leave the cell empty where nothing was observed."
    if text.lower().lstrip("+-") in {"nan", "inf", "infinity"}:
        return f"{text!r} is not a finite number.", instead
    if "," in text:
        return f"{text!r} is not a number.", "Write it with a decimal point, and without marks between thousands."
    if required and any(mark in text[1:] for mark in "-/:"):
        return f"{text!r} is not a number.", "Write times as numbers, counted from a start."
    return f"{text!r} is not a number.", instead
