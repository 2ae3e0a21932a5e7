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

KEPT = 8
"""Factors kept: the gradient asks for the one of the value just solved, and a line search comes back."""


@dataclass(frozen=True)
class _Factor:
    solver: Any
    right: sp.csr_array
    load: sp.csr_array
    source: FloatArray


@dataclass(frozen=True)
class _Saved:
    factors: list[_Factor]
    states: list[FloatArray]
    pairs: FloatArray
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
        self._factors: dict[tuple[bytes, float], _Factor] = {}

    def _factor(self, theta: NDArray[np.float64], dt: float) -> _Factor:
        key = (theta.tobytes(), dt)
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
            sp.csc_array(system.mass - 0.5 * dt * stiffness),
            permc_spec="MMD_AT_PLUS_A",
            options={"SymmetricMode": True},
        )
        found = _Factor(solver, sp.csr_array(system.mass + 0.5 * dt * stiffness), load, source)
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
        system, dt = self.system, grid.dt
        looked = _sparse(observe)
        starts, forces = initial.detach().numpy(), force.detach().numpy()
        pairs = _pairs(forces, grid.steps)
        observed, kept, factors = [], [], []
        for a, value in enumerate(theta.detach().numpy()):
            factor = self._factor(value, dt)
            states = np.zeros((grid.steps + 1, self.num_nodes, initial.shape[1]))
            states[0] = starts[a].T
            states[:, system.held] = system.held_values[:, None] if driven else 0.0
            now = states[0, system.free]
            for n in range(grid.steps):
                side = factor.right @ now
                if n < pairs.shape[2]:
                    side += 0.5 * dt * (factor.load @ pairs[a, :, n].T)
                if driven:
                    side += dt * factor.source[:, None]
                now = factor.solver.solve(side)
                states[n + 1, system.free] = now
            factors.append(factor)
            if keep:
                kept.append(states)
            observed.append(np.stack([looked @ one for one in states]).transpose(2, 0, 1))
        shape = (len(theta), *force.shape[1:])
        saved = _Saved(factors, kept, pairs, shape, grid, looked, driven)
        return torch.from_numpy(np.stack(observed)), saved

    def adjoint(self, saved: _Saved, weights: Tensor) -> Sensitivities:
        system, dt, steps = self.system, saved.grid.dt, saved.grid.steps
        _, num_sides, leading, num_nodes = saved.shape
        num_values = len(saved.factors)
        theta = np.zeros((num_values, len(self.names)))
        initial = np.zeros((num_values, num_sides, num_nodes))
        force = np.zeros((num_values, num_sides, leading, num_nodes))
        count = saved.pairs.shape[2]
        for a, (factor, states) in enumerate(zip(saved.factors, saved.states, strict=True)):
            weight = weights[a].numpy()
            carried = np.zeros((len(system.free), num_sides))
            for n in range(steps, 0, -1):
                pulled = (saved.observe.T @ weight[:, n].T)[system.free]
                multiplier = factor.solver.solve(pulled + carried, trans="T")
                both = states[n, system.free] + states[n - 1, system.free]
                pair = saved.pairs[a, :, n - 1].T if n - 1 < count else None
                for k in range(len(self.names)):
                    theta[a, k] += dt * self._pairing(k + 1, multiplier, both, pair, driven=saved.driven)
                if pair is not None:
                    gradient = 0.5 * dt * (factor.load.T @ multiplier).T
                    force[a, :, n - 1] += gradient
                    if n < leading:
                        force[a, :, n] += gradient
                carried = factor.right.T @ multiplier
            start = (saved.observe.T @ weight[:, 0].T)[system.free] + carried
            initial[a][:, system.free] = start.T
        return Sensitivities(torch.from_numpy(theta), torch.from_numpy(initial), torch.from_numpy(force))

    def _pairing(
        self, k: int, multiplier: FloatArray, both: FloatArray, pair: FloatArray | None, *, driven: bool
    ) -> float:
        """How the multiplier of one step weighs the coefficient k."""
        stiffness, load, source = self.system.stiffness[k], self.system.load[k], self.system.source[k]
        found = 0.0
        if stiffness is not None:
            found += 0.5 * float(np.vdot(multiplier, stiffness @ both))
        if load is not None and pair is not None:
            found += 0.5 * float(np.vdot(multiplier, load @ pair))
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


def _pairs(force: FloatArray, steps: int) -> FloatArray:
    """f_n + f_{n+1} [A, S, P, J] for the leading P steps, after which it is zero."""
    first = force[:, :, : min(force.shape[2], steps)]
    following = np.zeros_like(first)
    later = force[:, :, 1 : 1 + first.shape[2]]
    following[:, :, : later.shape[2]] = later
    return first + following
