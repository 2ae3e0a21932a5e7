"""Small meshes: dense matrices, batched over parameter values; a step is one product with a stored inverse."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.solvers.field.engine import Engine, Sensitivities, TimeGrid
from distlfm.solvers.field.system import System


@dataclass(frozen=True)
class _Saved:
    """inverse: [A, F, F] of M − dt/2 A; right: [A, F, F] = M + dt/2 A; states: [A, N + 1, J, S], free nodes only."""

    inverse: Tensor
    right: Tensor
    load: Tensor
    states: Tensor
    pairs: Tensor
    shape: tuple[int, int, int, int]
    grid: TimeGrid
    observe: Tensor
    driven: bool


class DenseEngine(Engine):
    """Everything as torch tensors on the free nodes."""

    def __init__(self, system: System) -> None:
        self.names, self.num_nodes = system.names, system.num_nodes
        self.free, self.held = torch.from_numpy(system.free), torch.from_numpy(system.held)
        self.held_values = torch.from_numpy(system.held_values)
        free = len(system.free)

        def stack(parts: tuple[object, ...], *shape: int) -> Tensor:
            found = [torch.zeros(shape, dtype=torch.float64) for _ in parts]
            for i, part in enumerate(parts):
                if part is not None:
                    dense = part if not hasattr(part, "toarray") else part.toarray()
                    found[i] = torch.as_tensor(dense, dtype=torch.float64)
            return torch.stack(found)

        self.mass = torch.from_numpy(system.mass.toarray())
        self.stiffness = stack(system.stiffness, free, free)
        width = next((part.shape[1] for part in system.load if part is not None), self.num_nodes)
        self.load = stack(system.load, free, width)
        self.source = stack(system.source, free)
        self.silent = not bool(self.source.any()) and not bool(self.held_values.any())

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
        with_one = torch.cat([torch.ones_like(theta[:, :1]), theta], -1)
        stiffness = torch.einsum("ak,kij->aij", with_one, self.stiffness)
        load = torch.einsum("ak,kij->aij", with_one, self.load)
        left = self.mass - 0.5 * grid.dt * stiffness
        right = self.mass + 0.5 * grid.dt * stiffness
        inverse = torch.linalg.inv(left)
        advance = inverse @ right
        num_values, num_sides, leading, _ = force.shape
        looked = observe.to_dense()
        held = self.held_values[:, None] if driven else torch.zeros_like(self.held_values)[:, None]
        constant: Tensor | float = 0.0
        if driven:
            constant = grid.dt * (inverse @ torch.einsum("ak,ki->ai", with_one, self.source).unsqueeze(-1))
        pairs = _pairs(force, grid.steps)
        kicks = 0.5 * grid.dt * (inverse @ load).unsqueeze(1) @ pairs.permute(0, 2, 3, 1)
        start = initial.mT[:, self.free]
        if kicks.shape[1] == 1 and not driven:
            moving = _after_pulse(advance, start, advance @ start + kicks[:, 0], grid.steps)
        else:
            moving = _stepped(advance, start, kicks, constant, grid.steps)
        observed = looked[:, self.free] @ moving + looked[:, self.held] @ held
        states = initial.new_zeros(num_values, 1, self.num_nodes, num_sides)
        if keep:
            states = states.repeat(1, grid.steps + 1, 1, 1)
            states[:, :, self.free] = moving
        shape = (num_values, num_sides, leading, self.num_nodes)
        return observed.permute(0, 3, 1, 2), _Saved(inverse, right, load, states, pairs, shape, grid, looked, driven)

    def adjoint(self, saved: _Saved, weights: Tensor) -> Sensitivities:
        grid, dt = saved.grid, saved.grid.dt
        pulled = saved.observe.mT @ weights.permute(0, 2, 3, 1)
        loads = pulled[:, :, self.free]
        back = saved.inverse.mT
        multiplier = torch.zeros_like(loads)
        carried = torch.zeros_like(loads[:, 0])
        for n in range(grid.steps, 0, -1):
            now = back @ (loads[:, n] + carried)
            multiplier[:, n] = now
            carried = saved.right.mT @ now
        initial = torch.zeros_like(saved.states[:, 0])
        initial[:, self.free] = loads[:, 0] + carried
        moved = multiplier[:, 1:]
        theta = self._theta_gradient(saved, moved)
        half = 0.5 * dt * saved.load.mT.unsqueeze(1) @ moved[:, : saved.pairs.shape[2]]
        return Sensitivities(theta, initial.mT, _unpair(half.permute(0, 3, 1, 2), saved.shape[2]))

    def _theta_gradient(self, saved: _Saved, moved: Tensor) -> Tensor:
        """[A, k]: each coefficient's matrices against one sum of outer products over steps and right-hand sides."""
        dt = saved.grid.dt
        states = saved.states[:, :, self.free]
        both = states[:, 1:] + states[:, :-1]
        outer = moved.permute(0, 2, 1, 3).flatten(2) @ both.permute(0, 2, 1, 3).flatten(2).mT
        found = 0.5 * dt * torch.einsum("aij,kij->ak", outer, self.stiffness)
        early = moved[:, : saved.pairs.shape[2]]
        forced = early.permute(0, 2, 1, 3).flatten(2) @ saved.pairs.permute(0, 3, 2, 1).flatten(2).mT
        found += 0.5 * dt * torch.einsum("aij,kij->ak", forced, self.load)
        if saved.driven:
            found += dt * torch.einsum("ai,ki->ak", moved.sum((1, 3)), self.source)
        return found[:, 1:]


def _stepped(advance: Tensor, start: Tensor, kicks: Tensor, constant: Tensor | float, steps: int) -> Tensor:
    """States [A, N + 1, F, S], step by step."""
    found = start.new_empty(len(start), steps + 1, *start.shape[1:])
    found[:, 0] = now = start
    for n in range(steps):
        now = advance @ now + constant
        if n < kicks.shape[1]:
            now = now + kicks[:, n]
        found[:, n + 1] = now
    return found


def _after_pulse(advance: Tensor, start: Tensor, first: Tensor, steps: int) -> Tensor:
    """States [A, N + 1, F, S] where nothing happens after the first step: powers of the step, doubled each time."""
    found, power = first.unsqueeze(1), advance
    while found.shape[1] < steps:
        found = torch.cat([found, power.unsqueeze(1) @ found[:, : steps - found.shape[1]]], 1)
        power = power @ power
    return torch.cat([start.unsqueeze(1), found], 1)


def _pairs(force: Tensor, steps: int) -> Tensor:
    """f_n + f_{n+1} [A, S, P, J] for the leading P steps, after which it is zero."""
    leading = force.shape[2]
    padded = torch.nn.functional.pad(force, (0, 0, 0, 1)) if leading < steps + 1 else force
    first = force[:, :, : min(leading, steps)]
    return first + padded[:, :, 1 : 1 + first.shape[2]]


def _unpair(gradient: Tensor, leading: int) -> Tensor:
    """The adjoint of `_pairs`: gradient [A, S, P, J] → [A, S, K, J]."""
    found = gradient.new_zeros(*gradient.shape[:2], leading, gradient.shape[-1])
    count = gradient.shape[2]
    found[:, :, :count] += gradient
    later = min(count, leading - 1)
    found[:, :, 1 : 1 + later] += gradient[:, :, :later]
    return found
