"""The contract of a forward solve: what a force is, how a solve is set up, and what comes back.

An initial value problem has many samples and instances on one common axis, τ ∈ [0, 1]. Each instance has its own times:
t = t0 + τ · span, so that one scalar τ serves all, and dy/dτ = span · h.

Shapes: `S` samples, `B` instances, `T` times, `D` states, `L` forces, `G` grid points, `n` points, `d` input
dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from pydantic import Field, PositiveFloat
from torch import Tensor

from distlfm.config import Config
from distlfm.mechanisms.base import Mechanism
from distlfm.mechanisms.priors import Values

Force = Callable[[Tensor], Tensor]
"""All latent forces of every sample and instance, as a function: `n` inputs → values [S, B, L, n].

Inputs are [B, n, d] where the samples share them (times), and [S, B, n, d] where they do not (states). It is a pure
function: solvers ask for any points, in any order, any number of times. A `gp.pathwise.Draw` is one.
"""

FixedMethod = Literal["rk4", "midpoint", "heun2", "heun3", "euler"]
AdaptiveMethod = Literal["dopri5", "bosh3", "adaptive_heun"]
"""Not torchdiffeq's dopri8: on linear equations it misses its own tolerance by a factor of a hundred and more."""


class SolverConfig(Config):
    """How trajectories are computed.

    method: Runge–Kutta with fixed steps (`rk4` is of order 4), or adaptive with `rtol` and `atol`, which hold for each
    sample of each instance by itself.
    steps: how many equal steps an instance's time span is cut into; by default chosen from the data. Adaptive methods
    choose their own steps, and give their states on this grid.
    gradient: `backprop` goes through every step; `adjoint` solves a second equation backwards: less memory, more time.
    """

    method: FixedMethod | AdaptiveMethod = "rk4"
    steps: int | None = Field(default=None, ge=1)
    rtol: PositiveFloat = 1e-6
    atol: PositiveFloat = 1e-8
    gradient: Literal["backprop", "adjoint"] = "backprop"


@dataclass(frozen=True)
class Trajectory:
    """states: [S, B, T, D], always finite; ok: [S, B].

    Where `ok` is False the trajectory has diverged: its states are fillers (its start, or zero) without gradient.
    """

    states: Tensor
    ok: Tensor


VectorField = Callable[[float, Tensor], Tensor]
"""(τ, y [S, B, D]) → dy/dτ [S, B, D]."""


def reads_state(mechanism: Mechanism) -> bool:
    """Whether the force's input depends on the state, found by trial; a force of time alone can be tabulated."""
    generator = torch.Generator().manual_seed(0)
    t = torch.rand(4, generator=generator, dtype=torch.float64)
    one, other = torch.randn(2, 4, mechanism.num_states, generator=generator, dtype=torch.float64)
    return not torch.equal(mechanism.force_input(t, one), mechanism.force_input(t, other))


@dataclass(frozen=True)
class OdeProblem:
    """values: each [B, K] or [S, B, K]; t0, span: [B]; start: [S, B, D].

    held: [S, B] or None: trajectories that stay at their start and pass no gradient on.
    """

    mechanism: Mechanism
    force: Force
    values: Values
    t0: Tensor
    span: Tensor
    start: Tensor
    state_driven: bool
    held: Tensor | None = None

    @staticmethod
    def of(mechanism: Mechanism, force: Force, values: Values, times: Tensor) -> OdeProblem:
        """The problem of each row of `times` [B, T]; the number of samples is what force and values broadcast to."""
        assert times.dim() == 2
        t0, span = times[:, 0], times[:, -1] - times[:, 0]
        start = mechanism.initial_state(values)
        problem = OdeProblem(mechanism, force, values, t0, span, start, reads_state(mechanism))
        first = force(problem._input(t0, start).unsqueeze(-2))
        batch = torch.broadcast_shapes((1, len(times)), start.shape[:-1], first.shape[:-2])
        return replace(problem, start=start.expand(*batch, -1))

    def holding(self, held: Tensor) -> OdeProblem:
        """The same with the trajectories `held` [S, B] at rest."""
        values = {name: _without_gradient(held, value) for name, value in self.values.items()}
        start = _without_gradient(held, self.start)
        start = torch.where(torch.isfinite(start), start, torch.zeros_like(start))
        return replace(self, values=values, start=start, held=held)

    def direct(self, tau: float, y: Tensor) -> Tensor:
        """dy/dτ [S, B, D], with the force asked for at the input of this τ and state."""
        t = self.t0 + tau * self.span
        f = self.force(self._input(t, y).unsqueeze(-2)).squeeze(-1)
        return self._rate(t, y, f, self.values, self.span, self.held)

    def tabulate(self, num_parts: int) -> Tensor:
        """A force of time alone at the ends of `num_parts` equal parts of τ, in one evaluation, [S, B, G, L]."""
        assert not self.state_driven
        return self.force(self._input(self._times(num_parts))).mT

    def tabulated(self, table: Tensor) -> VectorField:
        """`direct` for the τ of a table [S, B, G, L]: a function of τ that knows no other τ than the table's."""
        num_parts = table.shape[-2] - 1
        forces, times = table.unbind(-2), self._times(num_parts).unbind(-1)

        def field(tau: float, y: Tensor) -> Tensor:
            at = round(tau * num_parts)
            assert abs(tau * num_parts - at) < 1e-6, "τ lies between two entries of the table"
            return self._rate(times[at], y, forces[at], self.values, self.span, self.held)

        return field

    def slopes(self, states: Tensor) -> Tensor:
        """dy/dτ [S, B, G, D] at states [S, B, G, D] on a uniform grid, all at once."""
        t = self._times(states.shape[-2] - 1)
        f = self.force(self._input(t, states)).mT
        values = {name: value.unsqueeze(-2) for name, value in self.values.items()}
        held = None if self.held is None else self.held.unsqueeze(-1)
        return self._rate(t, states, f, values, self.span.unsqueeze(-1), held)

    def fractions(self, times: Tensor) -> Tensor:
        """τ [B, T] of each time; an instance without extent is all at τ = 0."""
        extent = torch.where(self.span > 0, self.span, torch.ones_like(self.span))
        return ((times - self.t0.unsqueeze(-1)) / extent.unsqueeze(-1)).clamp(0, 1)

    def _times(self, num_parts: int) -> Tensor:
        """[B, num_parts + 1] from the first time to the last."""
        tau = torch.arange(num_parts + 1, dtype=self.t0.dtype, device=self.t0.device) / num_parts
        return self.t0.unsqueeze(-1) + tau * self.span.unsqueeze(-1)

    def _input(self, t: Tensor, y: Tensor | None = None) -> Tensor:
        """Input [..., d] of the force; of one of time alone, whose state only lends its shape, samples share it."""
        if self.state_driven and y is not None:
            return self.mechanism.force_input(t.expand(y.shape[:-1]), y)
        return self.mechanism.force_input(t, t.new_zeros(*t.shape, self.mechanism.num_states))

    def _rate(self, t: Tensor, y: Tensor, f: Tensor, values: Values, span: Tensor, held: Tensor | None) -> Tensor:
        if held is None:
            return span.unsqueeze(-1) * self.mechanism.vector_field(t, y, f, values)
        y, f = _without_gradient(held, y), _without_gradient(held, f)
        rate = self.mechanism.vector_field(t, y, f, values)
        return torch.where(held.unsqueeze(-1), torch.zeros_like(rate), span.unsqueeze(-1) * rate)


def _without_gradient(held: Tensor, value: Tensor) -> Tensor:
    """`value` with the same numbers; none of its gradient, not even one that is not finite, comes from `held`."""
    return torch.where(held.unsqueeze(-1), value.detach(), value)
