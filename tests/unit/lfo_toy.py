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
