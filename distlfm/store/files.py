"""Files that survive: written beside their place, flushed to the disk, then renamed; and how a full disk is told."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from distlfm.errors import StorageError

_FIX = {
    errno.ENOSPC: "Free space; then the same command goes on where it stopped.",
    errno.EDQUOT: "Free space or ask for a larger quota; then the same command goes on where it stopped.",
    errno.EROFS: "Mount it for writing, or choose another place; then the same command goes on where it stopped.",
    errno.EACCES: "Give yourself the right to write there; then the same command goes on where it stopped.",
    errno.EPERM: "Give yourself the right to write there; then the same command goes on where it stopped.",
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


def partial(path: Path) -> Path:
    """Where a file is written before it is renamed. The name is always the same, so a retry leaves nothing behind."""
    return path.with_name(f".{path.name}.part")


def put(path: Path, content: bytes) -> None:
    """Write a file whole, onto the disk, under its temporary name and then under its own.

    The directory must be flushed by `flush_directory` before the new name is safe.
    """
    draft = partial(path)
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def put_quickly(path: Path, content: bytes) -> None:
    """Replace a file at once for whoever reads it, without waiting for the disk."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_bytes(content)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def flush_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(path: Path) -> None:
    """Flush every file and directory below `path` to the disk."""
    for directory, _, files in os.walk(path):
        for name in files:
            descriptor = os.open(Path(directory) / name, os.O_RDONLY)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        flush_directory(Path(directory))


def remove(path: Path) -> None:
    """Remove a file if it is there; what cannot be removed is left for a retry to replace."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return
