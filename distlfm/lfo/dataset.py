"""Examples to learn from: what is known of each instance of one or several stores, on the operator's grid.

Shapes: `B` instances, `P` outputs, `L` forces, `K` learned parameters. What is not known is NaN.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.lfo.grid import fill, to_grid
from distlfm.lfo.schema import OperatorSchema
from distlfm.lfo.settings import SplitConfig
from distlfm.store import STATUSES, Store
from distlfm.store.layout import ABSENT, FAILED

Index = NDArray[np.intp]
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

    def part(self, rows: slice) -> Batch:
        """Some of the instances."""
        return Batch(**{field.name: getattr(self, field.name)[rows] for field in fields(self)})

    def to(self, device: torch.device) -> Batch:
        tensors = {field.name: getattr(self, field.name) for field in fields(self) if field.name != "ids"}
        return replace(self, **{name: tensor.to(device) for name, tensor in tensors.items()})


class Examples:
    """The kept instances of some stores, by number. Failures are left out."""

    def __init__(self, stores: Sequence[Store], schema: OperatorSchema | None = None, memory: float = 2000.0) -> None:
        self.stores = tuple(stores)
        self.schema = schema or OperatorSchema.of(stores)
        self.memory = memory
        self.rows: list[tuple[int, int]] = []
        names: list[str] = []
        lost = {ABSENT, *(STATUSES[name] for name in FAILED)}
        for i, store in enumerate(stores):
            status, ids = store.read("status"), store.read("id")
            kept = np.flatnonzero(~np.isin(status, list(lost)))
            self.rows += [(i, int(row)) for row in kept]
            names += [str(ids[row]) for row in kept]
        self.ids = tuple(names)
        if not names:
            raise UsageError("The stores hold nothing to learn from.", "`distlfm status STORE` says what they hold.")
        self._held: Arrays | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def batch(self, indices: Index | Sequence[int]) -> Batch:
        """The examples with these numbers, in this order."""
        if self._held is None:
            parts = [read_rows(store, self.schema, self._of(i)) for i, store in enumerate(self.stores)]
            self._held = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        at = np.asarray(indices)
        found: dict[str, Any] = {name: torch.from_numpy(array[at]) for name, array in self._held.items()}
        return Batch(**found, ids=tuple(self.ids[i] for i in at))

    def order(self, indices: Index, seed: int, epoch: int) -> Index:
        """The indices in the order of an epoch: shuffled, and a function of seed and epoch alone."""
        return np.random.default_rng([seed, epoch]).permutation(indices)

    def _of(self, store: int) -> Index:
        return np.array([row for which, row in self.rows if which == store], dtype=np.intp)


@dataclass(frozen=True)
class Split:
    """Numbers of the examples of each part; no id is in two of them."""

    train: Index
    validation: Index
    calibration: Index


def split(ids: Sequence[str], config: SplitConfig) -> Split:
    """Sort instances by a hash of their id (up to the group's separator), whatever store and row they are in."""
    share = np.array([_share(name.split(config.group)[0] if config.group else name, config.seed) for name in ids])
    validation = share < config.validation
    calibration = ~validation & (share < config.validation + config.calibration)
    return Split(*(np.flatnonzero(part) for part in (~validation & ~calibration, validation, calibration)))


def _share(name: str, seed: int) -> float:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64


def read_rows(store: Store, schema: OperatorSchema, rows: Index) -> Arrays:
    """The arrays of a `Batch` for some rows of a store."""
    if not len(rows):
        rows = np.empty(0, np.intp)
    start, stop = (int(rows.min()), int(rows.max()) + 1) if len(rows) else (0, 0)
    at = rows - start

    def read(name: str) -> NDArray[Any]:
        found: NDArray[Any] = store.read(name, start, stop)[at]
        return found

    values, mask = _observed(store, schema, read)
    wanted = [store.spec.parameters.index(name) for name in schema.parameters]
    clean = read("solution_mean")
    generated = store.spec.kind == "generate"
    found = {
        "values": values,
        "mask": mask,
        "force": read("force_mean"),
        "force_var": read("force_var"),
        "params": read("params_mean")[:, wanted],
        "params_var": read("params_var")[:, wanted],
        "clean": clean if generated else np.full_like(clean, np.nan),
        "noise": _noise(store, read) if generated else np.full(clean.shape[:2], np.nan),
    }
    return {name: np.ascontiguousarray(array, dtype=np.float32) for name, array in found.items()}


def _observed(store: Store, schema: OperatorSchema, read: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Values and mask [b, P, *grid]."""
    observed, times = read("observed"), read("observed_time")
    spec = store.spec
    points = np.stack([times, *(read(f"observed_{axis}") for axis in spec.space)], -1)  # [b, N, d]
    grid = _grid_points(schema)
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


def _grid_points(schema: OperatorSchema) -> NDArray[np.float64]:
    axes = [dim.points() for dim in schema.dims]
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], -1)


def _noise(store: Store, read: Any) -> NDArray[Any]:
    """Standard deviation [b, P] of the observation noise of generated instances; NaN where it is not Gaussian."""
    spec = store.spec
    likelihood = spec.attributes.get("config", {}).get("likelihood", {})
    params = read("params_mean")
    found = np.full((len(params), len(spec.outputs)), np.nan)
    if likelihood.get("kind", "gaussian") != "gaussian" or likelihood.get("relative"):
        return found
    given = spec.attributes.get("config", {}).get("noise")
    names = list(spec.parameters)
    for i, output in enumerate(spec.outputs):
        for name in (f"noise[{output}]", "noise"):
            if given is not None:
                found[:, i] = given
            elif name in names:
                found[:, i] = np.hypot(params[:, names.index(name)], likelihood.get("floor", 0.0))
                break
    return found
