"""Trajectories of linear PDEs on elements; what holds of every engine and scheme is in tests/contracts."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from torch import Tensor

from distlfm.solvers.fem.spec import split
from distlfm.solvers.field.dense import DenseEngine
from distlfm.solvers.field.engine import TimeGrid, solve
from tests.support.field_problems import line

NAMES = ("sensitivity", "decay", "diffusion", "velocity_0")
GRID = TimeGrid(0.0, 0.07, 6)


def inputs(leading: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream, dtype=torch.float64)

    theta = 0.2 + normal(2, len(NAMES)).abs()
    return theta, normal(2, 3, 5), normal(2, 3, leading, 5)


def test_held_nodes_keep_their_value() -> None:
    system = split(line(np.array([0.0, 0.2, 0.5, 0.65, 1.0]), value=0.3, drift=True), NAMES)
    theta, initial, force = inputs(7)
    observed = solve(DenseEngine(system), theta, initial, force, GRID, torch.eye(5, dtype=torch.float64))
    assert torch.all(observed[..., [0, -1]] == 0.3)
    assert observed[..., 1:-1].std() > 0.1


def manufactured_error(cells: int, steps: int) -> float:
    """Largest error for y = sin(πx) sin(3t), driven by the force that makes it the solution."""
    nodes = np.linspace(0.0, 1.0, cells + 1)
    engine = DenseEngine(split(line(nodes), ("sensitivity", "decay", "diffusion")))
    grid = TimeGrid(0.0, 1.0 / steps, steps)
    shape = torch.sin(math.pi * torch.from_numpy(nodes))
    wave, slope = torch.sin(3 * grid.times), 3 * torch.cos(3 * grid.times)
    force = (slope + (0.4 + 0.1 * math.pi**2) * wave)[:, None] * shape
    theta = torch.tensor([[1.0, 0.4, 0.1]], dtype=torch.float64)
    start = torch.zeros(1, 1, cells + 1, dtype=torch.float64)
    found = solve(engine, theta, start, force[None, None], grid, torch.eye(cells + 1, dtype=torch.float64))
    return float((found[0, 0] - wave[:, None] * shape).abs().max())


def test_crank_nicolson_and_linear_elements_are_of_second_order() -> None:
    errors = [manufactured_error(size, size) for size in (10, 20, 40)]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert min(orders) > 1.9
