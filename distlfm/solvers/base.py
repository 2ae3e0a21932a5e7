"""The contract of a forward solve: what a force is, how a solve is set up, and what comes back.

Shapes: `S` samples, `B` instances, `T` times, `D` states, `L` forces, `n` points, `d` input dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, PositiveFloat
from torch import Tensor

from distlfm.config import Config

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
