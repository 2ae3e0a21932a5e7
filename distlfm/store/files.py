"""Files that survive: written beside their place, flushed to the disk, then renamed; and how a full disk is reported.

`finite` gives values as JSON has them: it knows no number that is not finite, and a failed fit has some.
"""

from __future__ import annotations

import errno
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from distlfm.errors import StorageError, UsageError

FLUSHES = 8
"""Files that are written to the disk at the same time."""

FULL = (errno.ENOSPC, errno.EDQUOT)
ROOM = 65_536
"""Bytes without which a disk counts as full, though one more line might have its place."""

_FIX = {
    errno.ENOSPC: "Free space; then the same command goes on where it stopped.",
    errno.EDQUOT: "Free space or ask for a larger quota; then the same command goes on where it stopped.",
    errno.EROFS: "Mount it for writing, or choose another place; then the same command goes on where it stopped.",
    errno.EACCES: "Give yourself the right to write there, or choose another place; then the same command goes on.",
    errno.EPERM: "Give yourself the right to write there, or choose another place; then the same command goes on.",
    errno.EEXIST: "A file has the name that a folder should have: choose another place.",
    errno.ENOTDIR: "A file has the name that a folder should have: choose another place.",
    errno.EISDIR: "A folder has the name that a file should have: choose another name.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.ELOOP: "Its links lead in a circle: choose another place.",
    errno.EFBIG: "No file may be that large there: choose another place, or raise the limit (ulimit -f).",
    errno.EMFILE: "Raise the limit of open files (ulimit -n); then the same command goes on where it stopped.",
    errno.ENFILE: "End programs that hold many files open; then the same command goes on where it stopped.",
    errno.ESTALE: "The file server has lost it: mount it anew; then the same command goes on where it stopped.",
    errno.EIO: "The disk or the network has a fault: mend it; then the same command goes on where it stopped.",
}
_OTHERWISE = "Mend that; then the same command goes on where it stopped."
_DRAFT = re.compile(r"\.(?P<name>.+?)(\.\d+)?\.part")


@contextmanager
def storing(what: str, path: Path) -> Iterator[None]:
    """Turn the operating system's refusals into a StorageError that says what to do."""
    try:
        yield
    except OSError as error:
        fix = _FIX.get(error.errno or 0, _OTHERWISE)
        raise StorageError(f"Cannot write {what} in {_named(path)}: {_reason(error)}.", fix) from error


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let a write that fails say of which file it was, or of which folder: the operating system does not."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def refusal(error: OSError) -> StorageError | None:
    """A refusal of the operating system where none was expected, if it is one that a user can mend."""
    if error.errno == errno.ENOENT and "temporary directory" in str(error):  # tempfile has tried all that it knows
        return StorageError("There is no place for temporary files.", "Set TMPDIR to a folder that you may write to.")
    fix = _FIX.get(error.errno or 0)
    if fix is None:
        return None
    if error.errno in (errno.EACCES, errno.EPERM):  # to read, perhaps
        fix = "Give yourself the right to it, or choose another place."
    name = error.filename if error.filename2 is None else error.filename2  # what a file was to be renamed to
    if not isinstance(name, str | bytes | os.PathLike):
        return StorageError(f"{_reason(error)}.", fix)
    return StorageError(f"Cannot use {_named(Path(os.fsdecode(name)))}: {_reason(error)}.", fix)


def unexpected(error: Exception, how: str) -> str:
    """What nobody foresaw, in words: a full disk or the like, which the user can mend, or a fault of ours.

    how: the option that shows where it was raised.
    """
    sentence = refusal(error) if isinstance(error, OSError) else None
    fault = f"Unexpected {type(error).__name__}: {error}. This is a fault of distlfm; {how} shows where."
    return fault if sentence is None else str(sentence)


def _named(path: Path) -> Path:
    """What a draft is to become: nobody has asked for a draft."""
    draft = _DRAFT.fullmatch(path.name)
    return path.with_name(draft["name"]) if draft else path


def _reason(error: OSError) -> str:
    """The operating system's words; libraries have their own, with names of functions and flags."""
    return os.strerror(error.errno) if error.errno else str(error)


def is_full(error: BaseException | None) -> bool:
    """Whether it is for want of space that something could not be kept, whatever was raised for it."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__
    return False


def no_room(folder: Path, size: int = ROOM) -> str:
    """Why a folder takes no more bytes, or nothing if there is room. It is tried: a quota is seen in no other way."""
    try:
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(size))
            probe.flush()
    except OSError as error:
        return f"{_reason(error)}: {folder}" if is_full(error) else ""
    return ""


def no_place(path: Path, error: OSError, kind: str = "directory") -> UsageError:
    """A place for results that is refused before anything is in it. kind: of what --out names."""
    fix = f"Free space, or choose another --out {kind}." if is_full(error) else f"Choose another --out {kind}."
    return UsageError(f"Cannot write to {path}: {_reason(error)}.", fix)


def unreadable(path: Path, error: OSError) -> UsageError:
    """A file that is there, and that the operating system does not let us read."""
    name = error.filename if isinstance(error.filename, str | os.PathLike) else path
    fix = "Give yourself the right to read it." if isinstance(error, PermissionError) else "Check the path."
    return UsageError(f"Cannot read {name}: {_reason(error)}.", fix)


def partial(path: Path) -> Path:
    """Where a file is written before it is renamed. The name is always the same, so a retry leaves nothing behind."""
    return path.with_name(f".{path.name}.part")


def put_all(contents: Mapping[Path, bytes]) -> None:
    """Write files whole and onto the disk, under temporary names and then under their own; return when they last.

    A disk takes many flushes at once in little more time than one, so they are asked for together.
    """
    drafts = {path: partial(path) for path in contents}
    with ThreadPoolExecutor(FLUSHES) as pool:
        try:
            list(pool.map(write_through, drafts.values(), contents.values()))
            for path, draft in drafts.items():
                draft.replace(path)
        except OSError:
            for draft in drafts.values():  # on a full disk they take what little there is
                remove(draft)
            raise
        list(pool.map(flush, {path.parent for path in contents}))


def write_through(path: Path, content: bytes | memoryview, mode: str = "wb") -> None:
    """Write a file, and return when it is on the disk. mode: `r+b` keeps the file that is there, and its lock."""
    with naming(path), path.open(mode) as file:
        file.truncate()
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def append_whole(descriptor: int, content: bytes) -> None:
    """Add to the end of a file, and return when it lasts; where the disk takes a part of it, that is taken back.

    The operating system may write less than it was given, without an error, when the last free block is used up.
    """
    size = os.lseek(descriptor, 0, os.SEEK_END)
    try:
        rest = memoryview(content)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    except OSError:
        os.ftruncate(descriptor, size)
        raise


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside a file, to write to; it replaces the file at the end, and is removed if anything goes wrong."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield draft
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def put_quickly(path: Path, content: bytes) -> None:
    """Replace a file at once for whoever reads it, without waiting for the disk."""
    with replacing(path) as draft, naming(path):
        draft.write_bytes(content)


@contextmanager
def drafted(target: Path, what: str) -> Iterator[Path]:
    """A path beside the target, for a file or a folder, which becomes the target when all of it is on the disk.

    what: it is, for the message of a failure.
    """
    draft = partial(target)
    with storing(what, target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear(draft)
        try:
            yield draft
            flush_tree(draft)
            draft.rename(target)
            flush(target.absolute().parent)
        finally:
            _clear(draft)


def _clear(draft: Path) -> None:
    shutil.rmtree(draft, ignore_errors=True)
    draft.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_tree(path: Path) -> None:
    """Flush a file, or a directory with every file and directory below it, to the disk."""
    paths = [Path(directory) / name for directory, _, names in os.walk(path) for name in ("", *names)] or [path]
    with ThreadPoolExecutor(FLUSHES) as pool:
        list(pool.map(flush, paths))


def remove(path: Path) -> None:
    """Remove a file if it is there; what cannot be removed is left for a retry to replace."""
    with suppress(OSError):
        path.unlink(missing_ok=True)


def finite(value: Any) -> Any:
    """The same with None for every number that is not finite, and arrays and numbers of numpy as Python's own."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): finite(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(one) for one in value]
    return value
