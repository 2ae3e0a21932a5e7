"""Look into a store: is everything there, and what does it hold?

`verify` checks that all that the markers promise is there, bit for bit, one file at a time, whatever the size of the
store. `summarise` reads metadata and markers alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from distlfm.errors import DistlfmError
from distlfm.store.layout import Variable, grid, statics, tally
from distlfm.store.lock import drivers_of
from distlfm.store.metadata import FOLDER, METADATA, Marker, find_store, finished, is_store, marker_path, read_marker
from distlfm.store.store import ROWS, Store

SHOWN = 5
"""Names that a sentence lists before it only counts."""

OnBlock = Callable[[int], None]
"""Told the number of a block that is done."""


@dataclass(frozen=True)
class Flaw:
    """Something that is not as it was written; `array` is "rows" for the rows and empty for the marker itself."""

    sentence: str
    block: int | None = None
    array: str = ""

    def __str__(self) -> str:
        return self.sentence


@dataclass
class Verification:
    """What was found. Mentions are not flaws: blocks that are still missing, and leftovers of writers that died."""

    flaws: list[Flaw] = field(default_factory=list)
    mentions: list[str] = field(default_factory=list)
    num_blocks: int = 0
    num_instances: int = 0
    num_bytes: int = 0

    @property
    def ok(self) -> bool:
        return not self.flaws


def verify(store: Store, on_block: OnBlock = lambda _: None) -> Verification:
    """Read every file that a marker lists, and compare."""
    there = finished(store.path)
    verification = Verification(flaws=list(_shared(store)), num_blocks=len(there))
    seen: dict[str, int] = {}
    for block in there:
        marker, flaws = _marker(store, block)
        if marker is not None:
            flaws += [_flaw(store, block, *one) for one in _files(store, marker)]
            flaws += [] if flaws else [_flaw(store, block, *one) for one in _content(store, marker, seen)]
            verification.num_instances += marker.count
            verification.num_bytes += marker.bytes
        verification.flaws += flaws
        on_block(block)
    missing = store.missing()
    if missing:
        what = f"{len(missing)} of {store.spec.num_blocks} blocks are not finished ({_some(missing)})."
        verification.mentions.append(f"{what} The command that began the store goes on with them.")
    leftovers = sorted(_leftovers(store, set(there)))
    if leftovers:
        what = f"{len(leftovers)} files belong to no finished block ({_some(leftovers)})"
        verification.mentions.append(f"{what}: a writer was interrupted, and whoever writes the block replaces them.")
    return verification


def _shared(store: Store) -> Iterator[Flaw]:
    """The metadata of the arrays, and those that all instances share."""
    for variable in store.variables.values():
        reason = _metadata(store, variable)
        if reason:
            where = f"{variable.name}/{METADATA}"
            yield Flaw(f"The array {variable.name}: {where} {reason}. Copy it again from its origin.", None, where)
    for variable, expected in statics(store.spec):
        try:
            same = np.array_equal(store.static(variable.name), expected)
            reason = "" if same else "is not what the store was made with"
        except (OSError, ValueError, RuntimeError, KeyError) as error:
            reason = f"cannot be read ({error})"
        if reason:
            fix = "Copy its folder again from its origin."
            yield Flaw(f"The array {variable.name} {reason}. {fix}", None, variable.name)


def _metadata(store: Store, variable: Variable) -> str:
    """What is wrong with an array's own metadata; empty if nothing is."""
    try:
        content = json.loads((store.path / variable.name / METADATA).read_bytes())
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    except ValueError:
        return "is not valid JSON"
    shape = content.get("shape") if isinstance(content, dict) else None
    return "" if shape == list(variable.shape) else f"has the shape {shape} and not {list(variable.shape)}"


def _marker(store: Store, block: int) -> tuple[Marker | None, list[Flaw]]:
    try:
        marker = read_marker(store.path, block)
    except DistlfmError as error:
        return None, [Flaw(str(error), block)]
    if marker is None:
        return None, []
    if block >= store.spec.num_blocks:
        file = marker_path(store.path, block).name
        what = f"{file} in {FOLDER} is for block {block}, and the store has {store.spec.num_blocks}."
        return None, [Flaw(f"{what} Remove it.", block)]
    where = store.block_range(block)
    promised = {path.relative_to(store.path).as_posix() for path in store.block_files(block)}
    if (marker.block, marker.first, marker.count) != (block, where.start, len(where)):
        what = f"its marker is for instances {marker.first} to {marker.first + marker.count - 1}"
        return marker, [_flaw(store, block, "", f"{what}, and they are {where.start} to {where.stop - 1}")]
    if set(marker.checksums) != promised:
        odd = _some(sorted(set(marker.checksums) ^ promised))
        return marker, [_flaw(store, block, "", f"its marker lists other files than the store's layout ({odd})")]
    return marker, []


def _files(store: Store, marker: Marker) -> Iterator[tuple[str, str]]:
    """The array and what is wrong with its file, for each that is not as it was written."""
    for name, expected in marker.checksums.items():
        array = name.partition("/")[0]
        what = "the rows" if array == ROWS else f"the shard of {array}"
        reason = _damage(store.path / name, expected)
        if reason:
            yield array, f"{what} ({name}) {reason}"


def _damage(path: Path, checksum: str) -> str:
    """What is wrong with a file; empty if nothing is."""
    try:
        with path.open("rb") as file:
            same = hashlib.file_digest(file, "sha256").hexdigest() == checksum
    except FileNotFoundError:
        return "is gone"
    except OSError as error:
        return f"cannot be read ({error.strerror})"
    return "" if same else "is damaged: its checksum differs"


def _content(store: Store, marker: Marker, seen: dict[str, int]) -> Iterator[tuple[str, str]]:
    """How rows, names and counts do not fit together, in a block whose files are as they were written."""
    block, where = marker.block, store.block_range(marker.block)
    try:
        names = [str(name) for name in store.read("id", where.start, where.stop)]
        statuses = tally(store.read("status", where.start, where.stop))
        rows = list(store.rows([block]))
    except (DistlfmError, KeyError) as error:
        yield "", f"it cannot be read although its checksums are right ({error})"
        return
    if len(rows) != len(where):
        yield ROWS, f"it has {len(rows)} rows for {len(where)} instances"
    other = [name for name, row in zip(names, rows, strict=False) if row.get("id", name) != name]
    if other:
        yield ROWS, f"the row of {other[0]!r} is about another instance"
    if statuses != marker.statuses:
        yield "status", f"its marker counts {marker.statuses}, and there are {statuses}"
    for name in names:
        if name in seen:
            place = "the same block" if seen[name] == block else f"block {seen[name]}"
            yield "id", f"the name {name!r} is in {place} too"
        seen[name] = block


def _flaw(store: Store, block: int, array: str, what: str) -> Flaw:
    marker = marker_path(Path(FOLDER), block)
    fix = f"Remove {marker} from {store.path}; then the command that made the store does the block again."
    return Flaw(f"Block {block}: {what}. {fix}", block, array)


def _leftovers(store: Store, there: set[int]) -> Iterator[str]:
    """Files of blocks without a marker, and drafts that were never renamed."""
    for folder in [*store.variables, ROWS, FOLDER]:
        for path in (store.path / folder).iterdir() if (store.path / folder).is_dir() else ():
            number = path.stem if folder == ROWS else path.name.removeprefix("c.").partition(".")[0]
            unfinished = folder != FOLDER and number.isdecimal() and int(number) not in there
            if unfinished or path.name.endswith(".part"):
                yield f"{folder}/{path.name}"


def _some(names: Sequence[object]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(map(str, names[:SHOWN])) + more


@dataclass(frozen=True)
class StoreSummary:
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


def summarise(path: str | Path) -> StoreSummary:
    """Look at one store."""
    store = Store.open(path)
    spec, markers = store.spec, store.markers().values()
    sizes = {"output": spec.outputs, "force": spec.forces, "parameter": spec.parameters}
    dims = {name: len(names) for name, names in sizes.items()} | {"sample": spec.samples} | dict(grid(spec))
    drivers = drivers_of(store.path)
    return StoreSummary(
        path=str(path),
        kind=spec.kind,
        mechanism=str(spec.attributes.get("mechanism", "")),
        instances=spec.instances,
        done=sum(marker.count for marker in markers),
        failed=sum(marker.failed for marker in markers),
        blocks=spec.num_blocks,
        blocks_done=len(markers),
        dims=dims | ({"draw": spec.draws} if spec.draws else {}),
        bytes=sum(marker.bytes for marker in markers),
        config_hash=str(spec.attributes.get("config_hash", "")),
        created=store.created,
        driver=str(drivers[0]) if drivers else "",
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
