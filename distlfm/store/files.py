"""Files that survive: written beside their place, flushed to the disk, then renamed; and how a full disk is told."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from distlfm.errors import StorageError

FLUSHES = 8
"""Files that are written to the disk at the same time."""

_FIX = {
    errno.ENOSPC: "Free space; then the same command goes on where it stopped.",
    errno.EDQUOT: "Free space or ask for a larger quota; then the same command goes on where it stopped.",
    errno.EROFS: "Mount it for writing, or choose another place; then the same command goes on where it stopped.",
    errno.EACCES: "Give yourself the right to write there; then the same command goes on where it stopped.",
    errno.EPERM: "Give yourself the right to write there; then the same command goes on where it stopped.",
    errno.EEXIST: "A file has the name that a folder should have: choose another place.",
    errno.ENOTDIR: "A file has the name that a folder should have: choose another place.",
    errno.EIO: "The disk or the network has a fault: mend it; then the same command goes on where it stopped.",
}
_OTHERWISE = "Mend that; then the same command goes on where it stopped."


@contextmanager
def storing(what: str, path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into a StorageError that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        fix = _FIX.get(error.errno or 0, _OTHERWISE)
        raise StorageError(f"Cannot write {what} in {path}: {reason}.", fix) from error


def refusal(error: OSError) -> StorageError | None:
    """A refusal of the operating system where none was expected, if it is one that a user can mend."""
    fix = _FIX.get(error.errno or 0)
    if fix is None:
        return None
    if error.errno in (errno.EACCES, errno.EPERM):  # to read, perhaps
        fix = "Give yourself the right to it, or choose another place."
    where = "" if error.filename is None else f": {error.filename}"
    return StorageError(f"{error.strerror}{where}.", fix)


def partial(path: Path) -> Path:
    """Where a file is written before it is renamed. The name is always the same, so a retry leaves nothing behind."""
    return path.with_name(f".{path.name}.part")


def put_all(contents: Mapping[Path, bytes]) -> None:
    """Write files whole and onto the disk, under temporary names and then under their own; return when they last.

    A disk takes many flushes at once in little more time than one, so they are asked for together.
    """
    drafts = {path: partial(path) for path in contents}
    with ThreadPoolExecutor(FLUSHES) as pool:
        list(pool.map(_write, drafts.values(), contents.values()))
        for path, draft in drafts.items():
            draft.replace(path)
        list(pool.map(flush, {path.parent for path in contents}))


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def put_quickly(path: Path, content: bytes) -> None:
    """Replace a file at once for whoever reads it, without waiting for the disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(path: Path) -> None:
    """Flush every file and directory below `path` to the disk."""
    found = [Path(directory) / name for directory, _, names in os.walk(path) for name in ("", *names)]
    with ThreadPoolExecutor(FLUSHES) as pool:
        list(pool.map(flush, found))


def remove(path: Path) -> None:
    """Remove a file if it is there; what cannot be removed is left for a retry to replace."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
