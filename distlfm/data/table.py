"""A table as readers hand it on: named columns, the row number of each row, and how cells become numbers."""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self, final

import numpy as np

from distlfm.errors import DataError, Problem
from distlfm.instance import BoolArray, FloatArray

CHUNK = 20_000
"""Rows of a large table that are read at a time."""

MISSING = "NA"
"""How R writes a cell in which nothing was observed."""


@dataclass(frozen=True)
class Numbers:
    """A column as numbers.

    values: [rows], NaN where a cell is empty or bad. empty: [rows], True for empty cells.
    bad: the text of every cell that is neither empty nor a finite number, by row index.
    """

    values: FloatArray
    empty: BoolArray
    bad: dict[int, str]

    @property
    def mostly_numeric(self) -> bool:
        filled = len(self.empty) - int(self.empty.sum())
        return filled > 0 and 2 * len(self.bad) <= filled


@dataclass(frozen=True)
class RaggedRow:
    """A row with too few or too many cells."""

    row: int
    cells: Sequence[str]


class Unreadable(Exception):
    """A file that cannot be read on; the reader of whole files says why."""


class Table(ABC):
    """The rows of one file. `row_numbers` says where in the file each row is, counted from 1."""

    file: str
    names: Sequence[str]
    row_numbers: Sequence[int]
    ragged: Sequence[RaggedRow] = ()

    @abstractmethod
    def numbers(self, name: str) -> Numbers:
        """A column as numbers."""

    @abstractmethod
    def labels(self, name: str) -> list[str]:
        """A column as text without surrounding blanks; empty cells are empty strings."""

    @abstractmethod
    def part(self, start: int, stop: int) -> Self:
        """Rows `start` … `stop` − 1; ragged ones are left behind."""

    @abstractmethod
    def followed_by(self, other: Self) -> Self:
        """These rows, then the other's."""

    @final
    def __len__(self) -> int:
        return len(self.row_numbers)

    @final
    def require(self, key: str, name: str) -> None:
        """Refuse a column that is not there, and say which one is nearest."""
        if name in self.names:
            return
        near = difflib.get_close_matches(name, self.names, n=1, cutoff=0.5) or [
            other for other in self.names if other.lower() == name.lower()
        ]
        there = f"The file has: {', '.join(self.names)}."
        hint = f"Did you mean {near[0]!r}? " if near else ""
        raise DataError(
            Problem(f"There is no column {name!r}.", f"{hint}Set columns.{key}. {there}", file=self.file, column=name)
        )


def parse_numbers(cells: Sequence[str]) -> Numbers:
    """Text cells as numbers. Empty cells and R's `NA` are missing; `nan` and `inf` are bad, as results gone wrong."""
    try:
        values = np.array([float(cell) if cell else np.nan for cell in cells], dtype=np.float64)
        empty = np.fromiter((not cell for cell in cells), dtype=np.bool_, count=len(cells))
        # Python reads 1_000 as a thousand; no table means that.
        suspects = [index for index, cell in enumerate(cells) if "_" in cell]
    except ValueError:
        stripped = ["" if cell.strip() == MISSING else cell.strip() for cell in cells]
        values = np.array([_number(cell) for cell in stripped], dtype=np.float64)
        empty = np.fromiter((not cell for cell in stripped), dtype=np.bool_, count=len(cells))
        suspects = [index for index, cell in enumerate(stripped) if "_" in cell]
    suspects += np.flatnonzero(~np.isfinite(values) & ~empty).tolist()
    bad = {index: cells[index].strip() for index in sorted(set(suspects))}
    values[list(bad)] = np.nan
    return Numbers(values, empty, bad)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")
