"""Trajectories of any weak form, and the linear system that small changes of one obey.

The helper group solves the trajectory and assembles the form's derivatives along it, once. All sweeps are done here,
forward with any number of changes side by side, and backward with any number of observations.

Shapes: `J` nodes, `F` free ones, `N` steps, `k` coefficients, `S` changes or observations side by side, `O` places.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Sequence
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
from distlfm.solvers.field.scheme import Step, sweep, sweep_back


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
    replied = field.group.call("linearise", {"key": field.key}, arrays)[0].arrays
    indices, pointers, shape = np.array(replied["indices"]), np.array(replied["indptr"]), (states.shape[1],) * 2

    def matrix(entries: Any) -> sp.csr_array:
        return sp.csr_array((np.array(entries), indices, pointers), shape=shape)

    return Form(
        np.array(replied["value"]),
        np.array(replied["by_theta"]),
        matrix(replied["mass"]),
        [matrix(entries) for entries in replied["by_state"]],
        [matrix(entries) for entries in replied["by_force"]],
    )


def trajectory(field: Meshed, theta: Tensor, initial: Tensor, force: Tensor, grid: TimeGrid) -> Tensor | None:
    """States [N + 1, J] for theta [k], initial [J] and force [N + 1, J]; None where a step cannot be solved."""
    index, ones = torch.arange(len(initial)).repeat(2, 1), torch.ones(len(initial), dtype=torch.float64)
    everywhere = torch.sparse_coo_tensor(index, ones, check_invariants=True).coalesce()
    with torch.no_grad():
        states = solve(field.engine, theta[None], initial[None, None], force[None, None], grid, everywhere)[0, 0]
    return states if bool(torch.isfinite(states).all()) else None


@dataclass(frozen=True)
class ObservedSteps:
    """Observations of a trajectory: the state at step `before` [S], and by `share` [S] at the next, at rows [S, J]."""

    before: IntArray
    share: FloatArray
    rows: sp.csr_array

    def weight(self, n: int) -> FloatArray:
        """How much of the state at step n each observation has, [S]."""
        return np.asarray((self.before == n) * (1 - self.share) + (self.before + 1 == n) * self.share)


@dataclass(frozen=True)
class Gradients:
    """Derivatives of S observations by the force [S, N + 1, J], the start [S, J] and the coefficients [S, k]."""

    force: FloatArray
    initial: FloatArray
    theta: FloatArray


class Tangent:
    """Small changes of a trajectory, by the grid's scheme: `M δ̇ = K δ + B δf + g δθ`.

    K, B and g are the form's derivatives by state, force and coefficients, and differ from time to time.
    """

    def __init__(self, field: Meshed, theta: Tensor, force: Tensor, states: Tensor, grid: TimeGrid) -> None:
        """theta: [k]; force, states: [N + 1, J] of the trajectory."""
        self.grid, self.num_nodes = grid, states.shape[1]
        self.free = np.setdiff1d(np.arange(self.num_nodes), field.fixed)
        form, dt = form_at(field, theta, states.numpy(), force.numpy()), grid.dt
        mass = form.mass[self.free][:, self.free]
        moving = [matrix[self.free][:, self.free] for matrix in form.by_state]
        self._steps, self._back = [], []
        for before, after in itertools.pairwise(moving):
            right = sp.csr_array(grid.scheme.right(mass, before, dt))
            solve, solve_transposed = _factor(sp.csc_array(grid.scheme.left(mass, after, dt)))
            self._steps.append(Step(solve, right.__matmul__))
            self._back.append(Step(solve_transposed, right.T.__matmul__))
        self._load = [sp.csr_array(dt * matrix[self.free]) for matrix in form.by_force]
        by_theta = dt * form.by_theta[:, :, self.free].transpose(0, 2, 1)
        self._by_theta = grid.scheme.between(by_theta[:-1], by_theta[1:])

    def forward(self, force: FloatArray, initial: FloatArray) -> FloatArray:
        """Changes of the state [N + 1, J, S] due to changes of the force [N + 1, J, S] and initial state [J, S]."""
        loads = [load @ change for load, change in zip(self._load, force, strict=True)]
        return self._swept(initial[self.free], (self.grid.scheme.between(*both) for both in itertools.pairwise(loads)))

    def by_theta(self) -> FloatArray:
        """Derivatives of the states by the coefficients, [N + 1, J, k]."""
        return self._swept(np.zeros_like(self._by_theta[0]), self._by_theta)

    def _swept(self, start: FloatArray, kicks: Iterable[FloatArray]) -> FloatArray:
        """Changes [N + 1, J, S] from a start [F, S] and a kick [F, S] for each step."""
        changes = np.zeros((self.grid.steps + 1, self.num_nodes, start.shape[1]))
        for n, now in enumerate(sweep([step.advance for step in self._steps], start, kicks)):
            changes[n, self.free] = now
        return changes

    def backward(self, watched: ObservedSteps) -> Gradients:
        """The gradients of every observation, in one sweep."""
        seen = sp.csc_array(watched.rows.T)[self.free].toarray()
        count, steps = seen.shape[1], self.grid.steps
        force = np.zeros((steps + 1, self.num_nodes, count))
        theta = np.zeros((self._by_theta.shape[2], count))
        initial = np.zeros((self.num_nodes, count))
        pulled = (seen * watched.weight(n) for n in range(steps, -1, -1))

        def visit(n: int, multiplier: FloatArray) -> None:
            for at, part in enumerate(self.grid.scheme.between_transposed(multiplier), n):
                force[at] += self._load[at].T @ part
            theta[:] += self._by_theta[n].T @ multiplier

        initial[self.free] = sweep_back(self._back, pulled, visit)
        return Gradients(np.ascontiguousarray(force.transpose(2, 0, 1)), initial.T.copy(), theta.T.copy())


def _factor(matrix: sp.csc_array) -> tuple[Any, Any]:
    """Functions that solve with a matrix, and with its transpose."""
    if matrix.shape[0] <= DENSE_NODES:
        inverse = np.linalg.inv(matrix.toarray())
        return inverse.__matmul__, inverse.T.__matmul__
    solve = splu(matrix).solve
    return solve, functools.partial(solve, trans="T")
