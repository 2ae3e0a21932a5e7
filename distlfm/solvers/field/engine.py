"""The contract of an engine: it solves many trajectories of one discretised equation, and solves back.

`M ẏ = A(θ) y + B(θ) f + c(θ)` with N steps of length dt, by the grid's scheme (`scheme.py`) in every engine, and y held
fixed at Dirichlet nodes.

Shapes: `A` parameter values, `S` right-hand sides each, `J` nodes, `K ≤ N + 1` leading times at which the force is not
zero, `O` places at which the state is observed, `k` coefficients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from distlfm.solvers.field.scheme import CRANK_NICOLSON, Scheme


@dataclass(frozen=True)
class TimeGrid:
    """N even steps of length dt from `start`."""

    start: float
    dt: float
    steps: int
    scheme: Scheme = CRANK_NICOLSON

    @property
    def times(self) -> Tensor:
        """[N + 1]."""
        return self.start + self.dt * torch.arange(self.steps + 1, dtype=torch.float64)


class Inputs(NamedTuple):
    """What trajectories are made of, or the gradients by it. theta: [A, k]; initial: [A, S, J]; force: [A, S, K, J]."""

    theta: Tensor
    initial: Tensor
    force: Tensor


class Engine(ABC):
    """Solves trajectories of one problem. `observe` [O, J] says where the state is looked at."""

    names: tuple[str, ...]
    num_nodes: int
    silent: bool = False
    """Whether a field that starts at zero stays there without a force."""

    @abstractmethod
    def forward(
        self, given: Inputs, grid: TimeGrid, observe: Tensor, *, driven: bool, keep: bool
    ) -> tuple[Tensor, Any]:
        """Observed states [A, S, N + 1, O], and whatever `adjoint` needs.

        `driven=False` leaves out the source c and takes zero at Dirichlet nodes: the part that is linear in force and
        initial state. `keep=False`: no adjoint will be asked for.
        """

    @abstractmethod
    def adjoint(self, saved: Any, weights: Tensor) -> Inputs:
        """The gradients of Σ weights · observed; weights: [A, S, N + 1, O]."""


class _Trajectory(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        theta: Tensor,
        initial: Tensor,
        force: Tensor,
        engine: Engine,
        grid: TimeGrid,
        observe: Tensor,
        driven: bool,
    ) -> Tensor:
        keep = any(ctx.needs_input_grad)
        observed, saved = engine.forward(Inputs(theta, initial, force), grid, observe, driven=driven, keep=keep)
        ctx.engine, ctx.saved = engine, saved
        return observed

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, weights: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.engine.adjoint(ctx.saved, weights), None, None, None, None


def solve(
    engine: Engine,
    theta: Tensor,
    initial: Tensor,
    force: Tensor,
    grid: TimeGrid,
    observe: Tensor,
    *,
    driven: bool = True,
) -> Tensor:
    """Observed states [A, S, N + 1, O], differentiable once in theta [A, k], initial [A, S, J], force [A, S, K, J]."""
    observed: Tensor = _Trajectory.apply(theta, initial, force, engine, grid, observe, driven)  # type: ignore[no-untyped-call]
    return observed
