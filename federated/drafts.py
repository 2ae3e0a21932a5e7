"""Files that a round leaves at a site: held aside, and put in place only after the round's sum was opened.

A coordinator can ask for work and then abandon the sum. What such work wrote must not change the next answer, so the
files of a sum wait in a folder of their own, named by the run and by the sum's session, which is a hash of its roster.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

from distlfm.store.files import put_all, storing

FORGET_SECONDS = 24 * 3600.0
"""Files of a sum that was never opened are removed after this time, or when the same run begins another one."""

_FOLDER: ContextVar[Path | None] = ContextVar("folder of drafts", default=None)


def draft_folder() -> Path | None:
    """Return where the app writes files that are kept if the sum is opened; None outside of a sum."""
    return _FOLDER.get()


class Drafts:
    """Files of the sums under way, below the folder of a site's state."""

    def __init__(self, state: Path) -> None:
        self._folder = state / "drafts"

    @contextmanager
    def collect(self, run: str, session: str) -> Iterator[None]:
        """Let the app write files of a sum. Those of the run's earlier sums, never opened, are removed first."""
        self._remove_old(run)
        folder = self._folder / f"{run}.{session}"
        with storing("a draft", self._folder):
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.mkdir(mode=0o700)
        token = _FOLDER.set(folder)
        try:
            yield
        finally:
            _FOLDER.reset(token)

    def keep(self, run: str, session: str, target: Path) -> list[str]:
        """Move the files of an opened sum into `target` and return their names."""
        folder = self._folder / f"{run}.{session}"
        files = sorted(folder.iterdir()) if folder.is_dir() else []
        if files:
            with storing("the site's model", target):
                target.mkdir(parents=True, exist_ok=True)
                put_all({target / file.name: file.read_bytes() for file in files})
        shutil.rmtree(folder, ignore_errors=True)
        return [file.name for file in files]

    def _remove_old(self, run: str) -> None:
        for folder in self._folder.glob("*.*"):
            if folder.name.startswith(f"{run}.") or time.time() - folder.stat().st_mtime > FORGET_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)
