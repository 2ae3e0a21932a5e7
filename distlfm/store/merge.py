"""Several stores of one layout as one, block by block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from distlfm.errors import UsageError
from distlfm.store.files import drafted
from distlfm.store.inspection import OnBlock
from distlfm.store.layout import StoreSpec
from distlfm.store.metadata import RUN_STORE
from distlfm.store.store import Mesh, Store

NAMES = ("kind", "outputs", "forces", "parameters", "parameter_kinds")
GRID = ("steps", "times", "space", "lattice", "nodes", "draws")
SHARED = ("mechanism", "config", "config_hash", "seed", "data", "versions")
"""Attributes of the group that a merged store keeps if all its sources agree on them."""


class _Piece(NamedTuple):
    """Rows of a source, all of finished blocks. prefix: what is put before their names."""

    source: Store
    rows: range
    prefix: str

    def read(self, name: str) -> NDArray[Any]:
        return self.source.read(name, self.rows.start, self.rows.stop)


class Merge:
    """The finished blocks of all sources one after another, in a new store at `target`.

    Everything is checked at the start; `run` then writes. prefix: put the name of its store before the name of each
    instance. notes: what a user should know of the sources.
    """

    def __init__(self, sources: Sequence[str | Path], target: str | Path, *, prefix: bool = False) -> None:
        stores = [Store.open(path) for path in sources]
        self.target = Path(target)
        if len(stores) < 2:
            raise UsageError("One store alone cannot be merged.", "Name two or more.")
        if len({store.path.resolve() for store in stores}) < len(stores):
            raise UsageError("A store is named twice.", "Name each once.")
        if self.target.exists():
            raise UsageError(f"{self.target} is there already.", "Choose a new place for the merged store.")
        _same_layout(stores)
        self._pieces = list(_pieces(stores, _names(stores) if prefix else [""] * len(stores)))
        if not self._pieces:
            raise UsageError("None of the stores has a finished block.", "Finish them, then merge.")
        _unique_names(self._pieces)
        self.spec = _merged(stores, self._pieces)
        self._mesh = _common_mesh(stores)
        self.notes = [
            f"{len(missing)} of {store.spec.num_blocks} blocks of {store.path} are not finished and are left out."
            for store in stores
            if (missing := store.missing())
        ]

    def run(self, on_block: OnBlock = lambda _: None) -> Store:
        """Write the new store, block by block. It appears when all of it is there."""
        with drafted(self.target, "the merged store") as draft:
            merged = Store.create(draft, self.spec, self._mesh)
            for block, parts in enumerate(_blocks(self._pieces, self.spec.block)):
                merged.write_block(block, _arrays(merged, parts), list(_rows(parts)))
                on_block(block)
        return Store(self.target, self.spec)


def merge(sources: Sequence[str | Path], target: str | Path, *, prefix: bool = False) -> Store:
    """Merge stores of one layout into a new one."""
    return Merge(sources, target, prefix=prefix).run()


def _same_layout(stores: Sequence[Store]) -> None:
    first = stores[0]
    for other in stores[1:]:
        one, two = _layout(first.spec), _layout(other.spec)
        for name in one:
            if name in two and one[name] != two[name]:
                texts = [str(value) for value in (one[name], two[name])]
                values = " and ".join(text if len(text) <= 60 else text[:57] + "…" for text in texts)
                what = f"{first.path} and {other.path} differ in their {name}: {values}."
                raise UsageError(what, "Only stores of the same layout can be merged.")


def _layout(spec: StoreSpec) -> dict[str, Any]:
    """What must be the same in all sources, units as far as they are known."""
    layout = {name: getattr(spec, name) for name in (*NAMES, *GRID)} | {"mechanism": spec.attributes.get("mechanism")}
    return layout | {f"unit of {what}": unit for what, unit in sorted(spec.units.items())}


def _names(stores: Sequence[Store]) -> list[str]:
    """A short name of each store, from its path; numbered where paths end alike."""
    names: list[str] = []
    for store in stores:
        folder = store.path.absolute()
        stem = (folder.parent if folder.name == RUN_STORE else folder).name.removesuffix(".zarr")
        name, number = stem, 2
        while name in names:
            name, number = f"{stem}{number}", number + 1
        names.append(name)
    return [f"{name}_" for name in names]


def _pieces(stores: Sequence[Store], prefixes: Sequence[str]) -> Iterator[_Piece]:
    for store, prefix in zip(stores, prefixes, strict=True):
        for marker in store.markers().values():
            yield _Piece(store, range(marker.first, marker.first + marker.count), prefix)


def _unique_names(pieces: Sequence[_Piece]) -> None:
    seen: dict[str, Path] = {}
    for piece in pieces:
        for name in piece.read("id"):
            whole = f"{piece.prefix}{name}"
            if whole in seen:
                raise UsageError(
                    f"The instance {whole!r} is in {seen[whole]} and in {piece.source.path}.",
                    "Merge with --prefix, which puts the store's name before that of each instance.",
                )
            seen[whole] = piece.source.path


def _merged(stores: Sequence[Store], pieces: Sequence[_Piece]) -> StoreSpec:
    specs = [store.spec for store in stores]
    counts = [sum(len(piece.rows) for piece in pieces if piece.source is store) for store in stores]
    attributes = {key: value for key, value in specs[0].attributes.items() if key in SHARED}
    agreed = {key: value for key, value in attributes.items() if all(s.attributes.get(key) == value for s in specs)}
    origins = [
        {"store": store.path.name, "instances": count, "config_hash": store.spec.attributes.get("config_hash")}
        for store, count in zip(stores, counts, strict=True)
    ]
    title = " and ".join(dict.fromkeys(str(s.attributes["title"]) for s in specs if s.attributes.get("title")))
    return specs[0].model_copy(
        update={
            "instances": sum(counts),
            "block": max(spec.block for spec in specs),
            "samples": max(spec.samples for spec in specs),
            "variance": any(spec.variance for spec in specs),
            "units": {key: value for spec in specs for key, value in spec.units.items()},
            "attributes": {**agreed, "title": title, "merged_from": origins},
        }
    )


def _common_mesh(stores: Sequence[Store]) -> Mesh | None:
    first = stores[0].mesh()
    for store in stores[1:]:
        one, two = first or (), store.mesh() or ()
        if len(one) != len(two) or not all(map(np.array_equal, one, two)):
            what = f"{stores[0].path} and {store.path} are on different meshes."
            raise UsageError(what, "Only stores of the same mesh can be merged.")
    return first


def _blocks(pieces: Sequence[_Piece], size: int) -> Iterator[list[_Piece]]:
    """The pieces cut and gathered anew into blocks of `size`."""
    gathered: list[_Piece] = []
    room = size
    for piece in pieces:
        rows = piece.rows
        while rows:
            gathered.append(piece._replace(rows=rows[:room]))
            rows, room = rows[room:], room - len(rows[:room])
            if room == 0:
                yield gathered
                gathered, room = [], size
    if gathered:
        yield gathered


def _arrays(merged: Store, parts: Sequence[_Piece]) -> dict[str, NDArray[Any]]:
    """The arrays of a block; fewer observation points than the merged store has room for are filled up."""
    arrays: dict[str, NDArray[Any]] = {}
    for name, variable in merged.variables.items():
        whole = variable.filled(sum(len(part.rows) for part in parts))
        at = 0
        for part in parts:
            rows = slice(at, at + len(part.rows))
            if name in part.source.variables:
                values = part.read(name)
                if name == "id":
                    values = np.array([f"{part.prefix}{one}" for one in values], dtype=np.object_)
                whole[(rows, *(slice(0, size) for size in values.shape[1:]))] = values
            at = rows.stop
        arrays[name] = whole
    return arrays


def _rows(parts: Sequence[_Piece]) -> Iterator[Mapping[str, Any]]:
    for part in parts:
        first, skipped = divmod(part.rows.start, part.source.spec.block)
        blocks = range(first, (part.rows.stop - 1) // part.source.spec.block + 1)
        for row in islice(part.source.rows(blocks), skipped, skipped + len(part.rows)):
            yield {**row, "id": f"{part.prefix}{row['id']}"} if "id" in row and part.prefix else row
