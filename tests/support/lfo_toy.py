"""Small stores with known content, for tests of the operator."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from distlfm.store import STATUSES, Store, StoreSpec

GENES = ("a", "b")


def make_store(path: Path, count: int = 40, points: int = 33, seed: int = 0, failed: tuple[int, ...] = ()) -> Store:
    """Two genes driven by a sine of random amplitude and phase, solved in closed form; started at rest."""
    random = np.random.default_rng(seed)
    times = np.linspace(0.0, 4.0, points)
    names = ("basal[a]", "basal[b]", "sensitivity[a]", "sensitivity[b]", "decay[a]", "decay[b]", "noise")
    spec = StoreSpec(
        kind="generate",
        instances=count,
        block=16,
        outputs=GENES,
        forces=("force",),
        parameters=names,
        parameter_kinds=("mechanism",) * 6 + ("noise",),
        samples=points,
        steps=points,
        times=tuple(times),
        attributes={
            "mechanism": "transcription",
            "config": {"mechanism": {"kind": "transcription", "fixed": {"sensitivity": {"a": 1.0}}}, "likelihood": {}},
        },
    )
    store = Store.create(path, spec)
    basal, decay = random.uniform(0.1, 0.3, (count, 2)), random.uniform(0.4, 0.8, (count, 2))
    sensitivity = np.column_stack([np.ones(count), random.uniform(0.5, 2.0, count)])
    size, rate, phase = random.uniform(0.5, 2, count), random.uniform(1, 3, count), random.uniform(0, 6, count)
    force = size[:, None] * np.sin(rate[:, None] * times + phase[:, None])
    # ∫ e^{−d(t−s)} sin(ws + p) ds, by parts
    w, p, d, t = rate[:, None, None], phase[:, None, None], decay[:, :, None], times
    wave = (d * np.sin(w * t + p) - w * np.cos(w * t + p) - np.exp(-d * t) * (d * np.sin(p) - w * np.cos(p))) / (
        d**2 + w**2
    )
    solution = basal[:, :, None] / d + sensitivity[:, :, None] * size[:, None, None] * wave
    noise = np.full(count, 0.01)
    observed = solution + noise[:, None, None] * random.standard_normal(solution.shape)
    params = np.column_stack([basal, sensitivity, decay, noise])
    for block in range(spec.num_blocks):
        rows = store.block_range(block)
        here = slice(rows.start, rows.stop)
        status = np.array([STATUSES["failed" if i in failed else "generated"] for i in rows], np.int8)
        arrays = {
            "id": np.array([f"toy-{i}" for i in rows], dtype=np.object_),
            "status": status,
            "observed": observed[here],
            "observed_time": np.tile(times, (len(rows), 1)),
            "solution_mean": solution[here],
            "solution_var": np.zeros_like(solution[here]),
            "force_mean": force[here, None],
            "force_var": np.zeros_like(force[here, None]),
            "params_mean": params[here],
            "params_var": np.zeros_like(params[here]),
            "seed": np.arange(rows.start, rows.stop),
        }
        store.write_block(block, arrays, [{"id": f"toy-{i}"} for i in rows])
    return store


def make_plane(path: Path, count: int = 24, shape: tuple[int, int, int] = (8, 7, 6), seed: int = 0) -> Store:
    """A field over a square whose rate of change is the force, without noise: a wave of random size and direction."""
    random = np.random.default_rng(seed)
    t, x, y = (np.linspace(0.0, 1.0, n) for n in shape)
    spec = StoreSpec(
        kind="generate",
        instances=count,
        block=16,
        outputs=("output",),
        forces=("force",),
        parameters=("size",),
        parameter_kinds=("mechanism",),
        samples=int(np.prod(shape)),
        steps=shape[0],
        times=tuple(t),
        space=("x", "y"),
        lattice=(tuple(x), tuple(y)),
        attributes={"mechanism": "a plane"},
    )
    store = Store.create(path, spec)
    size, turn = random.uniform((0.5, 0.0), (2.0, 6.0), (count, 2)).T
    lattice = np.meshgrid(t, x, y, indexing="ij")
    for block in range(spec.num_blocks):
        rows = store.block_range(block)
        many = [np.tile(axis, (len(rows), 1, 1, 1, 1)) for axis in lattice]
        a, p = (one[rows.start : rows.stop].reshape(-1, 1, 1, 1, 1) for one in (size, turn))
        phase = many[1] * np.cos(p) + many[2] * np.sin(p)
        force = a * np.cos(3 * many[0]) * np.sin(3 * phase)
        solution = a / 3 * np.sin(3 * many[0]) * np.sin(3 * phase)
        flat = {name: axis.reshape(len(rows), -1) for name, axis in zip(("time", "x", "y"), many, strict=True)}
        arrays = {
            "id": np.array([f"plane-{i}" for i in rows], dtype=np.object_),
            "status": np.full(len(rows), STATUSES["generated"], np.int8),
            "observed": solution.reshape(len(rows), 1, -1),
            **{f"observed_{name}": axis for name, axis in flat.items()},
            "solution_mean": solution,
            "solution_var": np.zeros_like(solution),
            "force_mean": force,
            "force_var": np.zeros_like(force),
            "params_mean": a.reshape(-1, 1),
            "params_var": np.zeros((len(rows), 1)),
            "seed": np.arange(rows.start, rows.stop),
        }
        store.write_block(block, arrays, [{"id": f"plane-{i}"} for i in rows])
    return store
