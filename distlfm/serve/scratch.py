"""A folder for the time of a session, for its owner alone; what a killed session left is swept by the next one."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from distlfm.store.files import storing

PREFIX = "distlfm-serve-"
_NAME = re.compile(rf"{PREFIX}(\d+)-.+")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder with mode 0700 that is gone afterwards."""
    parent = Path(tempfile.gettempdir())
    sweep(parent)
    with storing("the session's folder", parent):
        folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep(parent: Path) -> None:
    """Remove folders of our own whose process is no more."""
    try:
        found = list(parent.iterdir())
    except OSError:  # one may write there, and not look
        return
    for folder in found:
        match = _NAME.fullmatch(folder.name)
        with suppress(OSError):  # somebody else removes it
            mine = match is not None and not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            if match is not None and mine and not _runs(int(match[1])):
                shutil.rmtree(folder, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
