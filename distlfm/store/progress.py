"""The driver's last word on what runs: one small JSON file that is replaced whole, and may be lost without harm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distlfm.store.files import put_quickly, storing

FILE = "progress.json"


def write_progress(path: Path, progress: Mapping[str, Any]) -> None:
    """Replace what the store at `path` says about its progress."""
    with storing("the progress", path):
        put_quickly(path / FILE, json.dumps(dict(progress)).encode())


def read_progress(path: Path) -> dict[str, Any] | None:
    """What the driver last said; None if it never said anything that can be read."""
    try:
        found = json.loads((path / FILE).read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
