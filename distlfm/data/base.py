"""What a reader is: a function from a path and a column map to a report of instances and problems.

A new format is a new file: write `def read_xyz(path, columns) -> ReadReport`, decorate it with `@reads(".xyz")`, and
import it in `distlfm/data/__init__.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from distlfm.data.table import Table
from distlfm.errors import DataError, Problem
from distlfm.instance import Instance


def _as_names(value: object) -> object:
    return (value,) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_names)]


class ColumnMap(BaseModel):
    """Which column of a table plays which part.

    A table has one of two shapes. With `output` set, each row is one value: `output` names the column that says which
    output it is, and `values` is the one column that holds the number. Without it, each row is one observation point,
    and `values` lists one column an output.

    Truth columns are kept for scoring and never become values.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    time: str = Field(description="Column of the times, as numbers.")
    values: Names = Field(min_length=1, description="Column (or columns, one an output) of the observed values.")
    output: str | None = Field(None, description="Column that names the output of each row.")
    instance: str | None = Field(None, description="Column that tells instances apart; without it a file is one.")
    positions: Names = Field((), description="Columns of the spatial coordinates.")
    variance: str | dict[str, str] | None = Field(
        None,
        description="Column of the noise variance; for several value columns, a map from value to variance column.",
    )
    truth_force: Names = Field((), description="Columns of the true forces, for scoring only.")
    truth_outputs: Names = Field((), description="Columns of the noise-free outputs, one a value column; scoring only.")
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
        """Every column that is read, as (config key, column name)."""
        single = [("time", self.time), ("instance", self.instance), ("output", self.output)]
        several = [
            ("values", self.values),
            ("positions", self.positions),
            ("variance", self.variance_columns),
            ("truth_force", self.truth_force),
            ("truth_outputs", self.truth_outputs),
        ]
        return [(key, name) for key, name in single if name is not None] + [
            (key, name) for key, names in several for name in names
        ]

    @property
    def variance_columns(self) -> tuple[str, ...]:
        """One column for each of `values`, or none."""
        if self.variance is None:
            return ()
        if isinstance(self.variance, str):
            return (self.variance,)
        return tuple(self.variance[value] for value in self.values)


@dataclass
class ReadReport:
    """What a read gave: the usable instances, those set aside with the reason, and what was mended or guessed."""

    instances: list[Instance] = field(default_factory=list)
    set_aside: list[Problem] = field(default_factory=list)
    notices: list[Problem] = field(default_factory=list)

    def __iter__(self) -> Iterator[Instance]:
        return iter(self.instances)

    def __len__(self) -> int:
        return len(self.instances)


Reader = Callable[[Path, ColumnMap | None], ReadReport]
Chunker = Callable[[Path], Iterator[Table]]
Stepper = Callable[[Path], Iterator[ReadReport]]
_READERS: dict[str, Reader] = {}
_CHUNKERS: dict[str, Chunker] = {}
_STEPPERS: dict[str, Stepper] = {}


def reads(*suffixes: str, chunks: Chunker | None = None, steps: Stepper | None = None) -> Callable[[Reader], Reader]:
    """Register a reader for file names that end so.

    chunks: how to go through a table too large for the memory. steps: how to read any other file of that size.
    """

    def register(reader: Reader) -> Reader:
        _READERS.update(dict.fromkeys(suffixes, reader))
        if chunks is not None:
            _CHUNKERS.update(dict.fromkeys(suffixes, chunks))
        if steps is not None:
            _STEPPERS.update(dict.fromkeys(suffixes, steps))
        return reader

    return register


def chunks_for(path: Path) -> Chunker | None:
    """The way to go through a table a part at a time, where its format has one."""
    return _CHUNKERS.get(suffix_of(path) or "")


def steps_for(path: Path) -> Stepper | None:
    """The way to read a file a few instances at a time, where its format is no table and has one."""
    return _STEPPERS.get(suffix_of(path) or "")


def known_suffixes() -> list[str]:
    return sorted(_READERS)


def suffix_of(path: Path) -> str | None:
    """The registered ending of a file name, the longest if several fit."""
    name = path.name.lower()
    return max((suffix for suffix in _READERS if name.endswith(suffix)), key=len, default=None)


def stem_of(path: Path) -> str:
    """The file name without its registered ending: the id of a file that holds one instance."""
    return path.name[: len(path.name) - len(suffix_of(path) or "")]


def reader_for(path: Path) -> Reader:
    """The reader of a file, by its ending."""
    suffix = suffix_of(path)
    if suffix is None:
        raise DataError(
            Problem(
                f"Files that end in {path.suffix!r} are not known.",
                f"Give a file that ends in one of: {', '.join(known_suffixes())}.",
                file=str(path),
            )
        )
    return _READERS[suffix]
