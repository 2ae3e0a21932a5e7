"""The attributes of a store's Zarr group, the way back to what the store was made from, and where a store is."""

from __future__ import annotations

import json
import secrets
import warnings
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from pydantic import ValidationError

from distlfm.errors import OtherWork, UsageError, WorkError
from distlfm.store.files import unreadable
from distlfm.store.layout import SCHEMA, StoreSpec

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
