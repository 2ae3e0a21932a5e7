"""The observed instances of a store, with the truth of a generated one, as archives that `distlfm fit --data` reads.

A name that ends in .npz is one file; any other is a folder with a file a block, which is read one file at a time and
therefore better for large stores. Of a folder the reader puts each file's name before those of its instances.
"""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from distlfm.data.npz import write_npz
from distlfm.errors import UsageError
from distlfm.instance import Instance
from distlfm.store.exported import Exported, drafted
from distlfm.store.files import partial
from distlfm.store.store import Store
from distlfm.store.verify import OnBlock

SUFFIX = ".npz"

Write = Callable[[int, int, Sequence[Instance]], None]
"""Takes a block, the number of instances before it, and its instances."""


def export_npz(store: Store, target: Path, on_block: OnBlock) -> Exported:
    """Write every instance that has an observation."""
    found = Exported(target)
    with drafted(target) as draft, _writer(draft, one_file=target.suffix == SUFFIX) as write:
        for block, marker in store.markers().items():
            instances = store.instances(marker.first, marker.first + marker.count)
            if instances:
                write(block, found.num_instances, instances)
            found.num_instances += len(instances)
            found.left_out += marker.count - len(instances)
            on_block(block)
        if not found.num_instances:
            raise UsageError(f"No instance of {store.path} has an observation.", "There is nothing to export.")
    if found.left_out:
        found.notes.append(f"{found.left_out} instances have no observation and are left out.")
    return found


@contextmanager
def _writer(draft: Path, *, one_file: bool) -> Iterator[Write]:
    if not one_file:
        draft.mkdir()
        yield lambda block, _, instances: write_npz(draft / f"{block:05d}{SUFFIX}", instances)
        return
    piece = partial(draft)
    with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:

        def add(_: int, offset: int, instances: Sequence[Instance]) -> None:
            write_npz(piece, instances)
            try:
                with zipfile.ZipFile(piece) as source:
                    for name in source.namelist():
                        number, _slash, rest = name.partition("/")
                        archive.writestr(f"{int(number) + offset}/{rest}", source.read(name))
            finally:
                piece.unlink(missing_ok=True)

        yield add
