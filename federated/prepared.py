"""How far a site's patients are fitted, from its folder alone: nothing is computed, and no records are read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from distlfm.config import load
from distlfm.errors import DistlfmError
from distlfm.federated.settings import SiteConfig
from distlfm.store import STATUSES, Store, find_store, is_store
from distlfm.store.layout import FAILED

FITS = "fits"
GROUP = "/"
"""Between a patient's name and the number of a window."""


def patient_of(name: str) -> str:
    """The patient of a window."""
    return name.split(GROUP)[0]


def prepared(folder: Path) -> dict[str, Any]:
    """fits: `done`, `begun`, `not yet`, or what is in the way; and once there are any: windows, how many of them have a
    fit (`windows_fitted`) or could not be fitted (`windows_failed`), and of how many patients those with a fit are."""
    try:
        config = load(SiteConfig, folder / "site.yaml")
        place = folder / (FITS if config.store is None else config.store)
        if config.store is None and not is_store(place):
            return {"fits": f"not yet: distlfm federated prepare {folder}"}
        return _told(Store.open(find_store(place)))
    except DistlfmError as error:  # the rest of a site's status does not hang on it
        return {"fits": f"not known: {error}"}


def _told(store: Store) -> dict[str, Any]:
    marks = store.markers().values()
    lost = [STATUSES[name] for name in FAILED]
    fitted: list[str] = []
    for mark in marks:
        names, statuses = (store.read(name, mark.first, mark.first + mark.count) for name in ("id", "status"))
        fitted += [patient_of(str(name)) for name, status in zip(names, statuses, strict=True) if status not in lost]
    return {
        "fits": "begun" if store.missing() else "done",
        "windows": store.spec.instances,
        "windows_fitted": len(fitted),
        "windows_failed": sum(mark.count for mark in marks) - len(fitted),
        "patients_fitted": len(set(fitted)),
    }
