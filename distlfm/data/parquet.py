"""Parquet files. Rows are counted from 1; a null is a value that was not observed, and a NaN is a problem."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from distlfm.data.assemble import assemble
from distlfm.data.base import CHUNK, ColumnMap, ReadReport, Table, Unreadable, reads, stem_of
from distlfm.data.rows import refuse_repeated
from distlfm.errors import refused


def _chunks(path: Path) -> Iterator[Table]:
    first = 1
    try:
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(CHUNK):
                rows = range(first, first + batch.num_rows)
                yield Table(str(path), pa.Table.from_batches([batch]), rows)
                first = rows.stop
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
        what = f"The file is not readable Parquet ({str(error).splitlines()[0]})."
        raise refused(what, "Write it again, or copy it again.", str(path)) from error
    refuse_repeated(table.column_names, str(path))
    rows = range(1, table.num_rows + 1)
    return assemble(Table(str(path), table, rows), columns, default_id=stem_of(path))
