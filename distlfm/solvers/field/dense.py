"""Small meshes: dense matrices, batched over parameter values; a step is one product with a stored inverse.

The engine steps all coefficients together, for many right-hand sides each and with what an adjoint needs. Many fields
on one mesh, each with coefficients of its own and one force, are solved forward by the same scheme
(`solvers/field/scheme.py`) in faster ways: where all parts of the equation have the same modes (reaction and diffusion
do) each mode is stepped on its own; elsewhere matrices are taken one by one, so that each stays in the cache.

Shapes: `B` fields, `J` nodes, `F` free ones and as many modes, `N` steps, `O` places, `k` coefficients.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from distlfm.solvers.fem.spec import AssembledSystem
from distlfm.solvers.field.engine import Engine, Inputs, TimeGrid, solve
from distlfm.solvers.field.scheme import Step, sweep, sweep_back


@dataclass(frozen=True)
class _Saved:
    """back: the adjoint of a step; states: [A, N + 1, F, S]; mixed: [A, S, P, J], forces of steps; leading: K."""

    back: Step[Tensor]
    load: Tensor
    states: Tensor
    mixed: Tensor
    leading: int
    grid: TimeGrid
    observe: Tensor
    driven: bool


class DenseEngine(Engine):
    """Everything as torch tensors on the free nodes."""

    def __init__(self, system: AssembledSystem) -> None:
        self.names, self.num_nodes = system.names, system.num_nodes
        self.free, self.held = torch.from_numpy(system.free), torch.from_numpy(system.held)
        self.held_values = torch.from_numpy(system.held_values)
        self.mass = torch.from_numpy(system.mass.toarray())
        self.stiffness = torch.stack([torch.from_numpy(part.toarray()) for part in system.stiffness])
        self.load = torch.stack([torch.from_numpy(part.toarray()) for part in system.load])
        self.source = torch.from_numpy(np.stack(system.source))
        self.silent = system.silent

    def at(self, theta: Tensor) -> tuple[Tensor, ...]:
        """Stiffness [A, F, F], load [A, F, J] and source [A, F] at coefficients theta [A, k]."""
        with_one = _with_one(theta)
        return tuple(torch.einsum("ak,k...->a...", with_one, part) for part in (self.stiffness, self.load, self.source))

    def forward(
        self, given: Inputs, grid: TimeGrid, observe: Tensor, *, driven: bool, keep: bool
    ) -> tuple[Tensor, _Saved]:
        theta, initial, force = given
        scheme, (stiffness, load, source) = grid.scheme, self.at(theta)
        inverse = torch.linalg.inv(scheme.left(self.mass, stiffness, grid.dt))
        right = scheme.right(self.mass, stiffness, grid.dt)
        advance, back = inverse @ right, Step(inverse.mT.matmul, right.mT.matmul)
        looked = observe.to_dense()
        held = (self.held_values if driven else torch.zeros_like(self.held_values))[:, None]
        constant: Tensor | float = 0.0
        if driven:
            constant = grid.dt * (inverse @ source.unsqueeze(-1))
        mixed = scheme.mix(force, grid.steps)
        kicks = grid.dt * (inverse @ load).unsqueeze(1) @ mixed.permute(0, 2, 3, 1)
        start = initial.mT[:, self.free]
        if kicks.shape[1] == 1 and not driven:
            moving = _after_pulse(advance, start, advance @ start + kicks[:, 0], grid.steps)
        else:
            each = [kick + constant for kick in kicks.unbind(1)] + [constant] * (grid.steps - kicks.shape[1])
            moving = torch.stack(list(sweep([lambda y, kick: advance @ y + kick] * grid.steps, start, each)), 1)
        observed = looked[:, self.free] @ moving + looked[:, self.held] @ held
        states = moving if keep else moving.new_zeros(0)
        return observed.permute(0, 3, 1, 2), _Saved(back, load, states, mixed, force.shape[2], grid, looked, driven)

    def adjoint(self, saved: _Saved, weights: Tensor) -> Inputs:
        grid, dt = saved.grid, saved.grid.dt
        pulled = saved.observe.mT @ weights.permute(0, 2, 3, 1)
        loads = pulled[:, :, self.free]
        moved = torch.empty_like(loads[:, 1:])
        initial = torch.zeros_like(pulled[:, 0])

        def visit(n: int, multiplier: Tensor) -> None:
            moved[:, n] = multiplier

        initial[:, self.free] = sweep_back([saved.back] * grid.steps, loads.flip(1).unbind(1), visit)
        theta = self._theta_gradient(saved, moved)
        pushed = (dt * saved.load.mT.unsqueeze(1) @ moved[:, : saved.mixed.shape[2]]).permute(0, 3, 1, 2)
        force = pushed.new_zeros(*pushed.shape[:2], saved.leading, pushed.shape[-1])
        return Inputs(theta, initial.mT, grid.scheme.mix_transposed(pushed, force))

    def _theta_gradient(self, saved: _Saved, moved: Tensor) -> Tensor:
        """[A, k]: each coefficient's matrices against one sum of outer products over steps and right-hand sides."""
        dt = saved.grid.dt
        states = saved.grid.scheme.mix(saved.states.permute(0, 2, 1, 3), saved.grid.steps)
        outer = moved.permute(0, 2, 1, 3).flatten(2) @ states.flatten(2).mT
        gradient = dt * torch.einsum("aij,kij->ak", outer, self.stiffness)
        early = moved[:, : saved.mixed.shape[2]]
        forced = early.permute(0, 2, 1, 3).flatten(2) @ saved.mixed.permute(0, 3, 2, 1).flatten(2).mT
        gradient += dt * torch.einsum("aij,kij->ak", forced, self.load)
        if saved.driven:
            gradient += dt * torch.einsum("ai,ki->ak", moved.sum((1, 3)), self.source)
        return gradient[:, 1:]


def _after_pulse(advance: Tensor, start: Tensor, first: Tensor, steps: int) -> Tensor:
    """States [A, N + 1, F, S] where nothing happens after the first step: powers of the step, doubled each time."""
    answers, power = first.unsqueeze(1), advance
    while answers.shape[1] < steps:
        answers = torch.cat([answers, power.unsqueeze(1) @ answers[:, : steps - answers.shape[1]]], 1)
        power = power @ power
    return torch.cat([start.unsqueeze(1), answers], 1)


SAME_MODES = 1e-10
"""Parts of an equation have the same modes if what couples these is below this share of the fastest rate."""


BatchSolver = Callable[[Tensor, Tensor, Tensor, TimeGrid, Tensor], Tensor]
"""Solves fields with one force each: observed states [B, N + 1, O] of theta [B, k], start [B, J], force [B, N + 1, J],

a grid, and observe [O, J], sparse."""


def batch_solver_of(engine: Engine) -> BatchSolver:
    """The fastest way for an engine's equation."""
    if not isinstance(engine, DenseEngine):
        return ByEngine(engine)
    return Modal.of(engine) or OneByOne(engine)


@dataclass(frozen=True)
class ByEngine:
    """As the engine does it."""

    engine: Engine

    def __call__(self, theta: Tensor, start: Tensor, force: Tensor, grid: TimeGrid, observe: Tensor) -> Tensor:
        return solve(self.engine, theta, start.unsqueeze(1), force.unsqueeze(1), grid, observe)[:, 0]


@dataclass(frozen=True)
class OneByOne:
    """One dense matrix per field, one after another."""

    engine: DenseEngine

    def __call__(self, theta: Tensor, start: Tensor, force: Tensor, grid: TimeGrid, observe: Tensor) -> Tensor:
        engine, scheme = self.engine, grid.scheme
        stiffness, load, source = engine.at(theta)
        right = torch.cat([scheme.right(engine.mass, stiffness, grid.dt), load, grid.dt * source.unsqueeze(-1)], -1)
        sizes = [len(engine.free), load.shape[-1], 1]
        solved = torch.linalg.solve(scheme.left(engine.mass, stiffness, grid.dt), right)
        advance, driven, constant = solved.split(sizes, -1)
        kicks = grid.dt * scheme.mix(force, grid.steps) @ driven.mT + constant.mT
        rows = zip(advance.contiguous(), start[:, engine.free], map(torch.unbind, kicks), strict=True)
        states = torch.stack([torch.stack(_stepped(torch.addmv, *row)) for row in rows])
        return _seen(engine, states, observe.to_dense()[:, engine.free], observe)


@dataclass(frozen=True)
class Modal:
    """Every mode on its own. shapes: [F, F], one mode per column, orthonormal by the mass matrix.

    rates: [k + 1, F]; load: [k + 1, F, J]; source: [k + 1, F]; index 0 is the part without a coefficient.
    """

    engine: DenseEngine
    shapes: Tensor
    rates: Tensor
    load: Tensor
    source: Tensor

    @staticmethod
    def of(engine: DenseEngine) -> Modal | None:
        """The common modes of all parts, found from a combination of them; None where they have none."""
        factor = torch.linalg.cholesky(engine.mass)
        scaled = torch.linalg.solve_triangular(factor, engine.stiffness, upper=False)
        scaled = torch.linalg.solve_triangular(factor, scaled.mT, upper=False)
        weights = torch.rand(len(scaled), generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
        size = scaled.abs().amax((1, 2)).clamp_min(1e-300)
        mixed = torch.einsum("k,kij->ij", weights / size, scaled)
        turned = torch.linalg.eigh(mixed + mixed.mT).eigenvectors
        within = turned.mT @ scaled @ turned
        rates = torch.diagonal(within, dim1=-2, dim2=-1)
        coupling = (within - torch.diag_embed(rates)).abs().amax((1, 2))
        if bool((coupling > SAME_MODES * size).any()):
            return None
        shapes = torch.linalg.solve_triangular(factor.mT, turned, upper=True)
        return Modal(engine, shapes, rates, shapes.mT @ engine.load, engine.source @ shapes)

    def __call__(self, theta: Tensor, start: Tensor, force: Tensor, grid: TimeGrid, observe: Tensor) -> Tensor:
        engine, with_one = self.engine, _with_one(theta)
        rates, mixed = with_one @ self.rates, grid.dt * grid.scheme.mix(force, grid.steps)
        left = grid.scheme.left(1.0, rates, grid.dt)
        kicks = (grid.dt * (with_one @ self.source)).unsqueeze(1)
        for weight, load in zip(with_one.unbind(-1), self.load, strict=True):
            if bool(load.any()):
                kicks = kicks + weight[:, None, None] * (mixed @ load.mT)
        decay = grid.scheme.right(1.0, rates, grid.dt) / left
        kicks = kicks.expand(-1, grid.steps, -1) / left.unsqueeze(1)
        state = start[:, engine.free] @ engine.mass @ self.shapes
        states = torch.stack(_stepped(torch.addcmul, decay, state, kicks.unbind(1)), 1)
        return _seen(engine, states, observe.to_dense()[:, engine.free] @ self.shapes, observe)


def _stepped(add: Callable[..., Tensor], advance: Tensor, start: Tensor, kicks: tuple[Tensor, ...]) -> list[Tensor]:
    """All N + 1 states of y ← advance · y + kick; `add` is the function of torch that does both at once."""
    return list(sweep([lambda y, kick: add(kick, advance, y)] * len(kicks), start, kicks))


def _with_one(theta: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(theta[:, :1]), theta], -1)


def _seen(engine: DenseEngine, states: Tensor, looked: Tensor, observe: Tensor) -> Tensor:
    """states [B, N + 1, F] as looked [O, F] sees them, with the nodes that are held."""
    return states @ looked.mT + observe.to_dense()[:, engine.held] @ engine.held_values
