"""What a store holds, from its metadata and markers alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distlfm.store.find import find_store, is_store
from distlfm.store.layout import FAILED, grid
from distlfm.store.lock import driver_of
from distlfm.store.store import Store


@dataclass(frozen=True)
class Summary:
    """One store. done: instances of finished blocks; failed: those of them without an answer; driver: who works on it.

    bytes: of the finished blocks.
    """

    path: str
    kind: str
    mechanism: str
    instances: int
    done: int
    failed: int
    blocks: int
    blocks_done: int
    dims: dict[str, int]
    bytes: int
    config_hash: str
    created: str
    driver: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def summarise(path: str | Path) -> Summary:
    """Look at one store."""
    store = Store.open(path)
    spec, markers = store.spec, store.markers().values()
    sizes = {"output": spec.outputs, "force": spec.forces, "parameter": spec.parameters}
    dims = {name: len(names) for name, names in sizes.items()} | {"sample": spec.samples} | dict(grid(spec))
    driver = driver_of(store.path)
    return Summary(
        path=str(path),
        kind=spec.kind,
        mechanism=str(spec.attributes.get("mechanism", "")),
        instances=spec.instances,
        done=sum(marker.count for marker in markers),
        failed=sum(marker.statuses.get(name, 0) for marker in markers for name in FAILED),
        blocks=spec.num_blocks,
        blocks_done=len(markers),
        dims=dims | ({"draw": spec.draws} if spec.draws else {}),
        bytes=sum(marker.bytes for marker in markers),
        config_hash=str(spec.attributes.get("config_hash", "")),
        created=store.created,
        driver="" if driver is None else str(driver),
    )


def stores_at(paths: Sequence[Path]) -> Iterator[Path]:
    """The stores and runs among the paths, and directly in the folders among them."""
    for path in paths:
        if not is_store(path) and path.is_dir():
            inside = [child for child in sorted(path.iterdir()) if not child.name.startswith(".") and is_store(child)]
            if inside:
                yield from inside
                continue
        find_store(path)
        yield path
