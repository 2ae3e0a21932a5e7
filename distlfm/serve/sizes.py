"""How much a file holds once it is unpacked, looked up before anything is unpacked into memory.

The page takes files of any origin, and what a file says of itself may be made up.
"""

from __future__ import annotations

import gzip
import math
import subprocess
import sys
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.errors import DataError, Problem
from distlfm.serve import parquet_size

MEGABYTE = 2**20
_STEP = 2**20
_SECONDS = 120
"""That a look into a Parquet file may take."""

_ELEMENT = 8
"""Bytes of an element of an archive at least: all become numbers of double precision, or texts."""

_INSTANCE = 2048
"""Bytes that one instance takes beside its numbers."""


def refuse_oversized(path: Path, name: str, limit: float) -> None:
    """Refuse a file of more than `limit` megabytes, packed or unpacked. What cannot be looked into, readers refuse."""
    most = limit * MEGABYTE
    if path.stat().st_size > most or not _is_within(path, most):
        raise too_large(name, limit)


def too_large(name: str, limit: float) -> DataError:
    """The refusal of a file that is too large for the page."""
    fix = "Split it, ask about it with `distlfm query`, or start `distlfm serve` with a larger max_megabytes."
    return DataError(Problem(f"The file is larger than {limit:g} MB.", fix, name))


def _is_within(path: Path, limit: float) -> bool:
    """Whether the content of a file has at most `limit` bytes."""
    name = path.name.lower()
    try:
        if name.endswith(".gz"):
            return _of_gzip(path, limit) <= limit
        if name.endswith(".npz"):
            return _of_archive(path, limit) <= limit
        if name.endswith(".parquet"):
            return _parquet_is_within(path, limit)
    except (OSError, EOFError, zlib.error, zipfile.BadZipFile):
        return True
    return True


def _of_gzip(path: Path, limit: float) -> int:
    count = 0
    with gzip.open(path) as file:
        while count <= limit and (part := file.read(_STEP)):
            count += len(part)
    return count


def _of_archive(path: Path, limit: float) -> int:
    """Bytes of all arrays as they are used, by the shapes that they begin with; narrow types are widened."""
    count = 0
    with zipfile.ZipFile(path) as archive:
        for one in archive.infolist():
            count += max(one.file_size, _INSTANCE if one.filename.endswith("times.npy") else 0, _of_array(archive, one))
            if count > limit:
                break
    return count


def _of_array(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> int:
    """Bytes of a member that is an array, zero for any other."""
    try:
        with archive.open(member) as file:
            begun: Any = np.lib.format  # without types
            is_first = begun.read_magic(file) == (1, 0)
            shape, _, kind = begun.read_array_header_1_0(file) if is_first else begun.read_array_header_2_0(file)
    except (ValueError, NotImplementedError, RuntimeError, tokenize.TokenError):
        return 0
    rows = shape[0] if member.filename == "y.npy" and len(shape) == 3 else 0  # each of a simulation's is an instance
    return int(math.prod(shape) * max(kind.itemsize, _ELEMENT) + rows * _INSTANCE)


def _parquet_is_within(path: Path, limit: float) -> bool:
    """Ask a process of its own, which alone is lost if the file breaks it."""
    command = [sys.executable, "-I", parquet_size.__file__, str(path), str(limit)]
    nothing = subprocess.DEVNULL
    try:
        ended = subprocess.run(command, stdin=nothing, stdout=nothing, stderr=nothing, timeout=_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    return ended.returncode in (parquet_size.WITHIN, parquet_size.UNREADABLE)
