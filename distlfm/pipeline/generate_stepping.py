"""Many fields on one mesh, each with coefficients of its own and one force, solved forward.

The scheme is that of every engine (`solvers/field/engine.py`). An engine steps all coefficients together, for many
right-hand sides each and with what an adjoint needs. With one right-hand side, and on a small mesh, there are faster
ways: where all parts of the equation have the same modes (reaction and diffusion do) each mode is stepped on its own;
elsewhere matrices are taken one by one, so that each stays in the cache.

Shapes: `B` fields, `J` nodes, `F` free ones and as many modes, `N` steps, `O` places, `k` coefficients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.solvers.field.dense import DenseEngine
from distlfm.solvers.field.engine import Engine, TimeGrid, solve

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
        half = 0.5 * grid.dt * torch.einsum("bk,kij->bij", with_one, engine.stiffness)
        load = torch.einsum("bk,kij->bij", with_one, engine.load)
        source = grid.dt * torch.einsum("bk,ki->bi", with_one, engine.source)
        right = torch.cat([engine.mass + half, load, source.unsqueeze(-1)], -1)
        sizes = [len(engine.free), load.shape[-1], 1]
        advance, driven, constant = torch.linalg.solve(engine.mass - half, right).split(sizes, -1)
        kicks = _pairs(force, grid) @ driven.mT + constant.mT
        rows = zip(advance.contiguous(), start[:, engine.free], kicks, strict=True)
        states = torch.stack([self._stepped(*row) for row in rows])
        return _seen(engine, states, observe.to_dense()[:, engine.free], observe)

    @staticmethod
    def _stepped(advance: Tensor, start: Tensor, kicks: Tensor) -> Tensor:
        """States [N + 1, F] of y ← advance · y + kick; advance: [F, F], kicks: [N, F]."""
        found = [start]
        for kick in kicks.unbind(0):
            found.append(torch.addmv(kick, advance, found[-1]))
        return torch.stack(found)


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
        half = 0.5 * grid.dt * (with_one @ self.rates)
        pairs = _pairs(force, grid)
        kicks = (grid.dt * (with_one @ self.source)).unsqueeze(1)
        for weight, load in zip(with_one.unbind(-1), self.load, strict=True):
            if bool(load.any()):
                kicks = kicks + weight[:, None, None] * (pairs @ load.mT)
        decay, kicks = (1 + half) / (1 - half), kicks.expand(-1, grid.steps, -1) / (1 - half).unsqueeze(1)
        state = start[:, engine.free] @ engine.mass @ self.shapes
        states = [state]
        for kick in kicks.unbind(1):
            state = torch.addcmul(kick, decay, state)
            states.append(state)
        looked = observe.to_dense()
        return _seen(engine, torch.stack(states, 1), looked[:, engine.free] @ self.shapes, observe)


def _with_one(theta: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(theta[:, :1]), theta], -1)


def _pairs(force: Tensor, grid: TimeGrid) -> Tensor:
    """dt/2 (f_n + f_{n+1}), [B, N, J]."""
    return 0.5 * grid.dt * (force[:, :-1] + force[:, 1:])


def _seen(engine: DenseEngine, states: Tensor, looked: Tensor, observe: Tensor) -> Tensor:
    """states [B, N + 1, F] as looked [O, F] sees them, with the nodes that are held."""
    return states @ looked.mT + observe.to_dense()[:, engine.held] @ engine.held_values
