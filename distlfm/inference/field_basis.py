"""Inducing points of a field in time and in space, and the basis that they span.

Shapes: `A` rows of unknowns, `n` inputs, `M` inducing points, `M_t`, `M_x` of them in time and space, `d` space
dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.gp.inducing import place_on_points
from distlfm.gp.kernels import Hyper
from distlfm.gp.linalg import safe_cholesky
from distlfm.solvers.field.discretised import Discretised
from distlfm.solvers.field.engine import TimeGrid

SMALLEST = 1e-12
"""Share of the variance that is left open at least; below it rounding rules."""


@dataclass(frozen=True)
class Inducing:
    """times: [M_t]; places: [M_x, d]."""

    times: Tensor
    places: Tensor

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.times), len(self.places)


def place_inducing(discretised: Discretised, grid: TimeGrid, num_times: int, num_places: int) -> Inducing:
    """Even in time; even on a line and spread over the nodes elsewhere."""
    times = torch.linspace(grid.start, grid.start + grid.dt * grid.steps, num_times, dtype=torch.float64)
    nodes = torch.from_numpy(discretised.nodes)
    if nodes.shape[1] == 1:
        low, high = float(nodes.min()), float(nodes.max())
        return Inducing(times, torch.linspace(low, high, num_places, dtype=torch.float64).unsqueeze(-1))
    count = min(num_places, len(nodes))
    everywhere = torch.ones(1, len(nodes), dtype=torch.bool)
    return Inducing(times, place_on_points(nodes.unsqueeze(0), everywhere, num_inducing=count)[0])


def whitened_basis(
    correlation: Callable[[Hyper, Tensor, Tensor], Tensor], hyper: Hyper, at: Tensor, inducing: Tensor
) -> Tensor:
    """Correlation with the inducing points, whitened: [A, n, M]."""
    factor, _ = safe_cholesky(correlation(hyper, inducing, inducing))
    found: Tensor = torch.linalg.solve_triangular(factor, correlation(hyper, inducing, at), upper=False).mT
    return found


def left_open(basis: Tensor) -> Tensor:
    """Deviation [A, n, 1] of what a whitened basis leaves open of a unit variance."""
    return (1 - basis.square().sum(-1, keepdim=True)).clamp_min(SMALLEST).sqrt()
