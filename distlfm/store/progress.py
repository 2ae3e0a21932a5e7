"""A driver's last word on what runs: one small JSON file that is replaced whole, and may be lost without harm."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from distlfm.store.files import put_quickly, storing

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
