"""Numbers of the operator: functions in, functions out, whatever the grid; and intervals that cover what they say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from distlfm.lfo import Batch, GridDim, OperatorConfig, OperatorSchema, calibrate, coverage
from distlfm.lfo.grid import fill, to_grid
from distlfm.lfo.heads import eliminated
from distlfm.lfo.loss import gaussian
from distlfm.lfo.model import FourierOperator, OperatorOutput, Scaling
from distlfm.lfo.physics import GridSolver
from distlfm.lfo.spectral import UNIT, local_fit, spline


def schema(*sizes: int, parameters: int = 2, outputs: int = 2) -> OperatorSchema:
    names = ("time", "x", "y")
    return OperatorSchema(
        mechanism={},
        outputs=tuple(f"y{i}" for i in range(outputs)),
        forces=("f",),
        parameters=tuple(f"p{i}" for i in range(parameters)),
        parameter_kinds=("mechanism",) * parameters,
        dims=tuple(GridDim(name=names[i], size=n, start=0.0, stop=1.0) for i, n in enumerate(sizes)),
    )


def band_limited(*sizes: int) -> torch.Tensor:
    """Smooth functions [1, 2, *sizes] of the unit box."""
    axes = torch.meshgrid(*(torch.linspace(0, 1, n) for n in sizes), indexing="ij")
    total = sum((i + 1.0) * axis for i, axis in enumerate(axes))
    return torch.stack([torch.sin(2 * total) + axes[0], torch.cos(3 * total)]).unsqueeze(0)


@pytest.mark.parametrize(
    ("coarse", "fine"), [((41,), (81,)), ((111,), (331,)), ((41, 41), (81, 81)), ((17,) * 3, (33,) * 3)]
)
@pytest.mark.parametrize("own", [None, 13])
def test_parameters_do_not_move_with_the_resolution(
    coarse: tuple[int, ...], fine: tuple[int, ...], own: int | None
) -> None:
    torch.manual_seed(0)
    config = OperatorConfig(layers=2, width=8, modes=3, points=own, head=16, pooled=6, regressions=2, slopes=(0.1,))
    model = FourierOperator(config, schema(*coarse)).eval()
    with torch.no_grad():
        one = model(band_limited(*coarse), torch.ones(1, 2, *coarse))
        model.points = model.points if own else fine  # a network that works on the data's grid
        other = model(band_limited(*fine), torch.ones(1, 2, *fine))
    assert torch.allclose(one.params, other.params, rtol=2e-2, atol=2e-3)
    step = tuple(slice(None, None, (b - 1) // (a - 1)) for a, b in zip(coarse, fine, strict=True))
    assert (one.force - other.force[(..., *step)]).abs().max() < 0.02 * one.force.abs().max() + 2e-3


def test_estimates_from_a_noisy_function_do_not_move_with_the_resolution() -> None:
    """The same function at both: the spline through noisy points, and its values between them."""
    torch.manual_seed(0)
    config = OperatorConfig(layers=2, width=8, modes=3, points=13, head=16, pooled=6, regressions=2, slopes=(0.1,))
    model = FourierOperator(config, schema(41)).eval()
    coarse = band_limited(41) + 0.05 * torch.randn(1, 2, 41)
    fine = coarse @ spline(41, 81).float().T
    with torch.no_grad():
        one, other = model(coarse, torch.ones_like(coarse)), model(fine, torch.ones_like(fine))
    assert torch.allclose(one.params, other.params, rtol=5e-3, atol=5e-4)
    assert torch.allclose(one.params_logvar, other.params_logvar, rtol=5e-3, atol=5e-4)


def test_three_dimensions_learn_something() -> None:
    torch.manual_seed(0)
    model = FourierOperator(OperatorConfig(layers=2, width=8, modes=3, head=16, pooled=4), schema(9, 9, 9, outputs=1))
    values = band_limited(9, 9, 9)[:, :1] * torch.rand(16, 1, 1, 1, 1)
    target = values.mean(2, keepdim=True).expand_as(values)
    optimiser = torch.optim.Adam(model.parameters(), 3e-3)
    seen = []
    for _ in range(25):
        loss = (model(values, torch.ones_like(values)).force - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        seen.append(float(loss.detach()))
    assert seen[-1] < 0.3 * seen[0]


@pytest.mark.parametrize("window", [0.03, 0.1])
def test_slopes_are_exact_for_quadratics_ends_included(window: float) -> None:
    x = torch.linspace(0, 1, 61, dtype=torch.float64)
    value, slope, curvature = local_fit(61, window) @ (1 + 2 * x - 3 * x**2)
    assert torch.allclose(value, 1 + 2 * x - 3 * x**2, atol=1e-9)
    assert torch.allclose(slope, UNIT * (2 - 6 * x), atol=1e-9)
    assert torch.allclose(curvature, torch.full_like(x, -6 * UNIT**2), atol=1e-8)


def test_elimination_solves_as_the_library_does() -> None:
    factor = torch.randn(7, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    matrix = factor @ factor.mT + 0.1 * torch.eye(5, dtype=torch.float64)
    right = factor[..., :2]
    assert torch.allclose(eliminated(matrix, right), torch.linalg.solve(matrix, right), rtol=1e-9, atol=1e-9)


def test_splines_are_of_fourth_order() -> None:
    def error(n: int) -> float:
        wanted = torch.linspace(0, 1, 501, dtype=torch.float64)
        x = torch.linspace(0, 1, n, dtype=torch.float64)
        return float((spline(n, 501) @ torch.sin(6 * x) - torch.sin(6 * wanted)).abs().max())

    assert error(21) / error(41) > 10


def test_gaps_are_filled_by_straight_lines() -> None:
    t = torch.linspace(0, 1, 11)
    values = torch.stack([2 * t, 1 - t]).unsqueeze(0)
    mask = torch.ones_like(values)
    mask[0, 0, 3:6] = 0
    mask[0, 1, :4] = 0
    found = fill(values * mask, mask, 2)
    assert torch.allclose(found[0, 0], 2 * t)
    assert torch.allclose(found[0, 1, :4], (1 - t[4]).expand(4))
    assert torch.allclose(found[0, 1, 4:], 1 - t[4:])


def test_scattered_points_are_interpolated_onto_the_grid() -> None:
    random = np.random.default_rng(0)
    points = random.uniform(size=(900, 2))
    dims = schema(11, 11).dims
    values, mask = to_grid(points, (points[:, :1] + 2 * points[:, 1:]).T, np.ones((1, 900), bool), dims, (11, 11))
    t, x = np.meshgrid(np.linspace(0, 1, 11), np.linspace(0, 1, 11), indexing="ij")
    assert np.abs(values[0] - t - 2 * x)[1:-1, 1:-1].max() < 1e-5
    assert mask.mean() > 0.9


def test_observations_between_points_of_the_grid_are_told_at_the_near_ones() -> None:
    dims = schema(11).dims
    times = np.array([0.001, 0.101, 0.25, 0.44, 0.999])  # in steps of the grid: 0.01, 1.01, 2.5, 4.4, 9.99
    _, mask = to_grid(times[:, None], np.ones((1, 5)), np.ones((1, 5), bool), dims, (11,))
    assert np.flatnonzero(mask[0]).tolist() == [0, 1, 2, 3, 4, 5, 10]


def test_the_equation_is_solved_to_the_closed_form() -> None:
    genes = schema(201, parameters=5, outputs=1).model_copy(
        update={
            "mechanism": {"kind": "transcription", "outputs": ("y0",)},
            "parameters": ("basal", "sensitivity", "decay"),
            "parameter_kinds": ("mechanism",) * 3,
        }
    )
    forward = GridSolver(genes)
    t = torch.linspace(0, 1, 201)
    force = torch.sin(5 * t).view(1, 1, -1)
    b, s, d = 0.3, 1.7, 0.8
    wave = (d * torch.sin(5 * t) - 5 * torch.cos(5 * t) + 5 * torch.exp(-d * t)) / (d**2 + 25)
    exact = (b / d + s * wave).view(1, 1, -1)
    params = torch.tensor([[b, s, d]])
    assert torch.allclose(forward(force, params), exact, atol=1e-5)
    assert torch.allclose(forward._runge_kutta(force, forward.values(params)), exact, atol=1e-5)
    assert forward.residual(exact, force, params).abs().max() < 1e-4


def toy_prediction(count: int, wrong: float, together: float = 0.0) -> tuple[OperatorOutput, Batch, Scaling]:
    """Predictions whose errors are `wrong` times as large, and of heavier tails, than they say.

    together: by which power of e the errors of all points of an instance may be larger or smaller.
    """
    random = np.random.default_rng(count)
    force = torch.from_numpy(wrong * random.standard_t(4, (count, 1, 30))).float()
    force *= torch.from_numpy(np.exp(together * random.standard_normal((count, 1, 1)))).float()
    params = torch.from_numpy(wrong * random.standard_t(4, (count, 2))).float()
    zero = torch.zeros
    prediction = OperatorOutput(
        zero(count, 1, 30), zero(count, 1, 30), zero(count, 2), zero(count, 2), torch.ones(count, 1), zero(count, 3)
    )
    empty = zero(count, 1, 30)
    batch = Batch(empty, empty, force, empty, params, zero(count, 2), empty, zero(count, 1), ("",) * count)
    return prediction, batch, Scaling(1, 1, 2)


@pytest.mark.parametrize("wrong", [0.2, 1.0, 5.0])
def test_calibration_brings_coverage_to_what_is_promised(wrong: float) -> None:
    found = calibrate(*toy_prediction(400, wrong))
    prediction, batch, normal = toy_prediction(500, wrong)
    fresh = coverage(found.apply(prediction), batch, normal, found)
    assert fresh["force_95"] == pytest.approx(0.95, abs=0.01)
    assert fresh["force_68"] == pytest.approx(0.68, abs=0.02)
    assert fresh["parameters_95"] == pytest.approx(0.95, abs=0.03)
    assert fresh["parameters_68"] == pytest.approx(0.68, abs=0.05)


def test_bands_of_an_operator_of_fits_hold_the_truth_and_not_only_the_means_of_fits() -> None:
    prediction, batch, normal = toy_prediction(400, 0.1)  # a tenth off the fits' means, which are one off the truth
    fitted = replace(batch, force_var=torch.ones_like(batch.force), params_var=torch.ones_like(batch.params))
    calibration = calibrate(prediction, fitted, normal)
    random = torch.Generator().manual_seed(3)
    truth = replace(
        batch,
        force=batch.force + torch.randn(batch.force.shape, generator=random),
        params=batch.params + torch.randn(batch.params.shape, generator=random),
    )
    held = coverage(calibration.apply(prediction), truth, normal, calibration)
    assert held["force_95"] == pytest.approx(0.95, abs=0.01)
    assert held["parameters_68"] == pytest.approx(0.68, abs=0.05)
    assert coverage(calibration.apply(prediction), fitted, normal, calibration)["force_95"] == pytest.approx(
        0.95, abs=0.01
    )


def test_bands_from_few_instances_whose_points_err_together_are_not_too_narrow() -> None:
    fresh, batch, normal = toy_prediction(3000, 1.0, together=0.8)
    found = []
    for count in range(60, 100):
        calibration = calibrate(*toy_prediction(count, 1.0, together=0.8))
        found.append(coverage(calibration.apply(fresh), batch, normal, calibration)["force_95"])
    assert 0.95 < np.mean(found) < 0.97


def test_large_parameters_that_are_no_logarithms_have_a_gradient() -> None:
    normal = Scaling(1, 1, 2)
    normal.param_log.copy_(torch.tensor([0.0, 1.0]))
    normal.param_mean.copy_(torch.tensor([120.0, -4.0]))
    z = torch.zeros(1, 2, requires_grad=True)
    found = normal.physical(z)
    found.sum().backward()
    assert z.grad is not None
    assert torch.allclose(found, torch.tensor([[120.0, float(np.exp(-4.0))]]))
    assert torch.allclose(z.grad, torch.tensor([[1.0, float(np.exp(-4.0))]]))


def test_a_fits_variance_widens_what_is_learned() -> None:
    """The best log-variance for a target with a variance of its own is the sum of that and of the squared error."""
    logvar = torch.linspace(-3, 3, 6001)
    loss = gaussian(torch.tensor(0.5), logvar, torch.tensor(0.7), 0.0)
    assert float(logvar[loss.argmin()].exp()) == pytest.approx(1.2, rel=1e-2)
