"""What a reader is: a function from a path and a column map to a report of instances and problems.

A new format is a new file: write `def read_xyz(path, columns) -> ReadReport`, decorate it with `@reads(".xyz")`, and
import it in `distlfm/data/__init__.py`, or name the file in `plugins` of a config. Readers of tables hand on a `Table`:
named columns and the row number of each row.

`infer_columns` guesses the column map from a table's header, for tables that leave no doubt. It never guesses between
two candidates, because the wrong one could be the truth that a fit must not see.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, overload

import numpy as np
import pyarrow as pa
from pydantic import BeforeValidator, Field, model_validator

from distlfm.config import Config, nearest
from distlfm.errors import DataError, Problem, UsageError, refused
from distlfm.instance import BoolArray, FloatArray, Instance

Item = TypeVar("Item")

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


class Unreadable(Exception):
    """A file that cannot be read on; the reader of whole files says why."""


@dataclass(frozen=True)
class Table:
    """The rows of one file. row_numbers: where in the file each row is, counted from 1.

    cells: a table of Arrow; text in it may be numbers too. A null is a value that was not observed.
    ragged: number and cells of each row that has too few or too many of them.
    """

    file: str
    cells: Any
    row_numbers: Sequence[int]
    ragged: Sequence[tuple[int, Sequence[str]]] = ()

    @property
    def names(self) -> list[str]:
        return list(self.cells.column_names)

    def __len__(self) -> int:
        return len(self.row_numbers)

    def numbers(self, name: str) -> Numbers:
        """A column as numbers."""
        column = self.cells.column(name)
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
            return parse_numbers(self.labels(name))
        empty = column.is_null().to_numpy().astype(np.bool_)
        values = column.to_numpy().astype(np.float64)
        bad = {index: str(values[index]) for index in np.flatnonzero(~np.isfinite(values) & ~empty).tolist()}
        values[list(bad)] = np.nan
        return Numbers(values, empty, bad)

    def labels(self, name: str) -> list[str]:
        """A column as text without surrounding blanks; empty cells are empty strings."""
        return ["" if cell is None else str(cell).strip() for cell in self.cells.column(name).to_pylist()]

    def part(self, start: int, stop: int) -> Table:
        """Rows `start` … `stop` − 1; ragged ones are left behind."""
        return Table(self.file, self.cells.slice(start, stop - start), self.row_numbers[start:stop])

    def followed_by(self, other: Table) -> Table:
        """These rows, then the other's; ragged ones are left behind."""
        cells = pa.concat_tables([self.cells, other.cells])
        return Table(self.file, cells, [*self.row_numbers, *other.row_numbers])

    def require(self, key: str, name: str) -> None:
        """Refuse a column that is not there, and say which one is nearest."""
        if name not in self.names:
            alike = [other for other in self.names if other.lower() == name.lower()]
            hint = did_you_mean(name, self.names, cutoff=0.5) or did_you_mean(name, alike, cutoff=0.0)
            fix = f"{hint}Set columns.{key}. The file has: {', '.join(self.names)}."
            raise refused(f"There is no column {name!r}.", fix, self.file, column=name)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """A question that points to the nearest known name, with a space after it; empty if none is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)
    return f"Did you mean {near[0]!r}? " if near else ""


def parse_numbers(cells: Sequence[str]) -> Numbers:
    """Text cells as numbers. Empty cells and R's `NA` are missing; `nan` and `inf` are bad, as results gone wrong."""
    try:
        filled = cells
        values = np.array([float(cell) if cell else np.nan for cell in cells], dtype=np.float64)
    except ValueError:
        filled = ["" if cell == MISSING else cell for cell in cells]
        values = np.array([_number(cell) for cell in filled], dtype=np.float64)
    empty = np.fromiter((not cell for cell in filled), dtype=np.bool_, count=len(cells))
    # Python reads 1_000 as a thousand; no table means that.
    suspects = [index for index, cell in enumerate(filled) if "_" in cell]
    suspects += np.flatnonzero(~np.isfinite(values) & ~empty).tolist()
    bad = {index: cells[index] for index in sorted(set(suspects))}
    values[list(bad)] = np.nan
    return Numbers(values, empty, bad)


def _number(cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        return float("nan")


def _as_names(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_names)]
ROLES = ("time", "instance", "output", "values", "positions", "variance", "truth_force", "truth_outputs")
"""Keys of a column map that name columns to read."""


class ColumnMap(Config):
    """Which column of a table plays which part.

    A table has one of two shapes. With `output` set, each row is one value: `output` names the column that says which
    output it is, and `values` is the one column that holds the number. Without it, each row is one observation point,
    and `values` lists one column per output.

    Truth columns are kept for scoring and never become values.
    """

    time: str = Field(description="Column of the times, as numbers.")
    values: Names = Field(min_length=1, description="Column (or columns, one per output) of the observed values.")
    output: str | None = Field(None, description="Column that names the output of each row.")
    instance: str | None = Field(None, description="Column that tells instances apart; without it a file is one.")
    positions: Names = Field((), description="Columns of the spatial coordinates.")
    variance: str | dict[str, str] | None = Field(
        None,
        description="Column of the noise variance; for several value columns, a map from value to variance column.",
    )
    truth_force: Names = Field((), description="Columns of the true forces, for scoring only.")
    truth_outputs: Names = Field((), description="Columns of noise-free outputs, one per value column; scoring only.")
    expected_outputs: Names = Field((), description="Names allowed in the output column; they also fix the order.")
    where: dict[str, str] = Field({}, description="Keep only the rows whose column holds exactly this text.")
    duplicates: Literal["refuse", "average"] = Field(
        "refuse", description="What to do where one point has two different values."
    )

    @model_validator(mode="after")
    def _fits_together(self) -> ColumnMap:
        if self.output is not None and len(self.values) != 1:
            raise ValueError("with `output` set, `values` is one column: the one that holds the number")
        if self.output is None and self.expected_outputs:
            raise ValueError("`expected_outputs` belongs with `output`; without it `values` names the outputs")
        if isinstance(self.variance, str) and len(self.values) != 1:
            raise ValueError("`variance` must map each value column to its variance column")
        if isinstance(self.variance, dict) and set(self.variance) != set(self.values):
            raise ValueError(f"`variance` must have exactly the keys {list(self.values)}")
        if self.truth_outputs and len(self.truth_outputs) != len(self.values):
            raise ValueError("`truth_outputs` must have one column for each column of `values`")
        names = [name for _, name in self.roles()]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"column {twice[0]!r} is given two parts; each column has one")
        return self

    def roles(self) -> list[tuple[str, str]]:
        """Return every column that is read, as (config key, column name)."""
        columns = {key: getattr(self, key) for key in ROLES} | {"variance": self.variance_columns}
        return [(key, name) for key, names in columns.items() for name in _as_names(names) or ()]

    @property
    def variance_columns(self) -> tuple[str, ...]:
        """One column for each of `values`, or none."""
        if isinstance(self.variance, dict):
            return tuple(self.variance[value] for value in self.values)
        return () if self.variance is None else (self.variance,)


@dataclass(repr=False)
class ReadReport(Sequence[Instance]):
    """The result of a read: a sequence of the usable instances, of which `report["A"]` is the one with that id.

    instances: the usable ones. set_aside: those that cannot be used, each with the reason. notices: what was mended,
    guessed, or looks doubtful.
    """

    instances: list[Instance] = field(default_factory=list)
    set_aside: list[Problem] = field(default_factory=list)
    notices: list[Problem] = field(default_factory=list)

    @classmethod
    def joined(cls, reports: Iterable[ReadReport]) -> ReadReport:
        """Return several `reports` as one."""
        whole = cls()
        for report in reports:
            whole.instances += report.instances
            whole.set_aside += report.set_aside
            whole.notices += report.notices
        return whole

    def __len__(self) -> int:
        return len(self.instances)

    @overload
    def __getitem__(self, index: int | str) -> Instance: ...
    @overload
    def __getitem__(self, index: slice) -> list[Instance]: ...
    def __getitem__(self, index: int | str | slice) -> Instance | list[Instance]:
        if not isinstance(index, str):
            return self.instances[index] if isinstance(index, slice) else item_of(self.instances, index)
        if index not in self.ids:
            raise UsageError(f"There is no instance {index!r}.", nearest(index, self.ids))
        return self.instances[self.ids.index(index)]

    def __contains__(self, item: object) -> bool:
        return item in self.ids or any(one is item for one in self.instances)

    @property
    def ids(self) -> list[str]:
        """The id of each instance."""
        return [one.id for one in self.instances]

    def _repr_html_(self) -> str:
        problems = "".join(f"<li>{escape(str(one))}</li>" for one in (*self.set_aside, *self.notices))
        return f"<p>{escape(repr(self))}</p><ul>{problems}</ul>"

    def __repr__(self) -> str:
        ids = [repr(one) for one in self.ids]
        some = ", ".join(ids[:3]) + (f" and {len(ids) - 3} more" if len(ids) > 3 else "")
        outputs = list(dict.fromkeys(name for one in self.instances for name in one.outputs))
        named = ", ".join(outputs[:4]) + (f" and {len(outputs) - 4} more" if len(outputs) > 4 else "")
        aside = f"; {len(self.set_aside)} set aside" if self.set_aside else ""
        count = "1 instance" if len(ids) == 1 else f"{len(ids)} instances"
        return f"<{count}: {some}, with {named}{aside}>" if ids else f"<no instance{aside}>"


class NoSuchItem(UsageError, IndexError):
    """A number that no item of a sequence has; an `IndexError`, as sequences raise."""


def item_of(items: Sequence[Item], index: int) -> Item:
    """`items[index]`, or a sentence that says how many there are."""
    try:
        return items[index]
    except IndexError:
        raise NoSuchItem(
            f"There is no instance number {index}: there are {len(items)}.", "Count from 0, or give an id."
        ) from None


Reader = Callable[[Path, ColumnMap | None], ReadReport]
Chunker = Callable[[Path], Iterator[Table]]
StepReader = Callable[[Path], Iterator[ReadReport]]


class Format(NamedTuple):
    """How files of one ending are read.

    read: whole. chunks: how to go through a table too large for the memory. steps: how to read any other file of that
    size, a few instances at a time.
    """

    read: Reader
    chunks: Chunker | None
    steps: StepReader | None


FORMATS: dict[str, Format] = {}


def reads(*suffixes: str, chunks: Chunker | None = None, steps: StepReader | None = None) -> Callable[[Reader], Reader]:
    """Register a reader for file names that end so, with the parts of its `Format`; what another has is refused."""

    def register(reader: Reader) -> Reader:
        for suffix in suffixes:
            if suffix in FORMATS and _place(FORMATS[suffix].read) != _place(reader):
                raise UsageError(f"There is a reader of {suffix} files already.", "Register it for another ending.")
        FORMATS.update(dict.fromkeys(suffixes, Format(reader, chunks, steps)))
        return reader

    return register


def _place(reader: Reader) -> tuple[str, str]:
    return reader.__module__, reader.__qualname__


def _suffix_of(path: Path) -> str | None:
    """The registered ending of a file name, the longest if several fit."""
    name = path.name.lower()
    return max((suffix for suffix in FORMATS if name.endswith(suffix)), key=len, default=None)


def stem_of(path: Path) -> str:
    """The file name without its registered ending: the id of a file that holds one instance."""
    return path.name[: len(path.name) - len(_suffix_of(path) or "")]


def format_of(path: Path) -> Format:
    """The format of a file, by its ending."""
    suffix = _suffix_of(path)
    if suffix is None:
        raise refused(
            f"Files that end in {path.suffix!r} are not known.",
            f"Give a file that ends in one of: {', '.join(sorted(FORMATS))}.",
            file=str(path),
        )
    return FORMATS[suffix]


_UNIT = r"(_(s|sec|min|h|hr|d|days|hours|minutes|seconds)|\s*(\([^()]+\)|\[[^\[\]]+\]))?"
"""`time_h`, `Time (h)`, `time [h]`."""

_TIME = re.compile(rf"(t|times?|years?|days?|hours?|minutes?|seconds?){_UNIT}", re.IGNORECASE)
_INSTANCE = re.compile(r"(patient|instance|replicate|subject|sample|donor|id)([_ ]id)?", re.IGNORECASE)
_POSITION = re.compile(r"(x|x_?\d|positions?)", re.IGNORECASE)
_OUTPUT = re.compile(r"(gene|output)(_name)?", re.IGNORECASE)
_VARIANCE = re.compile(r"(variance|noise_variance)", re.IGNORECASE)


def infer_columns(table: Table) -> tuple[ColumnMap, Problem]:
    """The column map that the header suggests, and the notice that says what was taken."""
    time = _one(table, "be the time", _TIME)
    if time is None:
        raise _doubt(table, "No column is clearly the time.")
    instance = _one(table, "be the instance", _INSTANCE)
    variance = _one(table, "be the variance", _VARIANCE)
    positions = tuple(name for name in table.names if _POSITION.fullmatch(name))
    # `output` may name the column of values as well as the column of output names: only text can be names.
    output = _one(table, "name the output", _OUTPUT, lambda name: not table.numbers(name).mostly_numeric)
    rest = [name for name in table.names if name not in {time, instance, variance, output, *positions}]
    if len(rest) != 1 or not table.numbers(rest[0]).mostly_numeric:
        cause = f"Columns {_quoted(rest)} could each be" if len(rest) > 1 else "No column is clearly"
        raise _doubt(table, f"{cause} the observed values.")
    columns = ColumnMap(
        time=time, instance=instance, output=output, values=(rest[0],), positions=positions, variance=variance
    )
    taken = ", ".join(f"{key} = {name!r}" for key, name in columns.roles())
    return columns, Problem(f"The columns were guessed: {taken}.", "Set columns to choose them yourself.", table.file)


def _one(
    table: Table, role: str, pattern: re.Pattern[str], possible: Callable[[str], bool] = lambda _: True
) -> str | None:
    matching = [name for name in table.names if pattern.fullmatch(name) and possible(name)]
    if len(matching) > 1:
        raise _doubt(table, f"Columns {_quoted(matching)} could each {role}.")
    return matching[0] if matching else None


def _doubt(table: Table, what: str) -> DataError:
    fix = (
        "Set columns.time and columns.values, and where they apply columns.instance, columns.output, "
        "columns.positions, columns.variance and columns.truth_force (for scoring only): in a config "
        "`data: {columns: {time: a, values: [b, c]}}`, with data check `time=a 'values=[b, c]'`. "
        f"The file has: {', '.join(table.names)}."
    )
    return refused(what, fix, table.file)


def _quoted(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names)
