"""Whether a Parquet file holds too much once it is decoded: `python parquet_size.py FILE LIMIT`, a process of its own.

What the file itself says of that does not help: a text that is repeated counts once there, and a page may unpack to any
size. So the file is decoded here a few rows at a time, in a process whose memory is limited, and nothing of it is kept.
The answer is the exit code.
"""

from __future__ import annotations

import resource
import sys

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 64
"""Decoded together."""

CELL = 8
"""Bytes of a cell at least: whatever it is in the file, it is read as a number or a text."""

ROOM = 2**30
"""Bytes of address space that the process may take beside what it has and what may be decoded."""

WITHIN, TOO_LARGE, UNREADABLE = 0, 3, 4
"""Exit codes; readers say what is wrong with an unreadable file."""


def is_within(path: str, limit: float) -> bool:
    """Whether all cells together have at most `limit` bytes. Reading ends where it is clear that they have not."""
    count = 0.0
    with pq.ParquetFile(path, pre_buffer=False) as file:
        for batch in file.iter_batches(ROWS, use_threads=False):
            count += max(batch.nbytes, CELL * batch.num_rows * (batch.num_columns + 1))
            if count > limit:
                return False
    return True


def confine(limit: float) -> None:
    """Let this process have no more memory than it needs for that."""
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    most = now + ROOM + 4 * int(limit)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


def main(path: str, limit: float) -> int:
    """Return the exit code."""
    confine(limit)
    try:
        return WITHIN if is_within(path, limit) else TOO_LARGE
    except MemoryError:  # pyarrow's is one too
        return TOO_LARGE
    except (pa.ArrowException, OSError):
        return UNREADABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
