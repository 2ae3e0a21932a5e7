"""Medium meshes: one sparse factor for each parameter value, all right-hand sides at once.

For many parameter values the equation is projected on the few shapes that its solutions take. The matrices are affine
in the coefficients, so each is projected once; a parameter value then costs what it costs on a mesh of as many nodes as
there are shapes. Shapes come from solutions at sample values, compressed by random projection and a singular value
decomposition. Whoever uses this checks it against the full engine where it matters.

Shapes: `F` free nodes, `r` reduced coordinates, `J` nodes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import splu
from torch import Tensor

from distlfm.solvers.fem.spec import AssembledSystem, Csr, FloatArray
from distlfm.solvers.field.dense import DenseEngine
from distlfm.solvers.field.engine import Engine, Inputs, TimeGrid
from distlfm.solvers.field.scheme import Scheme, Step, sweep, sweep_back

KEPT = 8
"""Factors kept: the gradient asks for the one of the value just solved, and a line search comes back."""


@dataclass(frozen=True)
class _Factor:
    step: Step[FloatArray]
    back: Step[FloatArray]
    load: sp.csr_array
    source: FloatArray

    def kick(self, mixed: FloatArray, n: int, dt: float, *, driven: bool) -> Any:
        """Of step n, [F, S], by the force [S, P, J] that steps take."""
        pushed: Any = dt * (self.load @ mixed[:, n].T) if n < mixed.shape[1] else 0.0
        return pushed + dt * self.source[:, None] if driven else pushed


@dataclass(frozen=True)
class _Saved:
    factors: list[_Factor]
    states: list[FloatArray]
    mixed: FloatArray
    shape: torch.Size
    grid: TimeGrid
    observe: sp.csr_array
    driven: bool


class SparseEngine(Engine):
    """SuperLU on the free nodes; the adjoint solves with the transposed factor."""

    def __init__(self, system: AssembledSystem) -> None:
        self.names, self.num_nodes = system.names, system.num_nodes
        self.system = system
        self.silent = system.silent
        self._factors: dict[tuple[bytes, float, Scheme], _Factor] = {}

    def _factor(self, theta: NDArray[np.float64], dt: float, scheme: Scheme) -> _Factor:
        key = (theta.tobytes(), dt, scheme)
        if key in self._factors:
            return self._factors[key]
        system = self.system
        weights = (1.0, *theta)
        stiffness, load, source = (
            sum(weight * part for weight, part in zip(weights, parts, strict=True))
            for parts in (system.stiffness, system.load, system.source)
        )
        # Symmetric pattern: ordering by AᵀA would fill in several times as much.
        solver = splu(
            sp.csc_array(scheme.left(system.mass, stiffness, dt)),
            permc_spec="MMD_AT_PLUS_A",
            options={"SymmetricMode": True},
        )
        right = sp.csr_array(scheme.right(system.mass, stiffness, dt))
        step = Step[FloatArray](solver.solve, right.__matmul__)
        back = Step[FloatArray](functools.partial(solver.solve, trans="T"), right.T.__matmul__)
        factor = _Factor(step, back, load, source)
        while len(self._factors) >= KEPT:
            self._factors.pop(next(iter(self._factors)))
        self._factors[key] = factor
        return factor

    def forward(
        self, given: Inputs, grid: TimeGrid, observe: Tensor, *, driven: bool, keep: bool
    ) -> tuple[Tensor, _Saved]:
        theta, initial, force = given
        system, looked = self.system, to_csr(observe)
        starts, forces = initial.detach().numpy(), force.detach().numpy()
        mixed = grid.scheme.mix(forces, grid.steps)
        observed, kept, factors = [], [], []
        for a, value in enumerate(theta.detach().numpy()):
            factor = self._factor(value, grid.dt, grid.scheme)
            states = np.zeros((grid.steps + 1, self.num_nodes, initial.shape[1]))
            states[0] = starts[a].T
            states[:, system.held] = system.held_values[:, None] if driven else 0.0
            kicks = (factor.kick(mixed[a], n, grid.dt, driven=driven) for n in range(grid.steps))
            for n, now in enumerate(sweep([factor.step.advance] * grid.steps, states[0, system.free], kicks)):
                states[n, system.free] = now
            factors.append(factor)
            if keep:
                kept.append(states)
            observed.append(np.stack([looked @ one for one in states]).transpose(2, 0, 1))
        return torch.from_numpy(np.stack(observed)), _Saved(factors, kept, mixed, force.shape, grid, looked, driven)

    def adjoint(self, saved: _Saved, weights: Tensor) -> Inputs:
        gradients = [self._adjoint(saved, a, weight.numpy()) for a, weight in enumerate(weights)]
        return Inputs(*(torch.from_numpy(np.stack(parts)) for parts in zip(*gradients, strict=True)))

    def _adjoint(self, saved: _Saved, a: int, weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The gradients of one value by theta [k], initial state [S, J] and force [S, K, J]; weights: [S, N + 1, O]."""
        factor, states, mixed = saved.factors[a], saved.states[a], saved.mixed[a]
        free, dt, steps, scheme = self.system.free, saved.grid.dt, saved.grid.steps, saved.grid.scheme
        theta, pushed = np.zeros(len(self.names)), np.zeros_like(mixed)
        initial, force = np.zeros((saved.shape[1], self.num_nodes)), np.zeros(saved.shape[1:])

        def visit(n: int, multiplier: FloatArray) -> None:
            state = scheme.between(states[n, free], states[n + 1, free])
            push = mixed[:, n].T if n < mixed.shape[1] else None
            for k in range(len(theta)):
                theta[k] += dt * self._pairing(k + 1, multiplier, state, push, driven=saved.driven)
            if push is not None:
                pushed[:, n] = dt * (factor.load.T @ multiplier).T

        pulled = ((saved.observe.T @ weights[:, n].T)[free] for n in range(steps, -1, -1))
        initial[:, free] = sweep_back([factor.back] * steps, pulled, visit).T
        return theta, initial, scheme.mix_transposed(pushed, force)

    def _pairing(
        self, k: int, multiplier: FloatArray, state: FloatArray, push: FloatArray | None, *, driven: bool
    ) -> float:
        """How the multiplier of one step weighs the coefficient k."""
        stiffness, load, source = self.system.stiffness[k], self.system.load[k], self.system.source[k]
        total = 0.0
        if stiffness.nnz:
            total += float(np.vdot(multiplier, stiffness @ state))
        if load.nnz and push is not None:
            total += float(np.vdot(multiplier, load @ push))
        if driven:
            total += float(multiplier.sum(1) @ source)
        return total


def to_csr(observe: Tensor) -> Csr:
    """A tensor [O, J], dense or sparse, in compressed rows."""
    entries = observe.to_sparse_coo().coalesce()
    rows, columns = entries.indices().numpy()
    return Csr((entries.values().numpy(), (rows, columns)), shape=(observe.shape[0], observe.shape[1]))


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
        self.free, self.held = torch.from_numpy(system.free), torch.from_numpy(system.held)
        self.held_values = torch.from_numpy(system.held_values)
        self.shapes = torch.from_numpy(shapes)
        self.dense = DenseEngine(_project(system, shapes))
        mass = system.mass @ shapes
        self.onto = torch.from_numpy(np.linalg.solve(shapes.T @ mass, mass.T))

    def forward(
        self, given: Inputs, grid: TimeGrid, observe: Tensor, *, driven: bool, keep: bool
    ) -> tuple[Tensor, Any]:
        start = given.initial[..., self.free] @ self.onto.mT
        seen = observe.to_dense()
        looked = seen[:, self.free] @ self.shapes
        observed, saved = self.dense.forward(given._replace(initial=start), grid, looked, driven=driven, keep=keep)
        if driven and len(self.held):
            observed = observed + seen[:, self.held] @ self.held_values
        return observed, saved

    def adjoint(self, saved: Any, weights: Tensor) -> Inputs:
        gradients = self.dense.adjoint(saved, weights)
        initial = gradients.initial.new_zeros(*gradients.initial.shape[:2], self.num_nodes)
        initial[..., self.free] = gradients.initial @ self.onto
        return Inputs(gradients.theta, initial, gradients.force)


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
        sample = Inputs(one, initial[a : a + 1], force[a : a + 1])
        responses, _ = full.forward(sample, grid, everywhere, driven=False, keep=False)
        columns = responses[0].flatten(0, 1).numpy()[:, free].T
        sketch = columns @ stream.standard_normal((columns.shape[1], SKETCH))
        none = torch.zeros(1, 1, full.num_nodes, dtype=torch.float64)
        driven, _ = full.forward(Inputs(one, none, none.unsqueeze(2)), grid, everywhere, driven=True, keep=False)
        # A weak part of the solution must not drown in a strong one: each is scaled to its own size.
        apart = driven[0, 0].numpy()[:, free].T
        kept += [sketch / max(np.abs(sketch).max(), 1e-300), apart / max(np.abs(apart).max(), 1e-300)]
    left, sizes, _ = np.linalg.svd(np.concatenate(kept, 1), full_matrices=False)
    count = min(MOST_SHAPES, int((sizes > TOLERANCE * sizes[0]).sum()))
    return np.ascontiguousarray(left[:, :count])


def _project(system: AssembledSystem, shapes: FloatArray) -> AssembledSystem:
    """The system in reduced coordinates, none of them held; the force stays on the nodes."""
    count = shapes.shape[1]
    mass, *stiffness = (Csr(shapes.T @ (part @ shapes)) for part in (system.mass, *system.stiffness))
    load = tuple(Csr((part.T @ shapes).T) for part in system.load)
    source = tuple(shapes.T @ part for part in system.source)
    held, values = np.zeros(0, dtype=np.int64), np.zeros(0)
    return AssembledSystem(system.names, count, np.arange(count), held, values, mass, tuple(stiffness), load, source)
