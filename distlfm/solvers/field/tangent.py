"""Trajectories of any weak form, and the linear system that small changes of one obey.

The helper group solves the trajectory and assembles the form's derivatives along it, once. All sweeps are done here,
forward with any number of changes side by side, and backward with any number of observations.

Shapes: `J` nodes, `F` free ones, `N` steps, `k` coefficients, `S` changes or observations side by side, `O` places.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from scipy.sparse.linalg import splu
from torch import Tensor

from distlfm.solvers.fem.spec import FloatArray, IntArray
from distlfm.solvers.field.engine import TimeGrid, solve
from distlfm.solvers.field.meshed import DENSE_NODES, Meshed


@dataclass(frozen=True)
class Form:
    """F(y, f; θ) and its derivatives at n times. value: [n, J]; by_theta: [n, k, J]; matrices: [J, J] each."""

    value: FloatArray
    by_theta: FloatArray
    mass: sp.csr_array
    by_state: Sequence[sp.csr_array]
    by_force: Sequence[sp.csr_array]


def form_at(field: Meshed, theta: Tensor, states: FloatArray, force: FloatArray) -> Form:
    """The weak form at states [n, J] and force [n, J], for coefficients theta [k]. Nothing is solved."""
    arrays = {"theta": theta.detach().numpy(), "states": states, "force": force}
    found = field.group.call("linearise", {"key": field.key}, arrays)[0].arrays
    indices, pointers, shape = np.array(found["indices"]), np.array(found["indptr"]), (states.shape[1],) * 2

    def matrix(entries: Any) -> sp.csr_array:
        return sp.csr_array((np.array(entries), indices, pointers), shape=shape)

    return Form(
        np.array(found["value"]),
        np.array(found["by_theta"]),
        matrix(found["mass"]),
        [matrix(entries) for entries in found["by_state"]],
        [matrix(entries) for entries in found["by_force"]],
    )


def trajectory(field: Meshed, theta: Tensor, initial: Tensor, force: Tensor, grid: TimeGrid) -> Tensor | None:
    """States [N + 1, J] for theta [k], initial [J] and force [N + 1, J]; None where a step cannot be solved."""
    index, ones = torch.arange(len(initial)).repeat(2, 1), torch.ones(len(initial), dtype=torch.float64)
    everywhere = torch.sparse_coo_tensor(index, ones, check_invariants=True).coalesce()
    with torch.no_grad():
        found = solve(field.engine, theta[None], initial[None, None], force[None, None], grid, everywhere)[0, 0]
    return found if bool(torch.isfinite(found).all()) else None


@dataclass(frozen=True)
class Watched:
    """Observations of a trajectory: the state at step `before` [S], and by `share` [S] at the next, at rows [S, J]."""

    before: IntArray
    share: FloatArray
    rows: sp.csr_array


@dataclass(frozen=True)
class Gradients:
    """Of S observations by the force [S, N + 1, J], the initial state [S, J] and the coefficients [S, k]."""

    force: FloatArray
    initial: FloatArray
    theta: FloatArray


class Tangent:
    """Small changes of a trajectory: `(M − dt/2 K') δ' = (M + dt/2 K) δ + dt/2 (B δf + B' δf') + dt/2 (g + g') δθ`.

    K, B and g are the form's derivatives by state, force and coefficients; a prime marks the later end of the step.
    """

    def __init__(self, field: Meshed, theta: Tensor, force: Tensor, states: Tensor, grid: TimeGrid) -> None:
        """theta: [k]; force, states: [N + 1, J] of the trajectory."""
        self.grid, self.num_nodes = grid, states.shape[1]
        self.free = np.setdiff1d(np.arange(self.num_nodes), field.fixed)
        form, half = form_at(field, theta, states.numpy(), force.numpy()), 0.5 * grid.dt
        mass = form.mass[self.free][:, self.free]
        moving = [half * matrix[self.free][:, self.free] for matrix in form.by_state]
        self._right = [sp.csr_array(mass + matrix) for matrix in moving[:-1]]
        self._factors = [_factor(sp.csc_array(mass - matrix)) for matrix in moving[1:]]
        self._load = [sp.csr_array(half * matrix[self.free]) for matrix in form.by_force]
        by_theta = form.by_theta[:, :, self.free].transpose(0, 2, 1)
        self._by_theta = half * (by_theta[:-1] + by_theta[1:])

    def forward(self, force: FloatArray, initial: FloatArray) -> FloatArray:
        """Changes of the state [N + 1, J, S] due to changes of the force [N + 1, J, S] and initial state [J, S]."""
        found = np.zeros((self.grid.steps + 1, self.num_nodes, initial.shape[1]))
        now = initial[self.free]
        found[0, self.free] = now
        loads = [load @ change for load, change in zip(self._load, force, strict=True)]
        for n, (right, factor) in enumerate(zip(self._right, self._factors, strict=True)):
            now = factor.solve(right @ now + loads[n] + loads[n + 1])
            found[n + 1, self.free] = now
        return found

    def by_theta(self) -> FloatArray:
        """Derivatives of the states by the coefficients, [N + 1, J, k]."""
        found = np.zeros((self.grid.steps + 1, self.num_nodes, self._by_theta.shape[2]))
        now = np.zeros_like(self._by_theta[0])
        for n, (right, factor) in enumerate(zip(self._right, self._factors, strict=True)):
            now = factor.solve(right @ now + self._by_theta[n])
            found[n + 1, self.free] = now
        return found

    def backward(self, watched: Watched) -> Gradients:
        """The gradients of every observation, in one sweep."""
        seen = sp.csc_array(watched.rows.T)[self.free].toarray()
        count, steps = seen.shape[1], self.grid.steps
        force = np.zeros((steps + 1, self.num_nodes, count))
        theta = np.zeros((self._by_theta.shape[2], count))
        carried = np.zeros_like(seen)
        for n in range(steps, -1, -1):
            weight = np.where(watched.before == n, 1 - watched.share, 0.0)
            weight = weight + np.where(watched.before + 1 == n, watched.share, 0.0)
            carried = carried + seen * weight
            if n == 0:
                break
            dual = self._factors[n - 1].solve_transposed(carried)
            force[n] += self._load[n].T @ dual
            force[n - 1] += self._load[n - 1].T @ dual
            theta += self._by_theta[n - 1].T @ dual
            carried = self._right[n - 1].T @ dual
        initial = np.zeros((self.num_nodes, count))
        initial[self.free] = carried
        return Gradients(np.ascontiguousarray(force.transpose(2, 0, 1)), initial.T.copy(), theta.T.copy())


class _Dense:
    def __init__(self, matrix: sp.csc_array) -> None:
        self._inverse = np.linalg.inv(matrix.toarray())

    def solve(self, right: FloatArray) -> FloatArray:
        found: FloatArray = self._inverse @ right
        return found

    def solve_transposed(self, right: FloatArray) -> FloatArray:
        found: FloatArray = self._inverse.T @ right
        return found


class _Sparse:
    def __init__(self, matrix: sp.csc_array) -> None:
        self._factor: Any = splu(matrix)

    def solve(self, right: FloatArray) -> FloatArray:
        return np.asarray(self._factor.solve(np.ascontiguousarray(right)))

    def solve_transposed(self, right: FloatArray) -> FloatArray:
        return np.asarray(self._factor.solve(np.ascontiguousarray(right), trans="T"))


def _factor(matrix: sp.csc_array) -> _Dense | _Sparse:
    return _Dense(matrix) if matrix.shape[0] <= DENSE_NODES else _Sparse(matrix)
