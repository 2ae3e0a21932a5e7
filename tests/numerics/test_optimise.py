"""Batched minimisation: every row converges, stops or fails by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from distlfm.inference.curvature import find_modes, hessian, root_of_inverse
from distlfm.inference.optimise import Objective, OptimiserConfig, Optimum, Status, minimise

TIGHT = OptimiserConfig(iterations=400, gradient=1e-6, change=0.0, patience=400)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


class Quadratic:
    """½ (z − centre)ᵀ H (z − centre) with a condition number of its own for each row."""

    def __init__(self, conditions: list[float], size: int = 6) -> None:
        turn = torch.linalg.qr(normal(len(conditions), size, size, seed=1))[0]
        spread = torch.tensor(conditions, dtype=torch.float64).log()[:, None] * torch.linspace(0, 1, size).double()
        self.hessian = turn @ torch.diag_embed(spread.exp()) @ turn.mT
        self.centre = normal(len(conditions), size, seed=2)
        self.rows_seen: list[list[int]] = []

    def __call__(self, z: Tensor, rows: Tensor) -> Tensor:
        self.rows_seen.append(rows.tolist())
        off = z - self.centre[rows]
        return 0.5 * (off.unsqueeze(-2) @ self.hessian[rows] @ off.unsqueeze(-1)).squeeze((-2, -1))


def rosenbrock(z: Tensor, rows: Tensor) -> Tensor:
    """Each row has its own valley, from gentle to steep, with the minimum at (a, a²)."""
    a = 1 + 0.2 * rows
    steep = 10.0 ** (rows % 3)
    return (a - z[:, 0]).square() + steep * (z[:, 1] - z[:, 0].square()).square()


def with_a_bad_row(objective: Objective, bad: int, value: float) -> Objective:
    def spoiled(z: Tensor, rows: Tensor) -> Tensor:
        good = objective(z, rows)
        return torch.where(rows == bad, torch.full_like(good, value), good)

    return spoiled


@pytest.mark.parametrize("minimiser", [minimise, find_modes])
def test_quadratics_of_any_condition_are_solved(minimiser: type) -> None:
    problem = Quadratic([1.0, 1e2, 1e4])
    found: Optimum = minimiser(problem, torch.zeros(3, 6, dtype=torch.float64), TIGHT)
    assert found.status.tolist() == [Status.CONVERGED] * 3
    torch.testing.assert_close(found.z, problem.centre, rtol=0, atol=1e-4)


def test_curvature_finds_modes_of_condition_1e8_to_a_part_of_their_width() -> None:
    """One direction is determined ten thousand times better than another: L-BFGS alone would creep."""
    problem = Quadratic([1e8, 1e8])
    options = OptimiserConfig()
    found = find_modes(problem, torch.zeros(2, 6, dtype=torch.float64), options)
    assert found.status.tolist() == [Status.CONVERGED] * 2
    off = found.z - problem.centre
    gradient = (problem.hessian @ off.unsqueeze(-1)).squeeze(-1)
    distance = (gradient * off).sum(-1).sqrt()  # in posterior standard deviations
    assert (distance < 6**0.5 * options.distance).all()
    assert found.iterations.max() < 200


def test_every_rosenbrock_valley_is_followed_to_its_own_end() -> None:
    start = torch.tensor([[-1.2, 1.0]], dtype=torch.float64).repeat(6, 1)
    found = minimise(rosenbrock, start, TIGHT)
    assert found.status.tolist() == [Status.CONVERGED] * 6
    a = 1 + 0.2 * torch.arange(6, dtype=torch.float64)
    torch.testing.assert_close(found.z, torch.stack([a, a.square()], -1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("minimiser", [minimise, find_modes])
def test_a_batch_is_its_rows_one_by_one(minimiser: type) -> None:
    start = 2 * normal(5, 2, seed=3)
    options = OptimiserConfig()
    together: Optimum = minimiser(rosenbrock, start, options)
    for row in range(5):
        alone = minimiser(lambda z, rows, row=row: rosenbrock(z, rows + row), start[row : row + 1], options)
        torch.testing.assert_close(alone.z[0], together.z[row], rtol=0, atol=1e-12)
        assert alone.status[0] == together.status[row]
        assert alone.iterations[0] == together.iterations[row]


@pytest.mark.parametrize("minimiser", [minimise, find_modes])
@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=["nan", "inf"])
def test_a_row_without_a_finite_value_is_flagged_and_its_neighbours_do_not_notice(
    minimiser: type, value: float
) -> None:
    start = normal(4, 2, seed=4) + 0.5
    options = OptimiserConfig()
    clean: Optimum = minimiser(rosenbrock, start, options)
    found: Optimum = minimiser(with_a_bad_row(rosenbrock, 1, value), start, options)
    assert found.status[1] == Status.DIVERGED
    assert torch.equal(found.z[1], start[1])
    others = [0, 2, 3]
    assert torch.equal(found.z[others], clean.z[others])
    assert torch.equal(found.status[others], clean.status[others])


def test_a_wall_of_infinities_is_backed_away_from() -> None:
    """−log of a triangular density: infinite outside (0, 1), and the first full step goes outside."""

    def walled(z: Tensor, rows: Tensor) -> Tensor:
        inside = (z > 0) & (z < 1)
        safe = torch.where(inside, z, 0.5)
        return torch.where(inside, -(safe.log() + 2 * torch.log1p(-safe)), torch.inf).sum(-1)

    found = minimise(walled, torch.tensor([[0.95], [0.01]], dtype=torch.float64), TIGHT)
    assert found.status.tolist() == [Status.CONVERGED] * 2
    torch.testing.assert_close(found.z, torch.full((2, 1), 1 / 3, dtype=torch.float64), rtol=0, atol=1e-5)


def test_too_few_iterations_are_told() -> None:
    start = torch.tensor([[-1.2, 1.0], [1.2, 1.44]], dtype=torch.float64)
    found = minimise(rosenbrock, start, OptimiserConfig(iterations=3))
    assert found.status.tolist() == [Status.MAX_ITERATIONS, Status.CONVERGED]  # the second starts at its minimum
    assert found.iterations.tolist() == [3, 0]
    assert "iterations" in Status.MAX_ITERATIONS.advice


def test_every_failure_has_advice() -> None:
    assert all(status.advice for status in (Status.STALLED, Status.MAX_ITERATIONS, Status.DIVERGED))


def test_rows_that_have_converged_are_evaluated_no_more() -> None:
    problem = Quadratic([1.0, 1e4])
    found = minimise(problem, torch.zeros(2, 6, dtype=torch.float64), OptimiserConfig(iterations=200, gradient=1e-5))
    counts = [sum(rows.count(row) for rows in problem.rows_seen) for row in (0, 1)]
    assert found.evaluations == len(problem.rows_seen) == counts[1]
    assert counts[0] < counts[1] / 3
    last = max(i for i, rows in enumerate(problem.rows_seen) if 0 in rows)
    assert all(rows == [1] for rows in problem.rows_seen[last + 1 :])


def test_a_tighter_neighbour_costs_a_converged_row_no_rounds() -> None:
    problem = Quadratic([1.0, 1e8])
    found = find_modes(problem, torch.zeros(2, 6, dtype=torch.float64), OptimiserConfig())
    alone = find_modes(Quadratic([1.0]), torch.zeros(1, 6, dtype=torch.float64), OptimiserConfig())
    assert found.iterations[0] <= alone.iterations[0] + 1 < found.iterations[1]


def test_the_start_is_left_as_it_was() -> None:
    start = normal(2, 2)
    before = start.clone()
    minimise(rosenbrock, start, OptimiserConfig(iterations=5))
    assert torch.equal(start, before)


# ---- second derivatives ----------------------------------------------------------------------------------------------


def test_differences_of_the_gradient_are_the_hessian() -> None:
    problem = Quadratic([1.0, 1e3, 1e8])
    found = hessian(problem, normal(3, 6), torch.arange(3))
    error = (found - problem.hessian).abs().amax((-2, -1)) / problem.hessian.abs().amax((-2, -1))
    assert (error < 1e-6).all()
    assert torch.equal(found, found.mT)


def test_the_hessian_of_a_curved_function_agrees_with_autograd() -> None:
    z = normal(3, 2)
    found = hessian(rosenbrock, z, torch.arange(3))
    for row in range(3):
        exact = torch.autograd.functional.hessian(
            lambda one, row=row: rosenbrock(one[None], torch.tensor([row]))[0], z[row]
        )
        torch.testing.assert_close(found[row], exact, rtol=1e-4, atol=1e-3)


def test_the_root_of_the_inverse_bounds_flat_directions_and_survives_nan() -> None:
    curvature = torch.stack([torch.diag(torch.tensor([4.0, 1e-9, -2.0])), torch.full((3, 3), torch.nan)]).double()
    root = root_of_inverse(curvature)
    expected = torch.diag(torch.tensor([1 / 4, 1 / 0.3, 1 / 2], dtype=torch.float64))
    torch.testing.assert_close(root[0] @ root[0].mT, expected)
    assert torch.equal(root[1], torch.eye(3, dtype=torch.float64))
