"""A store in somebody else's format. A new format is one more function in `FORMATS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from distlfm.config import nearest
from distlfm.errors import UsageError
from distlfm.store.export_npz import export_npz
from distlfm.store.export_well import export_well
from distlfm.store.exported import Exported
from distlfm.store.store import Store
from distlfm.store.verify import OnBlock

Exporter = Callable[[Store, Path, OnBlock], Exported]
"""Writes the finished blocks of a store to a path that is not there yet, one block at a time."""

FORMATS: dict[str, Exporter] = {"well": export_well, "npz": export_npz}


def export(store: Store, form: str, target: str | Path, on_block: OnBlock = lambda _: None) -> Exported:
    """Write a store in the format `form`. The file or folder appears whole or not at all."""
    if form not in FORMATS:
        raise UsageError(f"There is no format {form!r}.", nearest(form, list(FORMATS)))
    place = Path(target)
    if place.exists():
        raise UsageError(f"{place} is there already.", "Choose a new place to export to.")
    if not store.markers():
        raise UsageError(f"{store.path} has no finished block.", "Finish it, then export it.")
    return FORMATS[form](store, place, on_block)
