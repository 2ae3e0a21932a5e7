"""What stands beside a store's arrays: attributes, markers of blocks, progress, and the way back to its origin.

A marker is the small file that says that a block is there, whole, with its checksums; without it, it is not there. A
driver's last word on what runs is one small JSON file that is replaced whole, and may be lost without harm.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from pydantic import ValidationError

from distlfm.config import Config, digest
from distlfm.errors import OtherWork, UsageError, WorkError
from distlfm.store.files import flush, partial, put_quickly, storing, unreadable
from distlfm.store.layout import SCHEMA, StoreSpec

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


METADATA = "zarr.json"
_GRID = {"times", "lattice", "nodes"}
"""Parts of the specification that are read from the arrays that hold them."""

_OWN = ("schema", "kind", "instances", "block", "created", "key", "layout")


def attributes_of(spec: StoreSpec) -> dict[str, Any]:
    """The attributes of the group. `layout` is the specification without the grid and what stands beside it."""
    apart = {*_GRID, "attributes", "kind", "instances", "block"}
    return {
        **spec.attributes,
        "Conventions": "CF-1.11",
        "schema": SCHEMA,
        "kind": spec.kind,
        "instances": spec.instances,
        "block": spec.block,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "key": secrets.token_hex(8),
        "layout": {
            **spec.model_dump(mode="json", exclude=apart),
            "shared_times": spec.times is not None,
            "on_nodes": spec.nodes is not None,
        },
    }


def consolidate(path: Path) -> None:
    """Gather the metadata of all arrays in one file, so that a store is opened by reading that alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Zarr v3 has not standardised this file; every reader works without it
        zarr.consolidate_metadata(path)


def read_spec(path: Path) -> StoreSpec:
    """What the store at `path` was made from."""
    attributes = read_attributes(path)
    layout = dict(attributes["layout"])
    try:
        group: Any = zarr.open_group(path, mode="r", use_consolidated=True)
        shared, on_nodes = layout.pop("shared_times"), layout.pop("on_nodes")
        columns = [np.asarray(group[axis][...]).tolist() for axis in layout["space"]]
        return StoreSpec(
            kind=attributes["kind"],
            instances=attributes["instances"],
            block=attributes["block"],
            times=tuple(np.asarray(group["time"][...]).tolist()) if shared else None,
            lattice=tuple(map(tuple, columns)) if columns and not on_nodes else None,
            nodes=tuple(zip(*columns, strict=True)) if on_nodes else None,
            attributes={key: value for key, value in attributes.items() if key not in (*_OWN, "Conventions")},
            **layout,
        )
    except PermissionError as error:
        raise unreadable(path, error) from None
    except (KeyError, TypeError, ValueError, OSError, ValidationError) as error:
        raise _damaged(path, str(error).splitlines()[0]) from error


def read_attributes(path: Path) -> dict[str, Any]:
    """The attributes of the group, of a schema that this code can read."""
    file = path / METADATA
    try:
        content = json.loads(file.read_bytes())
    except OSError as error:
        raise unreadable(file, error) from None
    except ValueError:
        raise _damaged(path, f"{METADATA} is not valid JSON") from None
    attributes = content.get("attributes") if isinstance(content, dict) else None
    if not isinstance(attributes, dict) or not isinstance(attributes.get("schema"), int):
        raise UsageError(
            f"{path} is a Zarr directory, but no store of distlfm: its attributes name no schema.",
            "Give the path of a run, or of a store.",
        )
    if attributes["schema"] != SCHEMA:
        age = "newer" if attributes["schema"] > SCHEMA else "older"
        raise OtherWork(
            f"{path} has the schema {attributes['schema']}, and this version of distlfm reads {SCHEMA}.",
            f"Open it with the {age} version of distlfm that wrote it.",
        )
    missing = [key for key in _OWN if key not in attributes]
    if missing:
        raise _damaged(path, f"the attribute {missing[0]!r} is gone")
    return attributes


def _damaged(path: Path, why: str) -> WorkError:
    return WorkError(f"The metadata of the store {path} is damaged: {why}.", f"Copy {METADATA} again from its origin.")


RUN_STORE = "store.zarr"
"""The store in the folder of a run."""


def is_store(path: str | Path) -> bool:
    """Whether a path is that of a store, or of a run that has one."""
    return _located(Path(path)) is not None


def find_store(path: str | Path) -> Path:
    """The store at a path: the path itself, or `store.zarr` in the folder of a run."""
    given = Path(path)
    found = _located(given)
    if found is not None:
        return found
    if not given.exists():
        raise UsageError(f"There is no store {given}.", "Give the path of a run, or of a store.")
    raise UsageError(
        f"{given} is not a store: it has no {METADATA}, and no {RUN_STORE}.", "Give the path of a run, or of a store."
    )


def _located(path: Path) -> Path | None:
    for candidate in (path, path / RUN_STORE):
        try:
            if (candidate / METADATA).is_file():
                return candidate
        except PermissionError as error:  # there may be one; it is not for us to say that there is none
            raise unreadable(candidate, error) from None
        except OSError:  # a name that no file can have
            continue
    return None
