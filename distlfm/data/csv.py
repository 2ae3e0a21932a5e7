"""CSV files, plain or gzipped, in UTF-8 with or without a byte-order mark.

Python's own csv module reads them, because it knows the line on which each row ends, and so each problem can name it.
"""

from __future__ import annotations

import csv
import gzip
import io
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import final

from distlfm.data.assemble import assemble
from distlfm.data.base import (
    CHUNK,
    ColumnMap,
    Numbers,
    RaggedRow,
    ReadReport,
    Table,
    Unreadable,
    parse_numbers,
    reads,
    stem_of,
)
from distlfm.errors import DataError, refused


@final
class TextTable(Table):
    """A table whose cells are all text."""

    def __init__(
        self, file: str, names: list[str], rows: list[list[str]], row_numbers: list[int], ragged: list[RaggedRow]
    ) -> None:
        self.file = file
        self.names: list[str] = names
        self.row_numbers: list[int] = row_numbers
        self.ragged = ragged
        self._rows = rows
        self._columns = dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))

    def part(self, start: int, stop: int) -> TextTable:
        return TextTable(self.file, self.names, self._rows[start:stop], self.row_numbers[start:stop], [])

    def followed_by(self, other: TextTable) -> TextTable:
        rows, numbers = self._rows + other._rows, self.row_numbers + other.row_numbers
        return TextTable(self.file, self.names, rows, numbers, [*self.ragged, *other.ragged])

    def numbers(self, name: str) -> Numbers:
        return parse_numbers(self._columns[name])

    def labels(self, name: str) -> list[str]:
        return [cell.strip() for cell in self._columns[name]]


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
        raise refused(
            f"The gzip file is cut short or damaged ({error}).", "Copy it again from where it came.", file=file
        ) from error
    except OSError as error:
        raise refused(
            f"The file cannot be read ({error.strerror or error}).", "Check its permissions.", file=file
        ) from error
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise _not_text(file, raw[: error.start].count(b"\n") + 1, f"byte 0x{raw[error.start]:02x}") from error
    if "\0" in text:
        raise _not_text(file, text[: text.index("\0")].count("\n") + 1, "byte 0x00")
    return text


def _not_text(file: str, row: int, found: str) -> DataError:
    return refused(f"The file is not UTF-8 text: it has {found}.", "Save it as CSV with encoding UTF-8.", file, row)


def _tables(file: str, lines: Iterable[str], size: int | None = None) -> Iterator[TextTable]:
    """The rows of a file, at most `size` of them in a table; the last one may have none."""
    rows: list[list[str]] = []
    row_numbers: list[int] = []
    ragged: list[RaggedRow] = []
    names: list[str] = []
    reader = csv.reader(lines, strict=True)
    try:
        for cells in filter(None, reader):
            if not names:
                names = _header(file, reader.line_num, cells)
            elif len(cells) == len(names):
                rows.append(cells)
                row_numbers.append(reader.line_num)
            else:
                ragged.append(RaggedRow(reader.line_num, cells))
            if len(rows) == size:
                yield TextTable(file, names, rows, row_numbers, ragged)
                rows, row_numbers, ragged = [], [], []
    except csv.Error as error:
        raise refused(
            f"The line is not valid CSV ({error}).",
            "Look for a quotation mark that is not closed.",
            file,
            reader.line_num,
        ) from error
    if not names:
        raise refused("The file is empty.", "Give a table with a header line and rows.", file)
    yield TextTable(file, names, rows, row_numbers, ragged)


def _header(file: str, row: int, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise refused(f"Two columns are named {twice[0]!r}.", "Give each column its own name.", file, row, twice[0])
    for mark, called in ((";", "semicolons"), ("\t", "tabs")):
        if len(names) == 1 and mark in names[0]:
            raise refused(
                f"Cells seem to be separated by {called}.", "Save the table with commas between cells.", file, row
            )
    return names
