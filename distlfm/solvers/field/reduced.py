"""Medium meshes, many parameter values: the equation projected on the few shapes that its solutions take.

The matrices are affine in the coefficients, so each is projected once; a parameter value then costs what it costs on a
mesh of as many nodes as there are shapes. Shapes come from solutions at sample values, compressed by random projection
and a singular value decomposition. Whoever uses this checks it against the full engine where it matters.

Shapes: `F` free nodes, `r` reduced coordinates, `J` nodes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from distlfm.solvers.fem.spec import FloatArray, System
from distlfm.solvers.field.dense import DenseEngine
from distlfm.solvers.field.engine import Engine, Sensitivities, TimeGrid
from distlfm.solvers.field.sparse import SparseEngine

SKETCH = 120
"""Random combinations kept of the solutions of one parameter value."""

MOST_SHAPES = 260
TOLERANCE = 1e-6
"""Shapes weaker than this, relative to the strongest, are left out."""


class ReducedEngine(Engine):
    """A sparse problem on the span of given shapes."""

    def __init__(self, full: SparseEngine, shapes: FloatArray) -> None:
        """shapes: [F, r], orthonormal."""
        system = full.system
        self.full = full
        self.names, self.num_nodes, self.silent = full.names, full.num_nodes, full.silent
        self.free = torch.from_numpy(system.free)
        self.held = torch.from_numpy(system.held)
        self.held_values = torch.from_numpy(system.held_values)
        self.shapes = torch.from_numpy(shapes)
        self.dense = DenseEngine(_project(system, shapes))
        mass = system.mass @ shapes
        self.onto = torch.from_numpy(np.linalg.solve(shapes.T @ mass, mass.T))

    def forward(
        self,
        theta: Tensor,
        initial: Tensor,
        force: Tensor,
        grid: TimeGrid,
        observe: Tensor,
        *,
        driven: bool,
        keep: bool,
    ) -> tuple[Tensor, Any]:
        start = initial[..., self.free] @ self.onto.mT
        looked = _columns(observe, self.free) @ self.shapes
        observed, saved = self.dense.forward(theta, start, force, grid, looked, driven=driven, keep=keep)
        if driven and len(self.held):
            observed = observed + _columns(observe, self.held) @ self.held_values
        return observed, saved

    def adjoint(self, saved: Any, weights: Tensor) -> Sensitivities:
        found = self.dense.adjoint(saved, weights)
        initial = found.initial.new_zeros(*found.initial.shape[:2], self.num_nodes)
        initial[..., self.free] = found.initial @ self.onto
        return Sensitivities(found.theta, initial, found.force)


def find_shapes(full: SparseEngine, theta: Tensor, initial: Tensor, force: Tensor, grid: TimeGrid) -> FloatArray:
    """Orthonormal shapes [F, r] of the solutions at sample values, those without any force included.

    theta: [A, k]; initial: [A, S, J]; force: [A, S, K, J].
    """
    index, ones = torch.arange(full.num_nodes).repeat(2, 1), torch.ones(full.num_nodes, dtype=torch.float64)
    everywhere = torch.sparse_coo_tensor(index, ones, check_invariants=True).coalesce()
    stream = np.random.default_rng(0)
    free = full.system.free
    kept = []
    for a in range(len(theta)):
        one = theta[a : a + 1]
        found, _ = full.forward(one, initial[a : a + 1], force[a : a + 1], grid, everywhere, driven=False, keep=False)
        columns = found[0].flatten(0, 1).numpy()[:, free].T
        sketch = columns @ stream.standard_normal((columns.shape[1], SKETCH))
        none = torch.zeros(1, 1, full.num_nodes, dtype=torch.float64)
        driven, _ = full.forward(one, none, none.unsqueeze(2), grid, everywhere, driven=True, keep=False)
        # A weak part of the solution must not drown in a strong one: each is scaled to its own size.
        apart = driven[0, 0].numpy()[:, free].T
        kept += [sketch / max(np.abs(sketch).max(), 1e-300), apart / max(np.abs(apart).max(), 1e-300)]
    left, sizes, _ = np.linalg.svd(np.concatenate(kept, 1), full_matrices=False)
    count = min(MOST_SHAPES, int((sizes > TOLERANCE * sizes[0]).sum()))
    return np.ascontiguousarray(left[:, :count])


def _project(system: System, shapes: FloatArray) -> System:
    """The system in reduced coordinates, none of them held; the force stays on the nodes."""
    count = shapes.shape[1]

    def both(matrix: sp.csr_array | None) -> sp.csr_array | None:
        return None if matrix is None else sp.csr_array(shapes.T @ (matrix @ shapes))

    def rows(matrix: sp.csr_array | None) -> sp.csr_array | None:
        return None if matrix is None else sp.csr_array((matrix.T @ shapes).T)

    mass = both(system.mass)
    assert mass is not None
    none = np.zeros(0, dtype=np.int64)
    return System(
        system.names,
        count,
        np.arange(count),
        none,
        np.zeros(0),
        mass,
        tuple(both(part) for part in system.stiffness),
        tuple(rows(part) for part in system.load),
        tuple(None if part is None else shapes.T @ part for part in system.source),
    )


def _columns(observe: Tensor, index: Tensor) -> Tensor:
    return observe.to_dense()[:, index]
