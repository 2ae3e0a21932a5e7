"""Stores of invented numbers. A block's content follows from its store's layout and its index alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from distlfm.store import STATUSES, Store, StoreSpec

Arrays = dict[str, NDArray[Any]]
SQUARE = {"space": ("x", "y"), "lattice": ((0.0, 0.5, 1.0), (0.0, 1.0))}
NODES = {"space": ("x", "y"), "nodes": ((0.0, 0.5), (0.25, 1.0), (1.0, 1.0))}
MESH = (np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]]), np.array([[0, 1, 2]]))


def make_spec(**changes: Any) -> StoreSpec:
    """Ten instances in blocks of four, two outputs; a test says what it wants otherwise."""
    given: dict[str, Any] = {
        "kind": "fit",
        "instances": 10,
        "block": 4,
        "outputs": ("p21", "DDB2"),
        "forces": ("p53",),
        "parameters": ("decay[p21]", "decay[DDB2]", "noise"),
        "parameter_kinds": ("mechanism", "mechanism", "noise"),
        "samples": 6,
        "steps": 5,
        "times": (0.0, 1.0, 2.0, 3.0, 4.5),
        "units": {"time": "h", "x": "mm", "y": "mm", "p21": "nM", "DDB2": "nM"},
        "attributes": {"mechanism": "transcription", "config": {"verb": "fit"}, "config_hash": "abc123", "seed": 7},
    }
    given |= changes
    if "steps" in changes and "times" not in changes:
        given["times"] = tuple(np.linspace(0.0, 2.0, changes["steps"]).tolist())
    return StoreSpec(**given)


def make_block(store: Store, index: int, tag: str = "patient-") -> tuple[Arrays, list[dict[str, Any]]]:
    """Arrays and rows of a block; every fifth instance of a fit has failed."""
    where = store.block_range(index)
    rng = np.random.default_rng([99, index])
    arrays: Arrays = {}
    for name, variable in store.variables.items():
        shape = (len(where), *variable.shape[1:])
        arrays[name] = np.sort(rng.normal(size=shape)) if "time" in name else rng.normal(size=shape)
    arrays["observed"][:, 0, 1] = np.nan
    arrays["observed_time"][0, -2:] = np.nan
    arrays["observed"][0, :, -2:] = np.nan
    if store.spec.variance:
        arrays["observed_variance"] = arrays["observed_variance"] ** 2
    generated = store.spec.kind == "generate"
    names = ["generated" if generated else "failed" if i % 5 == 4 else "converged" for i in where]
    arrays["status"] = np.array([STATUSES[name] for name in names])
    arrays["seed"] = rng.integers(0, 2**62, len(where))
    arrays["id"] = np.array([f"{tag}{i}" for i in where], dtype=np.object_)
    rows = [{"id": f"{tag}{i}", "status": name, "elbo": float(i)} for i, name in zip(where, names, strict=True)]
    return arrays, rows


def fill(store: Store, blocks: list[int] | None = None, tag: str = "patient-") -> Store:
    for index in range(store.spec.num_blocks) if blocks is None else blocks:
        store.write_block(index, *make_block(store, index, tag))
    return store


def make_store(path: Path, tag: str = "patient-", blocks: list[int] | None = None, **changes: Any) -> Store:
    spec = make_spec(**changes)
    return fill(Store.create(path, spec, MESH if spec.space else None), blocks, tag)
