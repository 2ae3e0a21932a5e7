"""Small meshes: dense matrices, batched over parameter values; a step is one product with a stored inverse.

The engine steps all coefficients together, for many right-hand sides each and with what an adjoint needs. Many fields
on one mesh, each with coefficients of its own and one force, are solved forward by the same scheme
(`solvers/field/scheme.py`) in faster ways: where all parts of the equation have the same modes (reaction and diffusion
do) each mode is stepped on its own; elsewhere matrices are taken one by one, so that each stays in the cache.

Shapes: `B` fields, `J` nodes, `F` free ones and as many modes, `N` steps, `O` places, `k` coefficients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.solvers.fem.spec import System
from distlfm.solvers.field.engine import Engine, Sensitivities, TimeGrid, solve
from distlfm.solvers.field.scheme import Step, sweep, sweep_back


@dataclass(frozen=True)
class _Step(Step[Tensor]):
    """inverse: [A, F, F] of the left matrix; matrix: [A, F, F], the right one."""

    inverse: Tensor
    matrix: Tensor

    def solve(self, side: Tensor) -> Tensor:
        return self.inverse @ side

    def solve_transposed(self, side: Tensor) -> Tensor:
        return self.inverse.mT @ side

    def right(self, state: Tensor) -> Tensor:
        return self.matrix @ state

    def right_transposed(self, multiplier: Tensor) -> Tensor:
        return self.matrix.mT @ multiplier


@dataclass(frozen=True)
class _Saved:
    """states: [A, N + 1, J, S], free nodes only; mixed: [A, S, P, J], the force that each step takes."""

    step: _Step
    load: Tensor
    states: Tensor
    mixed: Tensor
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
        with_one, scheme = _with_one(theta), grid.scheme
        stiffness = torch.einsum("ak,kij->aij", with_one, self.stiffness)
        load = torch.einsum("ak,kij->aij", with_one, self.load)
        inverse = torch.linalg.inv(scheme.left(self.mass, stiffness, grid.dt))
        step = _Step(inverse, scheme.right(self.mass, stiffness, grid.dt))
        advance = step.solve(step.matrix)
        num_values, num_sides, leading, _ = force.shape
        looked = observe.to_dense()
        held = self.held_values[:, None] if driven else torch.zeros_like(self.held_values)[:, None]
        constant: Tensor | float = 0.0
        if driven:
            constant = grid.dt * (inverse @ torch.einsum("ak,ki->ai", with_one, self.source).unsqueeze(-1))
        mixed = scheme.mix(force, grid.steps)
        kicks = grid.dt * (inverse @ load).unsqueeze(1) @ mixed.permute(0, 2, 3, 1)
        start = initial.mT[:, self.free]
        if kicks.shape[1] == 1 and not driven:
            moving = _after_pulse(advance, start, advance @ start + kicks[:, 0], grid.steps)
        else:
            each = [kick + constant for kick in kicks.unbind(1)] + [constant] * (grid.steps - kicks.shape[1])
            moving = torch.stack(list(sweep([lambda y, kick: advance @ y + kick] * grid.steps, start, each)), 1)
        observed = looked[:, self.free] @ moving + looked[:, self.held] @ held
        states = initial.new_zeros(num_values, 1, self.num_nodes, num_sides)
        if keep:
            states = states.repeat(1, grid.steps + 1, 1, 1)
            states[:, :, self.free] = moving
        shape = (num_values, num_sides, leading, self.num_nodes)
        return observed.permute(0, 3, 1, 2), _Saved(step, load, states, mixed, shape, grid, looked, driven)

    def adjoint(self, saved: _Saved, weights: Tensor) -> Sensitivities:
        grid, dt = saved.grid, saved.grid.dt
        pulled = saved.observe.mT @ weights.permute(0, 2, 3, 1)
        loads = pulled[:, :, self.free]
        moved = torch.empty_like(loads[:, 1:])
        initial = torch.zeros_like(saved.states[:, 0])

        def visit(n: int, multiplier: Tensor) -> None:
            moved[:, n] = multiplier

        initial[:, self.free] = sweep_back([saved.step] * grid.steps, loads.flip(1).unbind(1), visit)
        theta = self._theta_gradient(saved, moved)
        pushed = (dt * saved.load.mT.unsqueeze(1) @ moved[:, : saved.mixed.shape[2]]).permute(0, 3, 1, 2)
        force = pushed.new_zeros(*pushed.shape[:2], saved.shape[2], pushed.shape[-1])
        return Sensitivities(theta, initial.mT, grid.scheme.mix_transposed(pushed, force))

    def _theta_gradient(self, saved: _Saved, moved: Tensor) -> Tensor:
        """[A, k]: each coefficient's matrices against one sum of outer products over steps and right-hand sides."""
        dt = saved.grid.dt
        states = saved.grid.scheme.mix(saved.states[:, :, self.free].permute(0, 2, 1, 3), saved.grid.steps)
        outer = moved.permute(0, 2, 1, 3).flatten(2) @ states.flatten(2).mT
        found = dt * torch.einsum("aij,kij->ak", outer, self.stiffness)
        early = moved[:, : saved.mixed.shape[2]]
        forced = early.permute(0, 2, 1, 3).flatten(2) @ saved.mixed.permute(0, 3, 2, 1).flatten(2).mT
        found += dt * torch.einsum("aij,kij->ak", forced, self.load)
        if saved.driven:
            found += dt * torch.einsum("ai,ki->ak", moved.sum((1, 3)), self.source)
        return found[:, 1:]


def _after_pulse(advance: Tensor, start: Tensor, first: Tensor, steps: int) -> Tensor:
    """States [A, N + 1, F, S] where nothing happens after the first step: powers of the step, doubled each time."""
    found, power = first.unsqueeze(1), advance
    while found.shape[1] < steps:
        found = torch.cat([found, power.unsqueeze(1) @ found[:, : steps - found.shape[1]]], 1)
        power = power @ power
    return torch.cat([start.unsqueeze(1), found], 1)


SAME_MODES = 1e-10
"""Parts of an equation have the same modes if what couples these is below this share of the fastest rate."""


class Stepper(ABC):
    """Solves fields with one force each."""

    @abstractmethod
    def __call__(self, theta: Tensor, start: Tensor, force: Tensor, grid: TimeGrid, observe: Tensor) -> Tensor:
        """Observed states [B, N + 1, O] of theta [B, k], start [B, J], force [B, N + 1, J]; observe: [O, J], sparse."""


def stepper_of(engine: Engine) -> Stepper:
    """The fastest way for an engine's equation."""
    if not isinstance(engine, DenseEngine):
        return ByEngine(engine)
    return Modal.of(engine) or OneByOne(engine)


@dataclass(frozen=True)
class ByEngine(Stepper):
    """As the engine does it."""

    engine: Engine

    def __call__(self, theta: Tensor, start: Tensor, force: Tensor, grid: TimeGrid, observe: Tensor) -> Tensor:
        return solve(self.engine, theta, start.unsqueeze(1), force.unsqueeze(1), grid, observe)[:, 0]


@dataclass(frozen=True)
class OneByOne(Stepper):
    """A dense matrix a field, one after another."""

    engine: DenseEngine

    def __call__(self, theta: Tensor, start: Tensor, force: Tensor, grid: TimeGrid, observe: Tensor) -> Tensor:
        engine, with_one = self.engine, _with_one(theta)
        stiffness, scheme = torch.einsum("bk,kij->bij", with_one, engine.stiffness), grid.scheme
        load = torch.einsum("bk,kij->bij", with_one, engine.load)
        source = grid.dt * torch.einsum("bk,ki->bi", with_one, engine.source)
        right = torch.cat([scheme.right(engine.mass, stiffness, grid.dt), load, source.unsqueeze(-1)], -1)
        sizes = [len(engine.free), load.shape[-1], 1]
        advance, driven, constant = torch.linalg.solve(scheme.left(engine.mass, stiffness, grid.dt), right).split(
            sizes, -1
        )
        kicks = grid.dt * scheme.mix(force, grid.steps) @ driven.mT + constant.mT
        rows = zip(advance.contiguous(), start[:, engine.free], kicks, strict=True)
        states = torch.stack([self._stepped(*row) for row in rows])
        return _seen(engine, states, observe.to_dense()[:, engine.free], observe)

    @staticmethod
    def _stepped(advance: Tensor, start: Tensor, kicks: Tensor) -> Tensor:
        """States [N + 1, F] of y ← advance · y + kick; advance: [F, F], kicks: [N, F]."""
        steps = [lambda y, kick: torch.addmv(kick, advance, y)] * len(kicks)
        return torch.stack(list(sweep(steps, start, kicks.unbind(0))))


@dataclass(frozen=True)
class Modal(Stepper):
    """Every mode on its own. shapes: [F, F], a mode a column, orthonormal by the mass matrix.

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
        decay, kicks = (
            grid.scheme.right(1.0, rates, grid.dt) / left,
            kicks.expand(-1, grid.steps, -1) / left.unsqueeze(1),
        )
        state = start[:, engine.free] @ engine.mass @ self.shapes
        states = list(sweep([lambda y, kick: torch.addcmul(kick, decay, y)] * grid.steps, state, kicks.unbind(1)))
        looked = observe.to_dense()
        return _seen(engine, torch.stack(states, 1), looked[:, engine.free] @ self.shapes, observe)


def _with_one(theta: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(theta[:, :1]), theta], -1)


def _seen(engine: DenseEngine, states: Tensor, looked: Tensor, observe: Tensor) -> Tensor:
    """states [B, N + 1, F] as looked [O, F] sees them, with the nodes that are held."""
    return states @ looked.mT + observe.to_dense()[:, engine.held] @ engine.held_values
