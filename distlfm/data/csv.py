"""CSV files, plain or gzipped, in UTF-8 with or without a byte-order mark.

Python's own csv module reads them, because it knows the line on which each row ends, and so each problem can name it.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from distlfm.data.assemble import assemble
from distlfm.data.base import CHUNK, ColumnMap, ReadReport, Table, Unreadable, reads, stem_of
from distlfm.data.rows import refuse_repeated
from distlfm.errors import refused

Row = tuple[int, Sequence[str]]
"""The line on which a row ends, and its cells."""


def _table(file: str, names: Sequence[str], rows: Sequence[Row], ragged: Sequence[Row]) -> Table:
    columns = zip(*(cells for _, cells in rows), strict=True) if rows else [()] * len(names)
    texts = {name: pa.array(column, pa.string()) for name, column in zip(names, columns, strict=True)}
    return Table(file, pa.table(texts), [number for number, _ in rows], ragged)


def _chunks(path: Path) -> Iterator[Table]:
    opened = gzip.open if path.name.lower().endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8-sig", newline="") as text:
            yield from _tables(str(path), _without_zeros(text), CHUNK)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise Unreadable from error


def _without_zeros(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if "\0" in line:
            raise Unreadable
        yield line


@reads(".csv", ".csv.gz", chunks=_chunks)
def read_csv(path: Path, columns: ColumnMap | None = None) -> ReadReport:
    """Read a CSV file with a header line."""
    return assemble(next(_tables(str(path), io.StringIO(_text(path), newline=""))), columns, default_id=stem_of(path))


def _text(path: Path) -> str:
    file = str(path)
    try:
        raw = path.read_bytes()
        if path.name.lower().endswith(".gz"):
            raw = gzip.decompress(raw)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        what = f"The gzip file is cut short or damaged ({error})."
        raise refused(what, "Copy it again from where it came.", file) from error
    except OSError as error:
        what = f"The file cannot be read ({error.strerror or error})."
        raise refused(what, "Check its permissions.", file) from error
    try:
        text, at = raw.decode("utf-8-sig"), raw.find(b"\0")
    except UnicodeDecodeError as error:
        text, at = "", error.start
    if at >= 0:
        what = f"The file is not UTF-8 text: it has byte 0x{raw[at]:02x}."
        raise refused(what, "Save it as CSV with encoding UTF-8.", file, raw[:at].count(b"\n") + 1)
    return text


def _tables(file: str, lines: Iterable[str], size: int | None = None) -> Iterator[Table]:
    """The rows of a file, at most `size` of them in a table; the last one may have none."""
    rows: list[Row] = []
    ragged: list[Row] = []
    names: list[str] = []
    reader = csv.reader(lines, strict=True)
    try:
        for cells in filter(None, reader):
            if not names:
                names = _header(file, reader.line_num, cells)
            else:
                (rows if len(cells) == len(names) else ragged).append((reader.line_num, cells))
            if len(rows) == size:
                yield _table(file, names, rows, ragged)
                rows, ragged = [], []
    except csv.Error as error:
        fix = "Look for a quotation mark that is not closed."
        raise refused(f"The line is not valid CSV ({error}).", fix, file, reader.line_num) from error
    if not names:
        raise refused("The file is empty.", "Give a table with a header line and rows.", file)
    yield _table(file, names, rows, ragged)


def _header(file: str, row: int, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    refuse_repeated(names, file, row)
    for mark, called in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and mark in names[0]:
            what = f"Cells seem to be separated by {called}."
            raise refused(what, "Save the table with commas between cells.", file, row)
    return names
