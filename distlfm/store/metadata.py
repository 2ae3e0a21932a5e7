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
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from pydantic import ValidationError

from distlfm.config import Config, digest
from distlfm.errors import OtherWork, UsageError, WorkError
from distlfm.store.files import flush, partial, put_quickly, storing, unreadable, write_through
from distlfm.store.layout import FAILED, SCHEMA, StoreSpec

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

    @property
    def failed(self) -> int:
        """How many of its instances have no numbers."""
        return sum(self.statuses.get(name, 0) for name in FAILED)


def content_hash(markers: Mapping[int, Marker]) -> str:
    """Return a short hash of all files of some finished blocks: of what a store holds, wherever it lies."""
    text = "".join(f"{block}{json.dumps(mark.checksums, sort_keys=True)}" for block, mark in markers.items())
    return digest(text)


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
        fix = "Remove it; then the block is done again by the command that made it."
        raise WorkError(f"The marker {path} is damaged.", fix) from None


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
    """Make the draft the marker, on the disk. Everything that it lists must be there already."""
    text = json.dumps(marker.model_dump(mode="json"), separators=(",", ":"))
    write_through(draft, text.encode(), "r+b")
    path = marker_path(store, marker.block)
    draft.replace(path)
    flush(path.parent)


def _claim(draft: Path) -> int:
    while True:
        descriptor = open_lock(draft)
        try:
            if not wait_for_lock(descriptor) or _is(draft, descriptor):
                return descriptor
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)  # while we waited, its holder renamed or removed it


def open_lock(path: Path) -> int:
    """The descriptor of a file that is locked; it is made if it is not there."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)


def wait_for_lock(descriptor: int, how: int = fcntl.LOCK_EX) -> bool:
    """Be the only one with this lock, or as `how` says; False where the file system has none."""
    try:
        fcntl.flock(descriptor, how)
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        return False
    return True


def _is(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except OSError:
        return False


STEM = "progress"


def write_progress(path: Path, progress: Mapping[str, Any], part: str = "") -> None:
    """Replace what the store at `path` says about its progress, or about that of a `part`, such as `2/16`."""
    file = path / (f"{STEM}-{part.replace('/', '-of-')}.json" if part else f"{STEM}.json")
    with storing("the progress", path):
        put_quickly(file, json.dumps(dict(progress)).encode())


def read_progress(path: Path) -> list[dict[str, Any]]:
    """Return what each driver last reported, those of parts too, as far as it can be read. Some may be long gone."""
    lines = []
    for file in sorted(path.glob(f"{STEM}*.json")):
        with suppress(OSError, ValueError):
            lines.append(json.loads(file.read_bytes()))
    return [one for one in lines if isinstance(one, dict)]


METADATA = "zarr.json"
_GRID = {"times", "lattice", "nodes"}
"""Parts of the specification that are read from the arrays that hold them."""

_SIZES = ("kind", "instances", "block")
"""Parts of the specification that are attributes of their own."""

_OWN = ("schema", *_SIZES, "created", "key", "layout")


def attributes_of(spec: StoreSpec) -> dict[str, Any]:
    """The attributes of the group. `layout` is the specification without the grid and what stands beside it."""
    layout = spec.model_dump(mode="json", exclude={*_GRID, *_SIZES, "attributes"})
    return {
        **spec.attributes,
        "Conventions": "CF-1.11",
        "schema": SCHEMA,
        **{name: getattr(spec, name) for name in _SIZES},
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "key": secrets.token_hex(8),
        "layout": {**layout, "shared_times": spec.times is not None, "on_nodes": spec.nodes is not None},
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
            **{name: attributes[name] for name in _SIZES},
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
        what = f"{path} is a Zarr directory, but not a store of distlfm: its attributes name no schema."
        raise UsageError(what, _GIVE)
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

_GIVE = "Give the path of a run, or of a store."


def is_store(path: str | Path) -> bool:
    """Return whether a path is that of a store, or of a run that has one."""
    return _located(Path(path)) is not None


def find_store(path: str | Path) -> Path:
    """Return the store at a path: the path itself, or `store.zarr` in the folder of a run."""
    given = Path(path)
    located = _located(given)
    if located is None:
        what = f"{given} is not a store: it has no {METADATA}, and no {RUN_STORE}."
        raise UsageError(what if given.exists() else f"There is no store {given}.", _GIVE)
    return located


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
