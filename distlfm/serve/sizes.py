"""How much a file holds once it is unpacked, looked up before anything is unpacked into memory."""

from __future__ import annotations

import gzip
import zipfile
import zlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from distlfm.errors import DataError, Problem

MEGABYTE = 2**20
_STEP = 2**20


def refuse_oversized(path: Path, name: str, limit: float) -> None:
    """Refuse a file of more than `limit` megabytes, packed or unpacked. What cannot be looked into, readers refuse."""
    if path.stat().st_size > limit * MEGABYTE or _unpacked(path, limit * MEGABYTE) > limit * MEGABYTE:
        raise too_large(name, limit)


def too_large(name: str, limit: float) -> DataError:
    """The refusal of a file that is too large for the page."""
    fix = "Split it, ask about it with `distlfm query`, or start `distlfm serve` with a larger max_megabytes."
    return DataError(Problem(f"The file is larger than {limit:g} MB.", fix, name))


def _unpacked(path: Path, limit: float) -> float:
    """Bytes of the content, or as many as are known to be too many."""
    name = path.name.lower()
    try:
        if name.endswith(".gz"):
            return _inflated(path, limit)
        if name.endswith(".npz"):
            with zipfile.ZipFile(path) as archive:
                return float(sum(one.file_size for one in archive.infolist()))
        if name.endswith(".parquet"):
            with pq.ParquetFile(path) as file:
                groups = range(file.metadata.num_row_groups)
                stored = sum(file.metadata.row_group(i).total_byte_size for i in groups)
                # Repeated values take no room in the file, and eight bytes each once they are read.
                return float(max(stored, 8 * file.metadata.num_rows * file.metadata.num_columns))
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile, pa.ArrowException):
        return 0.0
    return 0.0


def _inflated(path: Path, limit: float) -> float:
    count = 0
    with gzip.open(path) as file:
        while count <= limit and (part := file.read(_STEP)):
            count += len(part)
    return float(count)
