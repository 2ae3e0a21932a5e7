"""Medium meshes: one sparse factor for each parameter value, all right-hand sides at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import splu
from torch import Tensor

from distlfm.solvers.fem.spec import FloatArray, System
from distlfm.solvers.field.engine import Engine, Sensitivities, TimeGrid
from distlfm.solvers.field.scheme import Scheme, Step, sweep, sweep_back

KEPT = 8
"""Factors kept: the gradient asks for the one of the value just solved, and a line search comes back."""


class FactoredStep(Step[FloatArray]):
    """factor: solves with the left matrix, as one of SuperLU does; matrix: the right one."""

    def __init__(self, factor: Any, matrix: Any) -> None:
        self.factor, self.matrix = factor, sp.csr_array(matrix)

    def solve(self, side: FloatArray) -> FloatArray:
        return np.asarray(self.factor.solve(np.ascontiguousarray(side)))

    def solve_transposed(self, side: FloatArray) -> FloatArray:
        return np.asarray(self.factor.solve(np.ascontiguousarray(side), trans="T"))

    def right(self, state: FloatArray) -> FloatArray:
        return np.asarray(self.matrix @ state)

    def right_transposed(self, multiplier: FloatArray) -> FloatArray:
        return np.asarray(self.matrix.T @ multiplier)


@dataclass(frozen=True)
class _Factor:
    step: FactoredStep
    load: sp.csr_array
    source: FloatArray

    def kick(self, mixed: FloatArray, n: int, dt: float, *, driven: bool) -> Any:
        """Of step n, [F, S], by the force [S, P, J] that steps take."""
        found: Any = dt * (self.load @ mixed[:, n].T) if n < mixed.shape[1] else 0.0
        return found + dt * self.source[:, None] if driven else found


@dataclass(frozen=True)
class _Saved:
    factors: list[_Factor]
    states: list[FloatArray]
    mixed: FloatArray
    shape: tuple[int, int, int, int]
    grid: TimeGrid
    observe: sp.csr_array
    driven: bool


class SparseEngine(Engine):
    """SuperLU on the free nodes; the adjoint solves with the transposed factor."""

    def __init__(self, system: System) -> None:
        self.names, self.num_nodes = system.names, system.num_nodes
        self.system = system
        self.silent = (
            not any(part is not None and part.any() for part in system.source) and not system.held_values.any()
        )
        self._factors: dict[tuple[bytes, float, Scheme], _Factor] = {}

    def _factor(self, theta: NDArray[np.float64], dt: float, scheme: Scheme) -> _Factor:
        key = (theta.tobytes(), dt, scheme)
        if key in self._factors:
            return self._factors[key]
        system = self.system
        weights = (1.0, *theta)
        stiffness = _combine(weights, system.stiffness, system.mass.shape)
        load = _combine(weights, system.load, (len(system.free), system.num_nodes))
        source = np.zeros(len(system.free))
        for weight, part in zip(weights, system.source, strict=True):
            if part is not None:
                source += weight * part
        # Symmetric pattern: ordering by AᵀA would fill in several times as much.
        solver = splu(
            sp.csc_array(scheme.left(system.mass, stiffness, dt)),
            permc_spec="MMD_AT_PLUS_A",
            options={"SymmetricMode": True},
        )
        found = _Factor(FactoredStep(solver, scheme.right(system.mass, stiffness, dt)), load, source)
        while len(self._factors) >= KEPT:
            self._factors.pop(next(iter(self._factors)))
        self._factors[key] = found
        return found

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
    ) -> tuple[Tensor, _Saved]:
        system, looked = self.system, _sparse(observe)
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
        shape = (len(theta), *force.shape[1:])
        saved = _Saved(factors, kept, mixed, shape, grid, looked, driven)
        return torch.from_numpy(np.stack(observed)), saved

    def adjoint(self, saved: _Saved, weights: Tensor) -> Sensitivities:
        found = [self._adjoint(saved, a, weight.numpy()) for a, weight in enumerate(weights)]
        return Sensitivities(*(torch.from_numpy(np.stack(parts)) for parts in zip(*found, strict=True)))

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
        initial[:, free] = sweep_back([factor.step] * steps, pulled, visit).T
        return theta, initial, scheme.mix_transposed(pushed, force)

    def _pairing(
        self, k: int, multiplier: FloatArray, state: FloatArray, push: FloatArray | None, *, driven: bool
    ) -> float:
        """How the multiplier of one step weighs the coefficient k."""
        stiffness, load, source = self.system.stiffness[k], self.system.load[k], self.system.source[k]
        found = 0.0
        if stiffness is not None:
            found += float(np.vdot(multiplier, stiffness @ state))
        if load is not None and push is not None:
            found += float(np.vdot(multiplier, load @ push))
        if source is not None and driven:
            found += float(multiplier.sum(1) @ source)
        return found


def _combine(weights: tuple[float, ...], parts: tuple[sp.csr_array | None, ...], shape: tuple[int, int]) -> Any:
    total = sp.csr_array(shape)
    for weight, part in zip(weights, parts, strict=True):
        if part is not None:
            total = total + weight * part
    return total


def _sparse(observe: Tensor) -> sp.csr_array:
    if observe.is_sparse:
        entries = observe.coalesce()
        rows, columns = entries.indices().numpy()
        return sp.csr_array((entries.values().numpy(), (rows, columns)), shape=(observe.shape[0], observe.shape[1]))
    return sp.csr_array(observe.numpy())
