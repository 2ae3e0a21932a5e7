"""Does a rename over a file of a directory happen at once, for whoever reads that file meanwhile?

Blocks of a store and checkpoints are published this way. Only readers on this machine are tried: a network file system
may still show another machine the old file for a while.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from distlfm.pipeline.probes.answer import Finding, reply
from distlfm.pipeline.probes.directory import asked_directory

FILE_BYTES = 2**16
SECONDS = 0.5


@dataclass(frozen=True)
class Race:
    """How many replacements, and how many reads in between; `torn` reads saw no file, or a part of one."""

    num_replacements: int
    num_reads: int
    num_torn: int


def check() -> str:
    with tempfile.TemporaryDirectory(prefix=".doctor-", dir=asked_directory()) as scratch:
        race = race_replacements(Path(scratch), os.replace)
    if race.num_torn:
        raise Finding("broken", f"{race.num_torn} of {race.num_reads} reads saw a missing or partial file")
    return f"{race.num_replacements} renames under {race.num_reads} reads, none torn"


def race_replacements(directory: Path, replace: Callable[[Path, Path], object], seconds: float = SECONDS) -> Race:
    """Replace a file of `directory` again and again with `replace(new, old)`, while a thread reads it whole."""
    target, incoming = directory / "published", directory / "incoming"
    target.write_bytes(bytes(FILE_BYTES))
    done = threading.Event()
    reads: list[bool] = []

    def read_all_along() -> None:
        while not done.is_set():
            reads.append(_is_whole(target))

    reader = threading.Thread(target=read_all_along)
    reader.start()
    num_replacements = 0
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            num_replacements += 1
            incoming.write_bytes(bytes([num_replacements % 256]) * FILE_BYTES)
            replace(incoming, target)
    finally:
        done.set()
        reader.join()
    return Race(num_replacements, len(reads), reads.count(False))


def _is_whole(path: Path) -> bool:
    """Whether the file is there and is one of the versions written: its full length, one byte repeated."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return False
    return len(content) == FILE_BYTES and content.count(content[:1]) == FILE_BYTES


if __name__ == "__main__":
    reply(check)
