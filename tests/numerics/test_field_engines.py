"""Trajectories of linear PDEs: dense and sparse engines, their gradients, their order."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from distlfm.solvers.fem.spec import split
from distlfm.solvers.field.dense import DenseEngine
from distlfm.solvers.field.engine import Engine, TimeGrid, solve
from distlfm.solvers.field.sparse import SparseEngine
from tests.support.field_problems import line

NAMES = ("sensitivity", "decay", "diffusion", "velocity_0")
GRID = TimeGrid(0.0, 0.07, 6)


def engines() -> list[Engine]:
    system = split(line(np.array([0.0, 0.2, 0.5, 0.65, 1.0]), value=0.3, drift=True), NAMES)
    return [DenseEngine(system), SparseEngine(system)]


def inputs(leading: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream, dtype=torch.float64)

    theta = 0.2 + normal(2, len(NAMES)).abs()
    return theta, normal(2, 3, 5), normal(2, 3, leading, 5), normal(4, 5)


@pytest.mark.parametrize("driven", [True, False])
@pytest.mark.parametrize("leading", [1, 3, 7])
@pytest.mark.parametrize("which", [0, 1], ids=["dense", "sparse"])
def test_gradients_to_force_parameters_and_initial_state_match_finite_differences(
    which: int, leading: int, driven: bool
) -> None:
    theta, initial, force, observe = inputs(leading)
    wanted = [x.requires_grad_() for x in (theta, initial, force)]
    engine = engines()[which]
    torch.autograd.gradcheck(
        lambda a, b, c: solve(engine, a, b, c, GRID, observe, driven=driven), wanted, rtol=1e-6, atol=1e-8
    )


def test_dense_and_sparse_engines_agree() -> None:
    theta, initial, force, observe = inputs(7)
    first, second = (solve(engine, theta, initial, force, GRID, observe) for engine in engines())
    torch.testing.assert_close(first, second, rtol=1e-12, atol=1e-12)


def test_held_nodes_keep_their_value() -> None:
    theta, initial, force, _ = inputs(7)
    observed = solve(engines()[0], theta, initial, force, GRID, torch.eye(5, dtype=torch.float64))
    assert torch.all(observed[..., [0, -1]] == 0.3)
    assert observed[..., 1:-1].std() > 0.1


def test_a_value_in_a_batch_is_solved_as_if_alone() -> None:
    theta, initial, force, observe = inputs(7)
    for engine in engines():
        together = solve(engine, theta, initial, force, GRID, observe)
        alone = solve(engine, theta[1:], initial[1:], force[1:], GRID, observe)
        torch.testing.assert_close(together[1:], alone, rtol=1e-12, atol=1e-12)


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


def test_time_stepping_alone_is_of_second_order() -> None:
    finest = manufactured_error(400, 400)
    errors = [manufactured_error(400, steps) - finest for steps in (5, 10, 20)]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert min(orders) > 1.85
