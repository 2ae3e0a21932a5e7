"""What an export wrote and what it left out, and the draft that it writes to."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from distlfm.store.files import flush, flush_tree, partial, storing


@dataclass
class Exported:
    """path: what was written; left_out: instances that are in the store and not in it; notes: what to know."""

    path: Path
    num_instances: int = 0
    left_out: int = 0
    notes: list[str] = field(default_factory=list)


@contextmanager
def drafted(target: Path) -> Iterator[Path]:
    """A path beside the target, for a file or a folder, which becomes the target if all goes well."""
    draft = partial(target)
    with storing("the export", target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _clear(draft)
        try:
            yield draft
            if draft.is_dir():
                flush_tree(draft)
            else:
                flush(draft)
            draft.rename(target)
            flush(target.absolute().parent)
        finally:
            _clear(draft)


def _clear(draft: Path) -> None:
    if draft.is_dir():
        shutil.rmtree(draft, ignore_errors=True)
    else:
        draft.unlink(missing_ok=True)
