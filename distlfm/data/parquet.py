"""Parquet files. Rows are counted from 1; a null is a value that was not observed, and a NaN is a problem."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from distlfm.data.assemble import assemble
from distlfm.data.base import CHUNK, ColumnMap, Numbers, ReadReport, Table, Unreadable, parse_numbers, reads, stem_of
from distlfm.errors import refused


@final
class ArrowTable(Table):
    """A table whose columns have types."""

    def __init__(self, file: str, table: Any, first: int = 1) -> None:
        self.file = file
        self.names = list(table.column_names)
        self.row_numbers = range(first, first + table.num_rows)
        self._table = table

    def numbers(self, name: str) -> Numbers:
        column = self._table.column(name)
        if pa.types.is_decimal(column.type):
            column = column.cast(pa.float64())
        if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
            return parse_numbers(self.labels(name))
        empty = column.is_null().to_numpy().astype(np.bool_)
        values = column.to_numpy().astype(np.float64)
        bad = {index: str(values[index]) for index in np.flatnonzero(~np.isfinite(values) & ~empty).tolist()}
        values[list(bad)] = np.nan
        return Numbers(values, empty, bad)

    def part(self, start: int, stop: int) -> ArrowTable:
        return ArrowTable(self.file, self._table.slice(start, stop - start), self.row_numbers[0] + start)

    def followed_by(self, other: ArrowTable) -> ArrowTable:
        return ArrowTable(self.file, pa.concat_tables([self._table, other._table]), self.row_numbers[0])

    def labels(self, name: str) -> list[str]:
        return ["" if cell is None else str(cell).strip() for cell in self._table.column(name).to_pylist()]


def _chunks(path: Path) -> Iterator[Table]:
    first = 1
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(CHUNK):
                yield ArrowTable(str(path), pa.Table.from_batches([batch]), first)
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise Unreadable from error


@reads(".parquet", chunks=_chunks)
def read_parquet(path: Path, columns: ColumnMap | None = None) -> ReadReport:
    """Read a Parquet file."""
    try:
        # Not read_table: that one adds columns which it reads from folder names such as `year=2020`.
        with pq.ParquetFile(path) as file:
            table = file.read()
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise refused(
            f"The file is not readable Parquet ({reason}).", "Write it again, or copy it again.", str(path)
        ) from error
    twice = [name for name in table.column_names if table.column_names.count(name) > 1]
    if twice:
        raise refused(f"Two columns are named {twice[0]!r}.", "Give each its own name.", str(path), column=twice[0])
    return assemble(ArrowTable(str(path), table), columns, default_id=stem_of(path))
