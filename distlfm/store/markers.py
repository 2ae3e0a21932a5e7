"""The small file that says: this block is there, whole, and these are its checksums. Without it, it is not there.

A driver's last word on what runs is kept here too: one small JSON file that is replaced whole, and may be lost without
harm.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from distlfm.config import Config, digest
from distlfm.errors import WorkError
from distlfm.store.files import flush, partial, put_quickly, storing

FOLDER = "markers"
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
"""What file systems without locks answer."""


class Marker(Config):
    """A finished block. first, count: its instances; statuses: how many ended how; writer: host:pid.

    checksums: sha256 of each of its files, by path in the store; bytes: their size together.
    """

    block: int
    first: int
    count: int
    statuses: dict[str, int]
    seconds: float | None
    created: str
    writer: str
    checksums: dict[str, str]
    bytes: int


def content_hash(markers: Mapping[int, Marker]) -> str:
    """A short hash of all files of some finished blocks: of what a store holds, wherever it lies."""
    told = "".join(f"{block}{json.dumps(mark.checksums, sort_keys=True)}" for block, mark in markers.items())
    return digest(told)


def marker_path(store: Path, block: int) -> Path:
    return store / FOLDER / f"{block:05d}.json"


def finished(store: Path) -> list[int]:
    """The blocks that have a marker, in order, from the names of the files alone."""
    try:
        names = os.listdir(store / FOLDER)
    except FileNotFoundError:  # a copy may have left out empty folders
        return []
    stems = [name.removesuffix(".json") for name in names if name.endswith(".json")]
    return sorted(int(stem) for stem in stems if stem.isdecimal())


def read_marker(store: Path, block: int) -> Marker | None:
    path = marker_path(store, block)
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return Marker.model_validate_json(text)
    except ValidationError:
        raise WorkError(
            f"The marker {path} is damaged.", "Remove it; then the block is done again by the command that made it."
        ) from None


@contextmanager
def claimed(store: Path, block: int) -> Iterator[Path]:
    """The draft of a block's marker, which one process at a time holds: two writers of a block wait for each other.

    The kernel frees a draft whose process dies; whoever comes next goes on with the same file. It is removed on the
    way out unless it has become the marker.
    """
    draft = partial(marker_path(store, block))
    draft.parent.mkdir(exist_ok=True)
    descriptor = _claim(draft)
    try:
        yield draft
    finally:
        if _is(draft, descriptor):
            draft.unlink(missing_ok=True)
        os.close(descriptor)


def publish(store: Path, marker: Marker, draft: Path) -> None:
    """Make the draft the marker, on the disk. Everything that it tells of must be there already."""
    text = json.dumps(marker.model_dump(mode="json"), separators=(",", ":"))
    with draft.open("r+b") as file:
        file.truncate()
        file.write(text.encode())
        file.flush()
        os.fsync(file.fileno())
    path = marker_path(store, marker.block)
    draft.replace(path)
    flush(path.parent)


def _claim(draft: Path) -> int:
    while True:
        descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(descriptor)
                raise
            return descriptor
        if _is(draft, descriptor):
            return descriptor
        os.close(descriptor)  # while we waited, its holder renamed or removed it


def _is(path: Path, descriptor: int) -> bool:
    try:
        there = path.stat()
    except OSError:
        return False
    here = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


STEM = "progress"


def write_progress(path: Path, progress: Mapping[str, Any], part: str = "") -> None:
    """Replace what the store at `path` says about its progress, or about that of a `part`, such as `2/16`."""
    with storing("the progress", path):
        put_quickly(_file(path, part), json.dumps(dict(progress)).encode())


def read_progress(path: Path) -> list[dict[str, Any]]:
    """What each driver last said, those of parts too, as far as it can be read. Some of them may be long gone."""
    found = (_read(file) for file in sorted(path.glob(f"{STEM}*.json")))
    return [one for one in found if one is not None]


def _read(file: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _file(path: Path, part: str) -> Path:
    return path / (f"{STEM}-{part.replace('/', '-of-')}.json" if part else f"{STEM}.json")
