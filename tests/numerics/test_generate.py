"""Generated instances: from the prior, solving the equation, each by its own seed, seen as the config says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.interpolate import RectBivariateSpline, make_interp_spline
from scipy.stats import kstest

from distlfm.config import build
from distlfm.gp.kernels import FunctionalKernel, KernelConfig
from distlfm.runs.settings import GenerateConfig
from distlfm.simulation import fields as simulate_field
from distlfm.simulation.block import Arrays, generate_block, open_draws, store_spec
from distlfm.simulation.series import circle_root, draw_paths
from distlfm.solvers.field.dense import ByEngine, Modal, OneByOne, batch_solver_of
from distlfm.solvers.field.engine import TimeGrid
from distlfm.store import STATUSES
from tests.support.field_problems import Line, line
from tests.support.generate_toy import genes, made, shipped

COEFFICIENTS = ("sensitivity", "decay", "diffusion")


def joined(parts: Sequence[Arrays]) -> Arrays:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


@pytest.fixture
def on_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fields on a line that is discretised by hand, with every position of the shipped config among its nodes."""
    found = Line(line(np.linspace(0, 1, 121)), COEFFICIENTS)
    monkeypatch.setattr(simulate_field, "open_on", lambda *_: found)


# ---- each instance by its own seed -----------------------------------------------------------------------------------


def same(one: Arrays, other: Arrays, tolerance: float) -> None:
    for name in set(one) - {"id", "wall_s"}:
        scale = np.nanmax(np.abs(one[name])) if np.isfinite(one[name]).any() else 1.0
        np.testing.assert_allclose(other[name], one[name], rtol=0, atol=tolerance * scale, err_msg=name)
    assert (one["id"] == other["id"]).all()


@pytest.mark.parametrize(
    "content",
    [
        {"sampling": {"count": 20}, "missing": 0.2},
        {"mechanism": {"kind": "lotka_volterra"}, "stop": 4.0, "points": 21},
        {"force": {"kernel": {"kind": "periodic"}}, "points": 21},
    ],
    ids=["genes", "nonlinear", "by Cholesky"],
)
def test_instances_are_the_same_whatever_the_block_they_are_in(content: dict[str, Any]) -> None:
    config = build(GenerateConfig, {"mechanism": {"kind": "transcription"}, "num_outputs": 2, **content})
    whole = made(config, range(70))
    parts = joined([made(config, range(a, b)) for a, b in ((0, 1), (1, 18), (18, 65), (65, 70))])
    same(whole, parts, 1e-10)
    assert list(whole["id"][[0, 69]]) == ["gen-000000", "gen-000069"]
    other = made(config.model_copy(update={"seed": 1}), range(3))
    assert not np.isclose(other["solution_mean"], whole["solution_mean"][:3]).all()


def test_blocks_of_equal_size_are_the_same_to_the_last_bit() -> None:
    config = shipped("transcription")
    one, other = made(config, range(40)), made(config, range(40))
    for name in set(one) - {"wall_s"}:
        assert one[name].tobytes() == other[name].tobytes() or name == "id", name


def test_fields_are_the_same_whatever_the_block_they_are_in(on_a_line: None) -> None:
    config = shipped("reaction_diffusion")
    whole, again = made(config, range(11)), made(config, range(11))
    same(whole, joined([made(config, range(3)), made(config, range(3, 11))]), 1e-10)
    assert whole["solution_mean"].tobytes() == again["solution_mean"].tobytes()


# ---- from the prior --------------------------------------------------------------------------------------------------


def test_ranges_are_kept_and_filled() -> None:
    config = shipped("transcription")
    draws = open_draws(config)
    spec = store_spec(config, draws)
    found = generate_block(config, draws, spec, range(1500))[0]["params_mean"]
    columns = dict(zip(spec.parameters, found.T, strict=True))
    assert (columns["sensitivity[output_0]"] == 1.0).all()
    ranges = {"basal": (0.0, 0.25), "decay": (0.2, 0.7), "sensitivity": (0.3, 2.5)}
    ranges |= {"force.lengthscale": (0.7, 3.0), "force.variance": (0.1, 4.0)}
    checked = 0
    for name, column in columns.items():
        if name.split("[")[0] in ranges and name != "sensitivity[output_0]":
            low, high = ranges[name.split("[")[0]]
            assert low <= column.min()
            assert column.max() <= high
            assert kstest((column - low) / (high - low), "uniform").pvalue > 1e-3, name
            checked += 1
    assert checked == 16


KERNELS = {
    "rbf": KernelConfig(kind="rbf"),
    "matern52": KernelConfig(kind="matern52"),
    "matern12": KernelConfig(kind="matern12"),
    "sum": KernelConfig(kind="sum", parts=(KernelConfig(kind="rbf"), KernelConfig(kind="matern32"))),
    "product": KernelConfig(kind="product", parts=(KernelConfig(kind="rbf"), KernelConfig(kind="periodic"))),
}


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("length", [0.1, 1.0, 4.0])
def test_draws_on_a_circle_have_the_covariance_of_the_kernel(kind: str, length: float) -> None:
    """No statistics: the matrix by which normal numbers are multiplied, times itself."""
    kernel = FunctionalKernel(KERNELS[kind])
    hyper = {name: torch.full((1, *kernel.shapes[name]), length).double() for name in kernel.parameter_names}
    times = torch.linspace(0, 11, 221, dtype=torch.float64)
    size = 512
    while not bool((circle := circle_root(kernel, hyper, 0.05, 221, size))[1]):
        size *= 2
    found = torch.fft.irfft(circle[0].square(), size)[0, :221]
    expected = kernel.covariance(hyper, times[:1, None], times[:, None])[0, 0]
    assert float((found - expected).abs().max()) < 5e-10 * float(expected[0])


@pytest.mark.parametrize(
    ("kernel", "hyper"),
    [
        ("rbf", {"lengthscale": 1.5, "variance": 0.8}),
        ("rbf", {"lengthscale": 1e4, "variance": 0.8}),
        ("periodic", {"lengthscale": 1.5, "period_length": 2.0, "variance": 0.8}),
    ],
    ids=["circle", "too long for a circle", "never ends"],
)
def test_forces_have_the_covariance_of_the_kernel(kernel: str, hyper: dict[str, float]) -> None:
    found = FunctionalKernel(KernelConfig(kind=kernel))
    values = {name: torch.full((800,), value, dtype=torch.float64) for name, value in hyper.items()}
    times = torch.linspace(0, 6, 61, dtype=torch.float64)
    paths, ok = draw_paths([found], [values], times, [np.random.default_rng([5, i]) for i in range(800)])
    assert bool(ok.all())
    at = paths[:, 0, [0, 3, 10, 25, 60]]
    x = times[[0, 3, 10, 25, 60], None]
    expected = found.covariance({name: value[0] for name, value in values.items()}, x, x)
    # The variance of an empirical covariance is (k_ii k_jj + k_ij²)/n.
    error = ((0.8**2 + expected**2) / 800).sqrt()
    assert bool(((at.mT @ at / 800 - expected).abs() < 4 * error).all())


# ---- the equation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "points", "tolerance"), [("transcription", 111, 1e-6), ("glucose", 577, 5e-4)])
def test_trajectories_solve_the_equation_with_the_stored_force(name: str, points: int, tolerance: float) -> None:
    """By scipy, with a spline of degree 5 through the stored force.

    The tolerance is what two ways to continue a force between stored times can differ by: next to nothing for an RBF
    force; for a Matérn-5/2 one, of lengthscales down to 1/100 of the axis, what `INTERVALS` says is unknown.
    """
    config = shipped(name, points=points)
    draws = open_draws(config)
    spec = store_spec(config, draws)
    found = generate_block(config, draws, spec, range(3))[0]
    mechanism, times = draws.model.mechanism, draws.times
    for row in range(3):
        named = dict(zip(spec.parameters, found["params_mean"][row], strict=True))
        values = {
            one.name: torch.tensor(
                [named[one.name if len(one.labels) == 1 else f"{one.name}[{label}]"] for label in one.labels],
                dtype=torch.float64,
            )
            for one in draws.model.space.parameters
        }
        force = make_interp_spline(times, found["force_mean"][row].T, k=5)

        def rate(t: float, y: np.ndarray[Any, Any], force: Any = force, values: Any = values) -> Any:
            f = torch.from_numpy(np.asarray(force(t)))
            return mechanism.vector_field(torch.tensor(t), torch.from_numpy(y), f, values).numpy()

        span = (times[0], times[-1])
        start = mechanism.initial_state(values).numpy()
        step = 2 * (times[1] - times[0])
        solved = solve_ivp(rate, span, start, "DOP853", times, rtol=1e-10, atol=1e-12, max_step=step)
        expected = solved.y
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found["solution_mean"][row], expected, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("drift", [False, True], ids=["every mode on its own", "one by one"])
def test_fields_with_one_force_each_are_what_an_engine_gives(drift: bool) -> None:
    stream = torch.Generator().manual_seed(0)
    names = (*COEFFICIENTS, "velocity_0") if drift else COEFFICIENTS
    problem = Line(line(np.linspace(0, 1, 21) ** 1.3, held=(0,), value=0.3, drift=drift), names)
    shapes = ((3, len(names)), (3, 21), (3, 31, 21))
    theta, start, force = (torch.rand(*shape, generator=stream).double() for shape in shapes)
    grid, observe = TimeGrid(0.0, 0.05, 30), problem.observe(np.linspace(0, 1, 8)[:, None])
    stepper = batch_solver_of(problem.engine)
    assert isinstance(stepper, OneByOne if drift else Modal)
    found = stepper(theta, start, force, grid, observe)
    expected = ByEngine(problem.engine)(theta, start, force, grid, observe)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)


def test_fields_solve_the_equation_with_the_stored_force(on_a_line: None) -> None:
    """On a mesh four times finer, in steps four times shorter; the tolerance is that of `simulate_field.STEPS`.

    The stored force has a quarter of the steps and a third of the nodes, and a spline of degree 5 misses little of it.
    """
    config = shipped("reaction_diffusion")
    draws = open_draws(config)
    assert isinstance(draws, simulate_field.Lattice)
    spec = store_spec(config, draws)
    found = generate_block(config, draws, spec, range(8))[0]
    named = dict(zip(spec.parameters, torch.from_numpy(found["params_mean"]).T, strict=True))
    theta = torch.stack([named[name] for name in COEFFICIENTS], -1)
    nodes, grid = np.linspace(0, 1, 481), TimeGrid(0.0, 1 / 640, 640)
    lattice = draws.axes[0]
    splines = [RectBivariateSpline(draws.times, lattice, one[0], kx=5, ky=5) for one in found["force_mean"]]
    force = torch.from_numpy(np.stack([spline(grid.times.numpy(), nodes) for spline in splines]))
    finer = Line(line(nodes), COEFFICIENTS)
    observe = finer.observe(lattice[:, None])
    start = torch.zeros(8, len(nodes), dtype=torch.float64)
    expected = batch_solver_of(finer.engine)(theta, start, force, grid, observe)[:, ::16].numpy()
    size = np.abs(expected).max((1, 2))
    error = np.abs(found["solution_mean"][:, 0] - expected)
    assert (error.max((1, 2)) < 3e-3 * size).all()
    assert (np.sqrt((error**2).mean((1, 2))) < 4e-4 * size).all()
    well_spread = named["diffusion"].numpy() >= 0.01
    assert well_spread.any()
    assert (error.max((1, 2)) < 1.2e-3 * size)[well_spread].all()


# ---- what is seen ----------------------------------------------------------------------------------------------------


def test_noise_can_be_nothing() -> None:
    found = made(genes(noise=0.0), range(5))
    assert np.array_equal(found["observed"], found["solution_mean"])
    assert (found["params_mean"][:, -2:] == 0).all()
    for name in ("solution_var", "force_var", "params_var"):
        assert (found[name] == 0).all()
    assert np.isnan(found["elbo"]).all()
    assert (found["status"] == STATUSES["generated"]).all()


def test_noise_has_the_drawn_size_its_floor_and_its_growth() -> None:
    likelihood = {
        "prior": {"kind": "uniform", "low": 0.1, "high": 0.2},
        "floor": 0.1,
        "relative": {"kind": "uniform", "low": 0.1, "high": 0.3},
    }
    found = made(genes(likelihood=likelihood), range(200))
    noise, growth = found["params_mean"][:, -4:-2, None], found["params_mean"][:, -2:, None]
    expected = np.sqrt(noise**2 + 0.1**2 + (growth * found["solution_mean"]) ** 2)
    scaled = (found["observed"] - found["solution_mean"]) / expected
    assert abs(scaled.mean()) < 4 / scaled.size**0.5
    assert abs(scaled.var() - 1) < 4 * (2 / scaled.size) ** 0.5


def test_every_kth_time_is_seen() -> None:
    found = made(genes(noise=0.0, sampling={"every": 5}), range(3))
    np.testing.assert_allclose(found["observed_time"], np.linspace(0, 11, 51)[None, ::5].repeat(3, 0))
    assert np.array_equal(found["observed"], found["solution_mean"][..., ::5])


def test_some_times_are_drawn_for_each_instance_and_the_first_is_among_them() -> None:
    found = made(genes(noise=0.0, sampling={"every": 2, "count": 7}), range(200))
    times = np.linspace(0, 11, 51)
    at = np.searchsorted(times, found["observed_time"])
    assert np.array_equal(times[at], found["observed_time"])
    assert (at[:, 0] == 0).all()
    assert (np.diff(at) > 0).all()
    assert (at % 2 == 0).all()
    assert np.array_equal(np.take_along_axis(found["solution_mean"], at[:, None], -1), found["observed"])
    counts = np.bincount(at[:, 1:].ravel() // 2, minlength=26)[1:]
    assert (np.abs(counts - 200 * 6 / 25) < 5 * np.sqrt(200 * 6 / 25)).all()


def test_a_share_of_values_is_missing_at_random() -> None:
    found = made(genes(missing=0.3), range(100))
    gone = np.isnan(found["observed"])
    assert abs(gone.mean() - 0.3) < 4 * (0.21 / gone.size) ** 0.5
    assert np.isfinite(found["observed_time"]).all()
    almost_all = made(genes(missing=0.999), range(50))
    assert (np.isfinite(almost_all["observed"]).sum((1, 2)) >= 2).all()


def test_gaps_are_stretches_of_all_outputs() -> None:
    found = made(genes(gaps={"number": 2.0, "length": 1.1}), range(400))
    gone = np.isnan(found["observed"])
    assert np.array_equal(gone[:, 0], gone[:, 1])
    # Gaps that are 1.1 long on average, begin anywhere in 11 and end with the record cover about 2 · 0.09 of it.
    assert 0.12 < gone[:, 0].mean() < 0.2
    begins = (gone[:, 0, 1:] & ~gone[:, 0, :-1]).sum() + gone[:, 0, 0].sum()
    assert gone[:, 0].sum() / begins > 3


def test_fields_are_seen_at_points_of_their_lattice(on_a_line: None) -> None:
    config = shipped("reaction_diffusion", noise=0.0)
    config = config.model_copy(update={"sampling": config.sampling.model_copy(update={"count": 100})})
    found = made(config, range(3))
    t, x = np.rint(found["observed_time"] * 40).astype(int), np.rint(found["observed_x"] * 40).astype(int)
    np.testing.assert_allclose(found["observed_x"], x / 40, atol=1e-12)
    for row in range(3):
        assert np.array_equal(found["solution_mean"][row, 0][t[row], x[row]], found["observed"][row, 0])
        assert len({(a, b) for a, b in zip(t[row], x[row], strict=True)}) == 100
