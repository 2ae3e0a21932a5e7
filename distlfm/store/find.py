"""Where the store is that a path means."""

from __future__ import annotations

from pathlib import Path

from distlfm.errors import UsageError
from distlfm.store.files import unreadable
from distlfm.store.metadata import METADATA

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
        f"{given} is no store: it has no {METADATA}, and no {RUN_STORE}.", "Give the path of a run, or of a store."
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
