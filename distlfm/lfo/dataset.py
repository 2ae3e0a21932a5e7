"""Examples to learn from: what is known of each instance of one or several stores, on the operator's grid.

Shapes: `B` instances, `P` outputs, `L` forces, `K` learned parameters. What is not known is NaN.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distlfm.config import digest
from distlfm.errors import UsageError
from distlfm.lfo.grid import BLOCK, GriddedData, Resampler, fill, grid_points, to_grid
from distlfm.lfo.schema import OperatorSchema
from distlfm.lfo.settings import Index
from distlfm.likelihoods import LIKELIHOODS, LikelihoodConfig, build_likelihood
from distlfm.store import STATUSES, Store
from distlfm.store.layout import ABSENT, UNLEARNED

Arrays = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Batch:
    """values, mask, clean: [B, P, *grid], the last the noise-free solution; noise: [B, P] its standard deviation.

    force, force_var: [B, L, *grid]; params, params_var: [B, K]. NaN where unknown.
    """

    values: Tensor
    mask: Tensor
    force: Tensor
    force_var: Tensor
    params: Tensor
    params_var: Tensor
    clean: Tensor
    noise: Tensor
    ids: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.values)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All but the ids, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "ids"}

    def part(self, rows: slice) -> Batch:
        """Some of the instances, one after another."""
        return Batch(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def at(self, rows: Sequence[int]) -> Batch:
        """The instances of these numbers, in this order."""
        chosen = {name: tensor[list(rows)] for name, tensor in self.tensors.items()}
        return Batch(**chosen, ids=tuple(self.ids[row] for row in rows))

    def to(self, device: torch.device, dtype: torch.dtype) -> Batch:
        return Batch(**{name: tensor.to(device, dtype) for name, tensor in self.tensors.items()}, ids=self.ids)


class Examples:
    """The kept instances of some stores, by number, then `observed` ones, which have no labels. Failures are left out.

    labelled: [instances], whether force and parameters of each are known. memory: megabytes that are kept once read.
    What fits is read once; of more, an epoch goes through shuffled shards a few at a time, and the next ones are read
    meanwhile.
    """

    def __init__(
        self,
        stores: Sequence[Store],
        schema: OperatorSchema | None = None,
        memory: float = 2000.0,
        observed: GriddedData | None = None,
    ) -> None:
        self.stores, self.observed = tuple(stores), observed
        self.schema = schema or OperatorSchema.of(stores)
        if schema is not None:
            for store in stores:
                schema.check(store)
        places: list[NDArray[np.intp]] = []
        names: list[str] = []
        for i, store in enumerate(stores):
            ids, kept = store.read("id"), kept_rows(store)
            places.append(np.column_stack([np.full_like(kept, i), kept // store.spec.block, kept % store.spec.block]))
            names += [str(ids[row]) for row in kept]
        self.labelled = np.ones(len(names), bool)
        if observed is not None:
            rows = np.arange(len(observed))
            places.append(np.column_stack([np.full_like(rows, len(stores)), rows // BLOCK, rows % BLOCK]))
            names += observed.ids
            self.labelled = np.append(self.labelled, np.zeros(len(observed), bool))
        self.ids = tuple(names)
        if not names:
            raise UsageError("The stores hold nothing to learn from.", "`distlfm status STORE` says what they hold.")
        self._places = np.concatenate(places)
        shard, self._shard_of = np.unique(self._places[:, :2], axis=0, return_inverse=True)
        self._shards = [(int(which), int(block)) for which, block in shard]
        size = int(np.prod(self.schema.shape)) * (3 * len(self.schema.outputs) + 2 * len(self.schema.forces)) * 4
        largest = max((store.spec.block for store in stores), default=BLOCK) * size
        self._room = max(2, int(memory * 1e6 / largest))
        self._most = max(2, int(memory * 1e6 / size))
        self._cache = Cache(self._read, self._room)

    def __len__(self) -> int:
        return len(self.ids)

    def in_memory(self) -> Examples:
        """These examples with all shards read, if they fit in memory: copies in other processes need not read them."""
        if len(self._shards) <= self._room:
            self._cache = Memory([self._read(shard) for shard in range(len(self._shards))])
        return self

    @cached_property
    def sources(self) -> tuple[str, ...]:
        """A fingerprint of each store: which instances of which config or data are learned from, wherever it lies."""
        more = () if self.observed is None else (self.observed.fingerprint,)
        return (*(fingerprint(store) for store in self.stores), *more)

    def some(self, indices: Index, most: int) -> Index:
        """The indices, or, of more than `most` or than memory holds at once, evenly spaced ones."""
        count = min(most, self._most, len(indices))
        chosen: Index = indices[np.unique(np.linspace(0, len(indices) - 1, count).astype(int))]
        return chosen

    def batch(self, indices: Index | Sequence[int], upcoming: Index | None = None) -> Batch:
        """The examples with these numbers, in this order. Shards of `upcoming` ones are read in the background."""
        at = np.asarray(indices, dtype=np.intp)
        shards = self._shard_of[at]
        if upcoming is not None and len(upcoming):
            self._cache.fetch(dict.fromkeys(self._shard_of[upcoming].tolist()))
        gathered: Arrays = {}
        for shard in dict.fromkeys(shards.tolist()):
            arrays, here = self._cache.get(shard), np.flatnonzero(shards == shard)
            for name, array in arrays.items():
                into = gathered.setdefault(name, np.empty((len(at), *array.shape[1:]), np.float32))
                into[here] = array[self._places[at[here], 2]]
        if not len(at):
            gathered = {name: array[:0] for name, array in self._cache.get(0).items()}
        tensors: dict[str, Any] = {name: torch.from_numpy(array) for name, array in gathered.items()}
        return Batch(**tensors, ids=tuple(self.ids[i] for i in at))

    def order(self, indices: Index, seed: int, epoch: int) -> Index:
        """The indices in the order of an epoch: shuffled, and a function of seed and epoch alone.

        Where not all shards fit in memory, examples are shuffled among those of a few shards at a time.
        """
        random = np.random.default_rng([seed, epoch])
        if len(self._shards) <= self._room:
            return random.permutation(indices)
        rank = random.permutation(len(self._shards))[self._shard_of[indices]] // max(1, self._room // 2)
        ordered: Index = indices[np.lexsort([random.random(len(indices)), rank])]
        return ordered

    def _read(self, shard: int) -> Arrays:
        which, block = self._shards[shard]
        if which == len(self.stores):
            assert self.observed is not None
            return self.observed.block(block, self.schema)
        store = self.stores[which]
        return read_rows(store, self.schema, store.block_range(block))


def kept_rows(store: Store) -> Index:
    """The rows of a store that hold an instance to learn from: its fit did not fail, nor any check of its answer."""
    return np.flatnonzero(~np.isin(store.read("status"), [ABSENT, *(STATUSES[name] for name in UNLEARNED)]))


def fingerprint(store: Store) -> str:
    """A hash that tells whether two stores hold the same instances, made from the same config and data."""
    made_from = [str(store.spec.attributes.get(name)) for name in ("config_hash", "data")]
    ids = store.read("id")
    return digest("\n".join([*made_from, *(str(ids[row]) for row in kept_rows(store))]))


class Cache:
    """The last few shards that were asked for. `fetch` reads in the background."""

    def __init__(self, read: Callable[[int], Arrays], room: int) -> None:
        self._read, self._room = read, room
        self._held: OrderedDict[int, Future[Arrays]] = OrderedDict()
        self._lock = threading.Lock()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="shards")

    def fetch(self, keys: Iterable[int]) -> None:
        """Begin to read those that are not held, as far as there is room beside what is in use."""
        with self._lock:
            for key in list(keys)[: max(1, self._room // 2)]:
                self._begin(key)

    def get(self, key: int) -> Arrays:
        with self._lock:
            future = self._begin(key)
        return future.result()

    def _begin(self, key: int) -> Future[Arrays]:
        if key not in self._held:
            self._held[key] = self._reader.submit(self._read, key)
        self._held.move_to_end(key)
        while len(self._held) > self._room:
            self._held.popitem(last=False)
        return self._held[key]

    def __reduce__(self) -> tuple[Any, ...]:
        return Cache, (self._read, self._room)


class Memory(Cache):
    """All shards, read already. They are part of its pickle, whose arrays Ray maps into every process of a node."""

    def __init__(self, shards: Sequence[Arrays]) -> None:
        self._shards = list(shards)

    def fetch(self, keys: Iterable[int]) -> None:
        """All are here."""

    def get(self, key: int) -> Arrays:
        return self._shards[key]

    def __reduce__(self) -> tuple[Any, ...]:
        return Memory, (self._shards,)


def read_rows(store: Store, schema: OperatorSchema, rows: range) -> Arrays:
    """The arrays of a `Batch` for consecutive rows of a store, failed ones among them."""

    def read(name: str) -> NDArray[Any]:
        return store.read(name, rows.start, rows.stop)

    resample = Resampler(store.spec, schema.dims)
    times = read("time") if store.spec.times is None else None
    values, mask = _observed(store, schema, read)
    wanted = [store.spec.parameters.index(name) if name in store.spec.parameters else -1 for name in schema.parameters]
    unknown = np.array([place < 0 for place in wanted], bool)
    generated = store.spec.kind == "generate"
    shape = (len(rows), len(schema.outputs), *schema.shape)
    arrays = {
        "values": values,
        "mask": mask,
        "force": resample(read("force_mean"), times),
        "force_var": resample(read("force_var"), times).clip(0.0),
        "params": np.where(unknown, np.nan, read("params_mean")[:, wanted]),
        "params_var": np.where(unknown, np.nan, read("params_var")[:, wanted]),
        "clean": resample(read("solution_mean"), times) if generated else np.full(shape, np.nan),
        "noise": _noise(store, read) if generated else np.full(shape[:2], np.nan),
    }
    return {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in arrays.items()}


def _observed(store: Store, schema: OperatorSchema, read: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values and mask [b, P, *grid]."""
    observed, times = read("observed"), read("observed_time")
    spec = store.spec
    points = np.stack([times, *(read(f"observed_{axis}") for axis in spec.space)], -1)  # [b, N, d]
    grid = grid_points(schema.dims)
    if points.shape[1] == len(grid) and len(points) and np.allclose(points, grid, rtol=0, atol=1e-9):
        whole = observed.reshape(*observed.shape[:2], *schema.shape)
        mask = np.isfinite(whole)
        values = fill(torch.from_numpy(np.where(mask, whole, 0.0)), torch.from_numpy(mask), 2).numpy()
        return values, mask
    values = np.zeros((*observed.shape[:2], *schema.shape), np.float32)
    mask = np.zeros_like(values)
    for row in range(len(observed)):
        there = np.isfinite(times[row])
        seen = np.isfinite(observed[row][:, there])
        data = np.where(seen, observed[row][:, there], 0.0)
        values[row], mask[row] = to_grid(points[row][there], data, seen, schema.dims, schema.shape)
    return values, mask


def _noise(store: Store, read: Any) -> NDArray[Any]:
    """Standard deviation [b, P] of the observation noise of generated instances; NaN where it is not Gaussian."""
    spec, config = store.spec, store.spec.attributes.get("config", {})
    options, params = config.get("likelihood", {}), read("params_mean")
    noise = np.full((len(params), len(spec.outputs)), np.nan)
    if options.get("kind", "gaussian") not in LIKELIHOODS:
        return noise
    likelihood = build_likelihood(LikelihoodConfig.model_validate(options), spec.outputs)
    if not likelihood.gaussian or likelihood.takes_level:
        return noise
    if config.get("noise") is not None:
        return np.full_like(noise, config["noise"])
    for i, output in enumerate(spec.outputs):
        name = f"noise[{output}]" if f"noise[{output}]" in spec.parameters else "noise"
        if name in spec.parameters:
            deviation = likelihood.deviation({"noise": params[:, spec.parameters.index(name)]}, np.zeros(()), None)
            noise[:, i] = np.nan if deviation is None else deviation[:, 0]
    return noise
