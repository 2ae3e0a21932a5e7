"""Pre-estimation: splines and Gaussian processes with their slopes, the match, the quick mode, and fits on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.evidence import matched_mode
from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.inference.archive import load_fit, save_fit
from distlfm.inference.findings.scores import q2
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.optimise import OptimiserConfig, Status
from distlfm.inference.series.forward import Forward
from distlfm.inference.series.interpolant import by_processes, by_splines, natural_splines, noise_level
from distlfm.inference.series.preestimate import PreestimateConfig, all_observed, fit_preestimate, matched_start
from distlfm.instance import FloatArray, Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_mechanism
from distlfm.simulation.instances import simulate
from distlfm.solvers.base import SolverConfig

GENES = ("a", "b", "c")
FORCE = {
    "priors": {
        "lengthscale": {"kind": "lognormal", "median": 1.5, "spread": 0.2},
        "variance": {"kind": "lognormal", "median": 1.0, "spread": 0.3},
    }
}
TRANSCRIPTION: dict[str, Any] = {
    "kind": "transcription",
    "outputs": GENES,
    "fixed": {"sensitivity": {"a": 1.0}},
    "priors": {
        "basal": {"kind": "lognormal", "median": 0.1, "spread": 0.5},
        "sensitivity": {"kind": "lognormal", "median": 1.0, "spread": 0.5},
        "decay": {"kind": "lognormal", "median": 0.4, "spread": 0.3},
    },
}
MECHANISMS: dict[str, dict[str, Any]] = {
    "transcription": TRANSCRIPTION,
    "softplus": {**TRANSCRIPTION, "response": {"kind": "softplus"}},
    "lotka_volterra": {
        "kind": "lotka_volterra",
        "fixed": {"growth": {"predator": 1.0}},
        "priors": {"mortality": {"kind": "lognormal", "median": 0.8, "spread": 0.2}},
    },
}


def model_of(mechanism: dict[str, Any], noise: float = 0.02) -> Model:
    likelihood = {"shared": True, "prior": {"kind": "lognormal", "median": noise, "spread": 0.3}}
    return Model(build_mechanism(mechanism), build(ForceConfig, FORCE), build(LikelihoodConfig, likelihood))


def simulated(model: Model, count: int, points: int = 14, seed: int = 1) -> list[Instance]:
    times, grid = np.linspace(0, 8, points).tolist(), np.linspace(0, 8, 81).tolist()
    return simulate(model, num_instances=count, times=times, truth_times=grid, seed=seed)


def forward_of(model: Model, instances: list[Instance]) -> Forward:
    data = collate([one.blind() for one in instances], model.mechanism.outputs)
    return Forward(model, data, SolverConfig(steps=40), 20)


def one_series(times: FloatArray, values: FloatArray) -> Observations:
    instance = Instance("one", ("y",), times, values[None], np.ones((1, len(times)), dtype=bool))
    return collate([instance], ("y",))


def spline(times: FloatArray, values: FloatArray, at: FloatArray) -> tuple[FloatArray, FloatArray]:
    seen = np.ones((1, 1, len(times)), dtype=bool)
    found = natural_splines(times[None], values[None, None], seen, np.ones_like(seen, dtype=float), at[None])
    return found.value[0, 0], found.slope[0, 0]


# ---- splines ---------------------------------------------------------------------------------------------------------


def test_a_natural_cubic_is_reproduced() -> None:
    """Two cubics that meet at 1 with two derivatives, and with y″ = 0 at both ends."""
    times, at = np.array([0.0, 0.5, 1.0, 1.5, 2.0]), np.linspace(0, 2, 41)

    def bump(x: FloatArray) -> FloatArray:
        return np.where(x < 1, x**3 - 3 * x, (2 - x) ** 3 - 3 * (2 - x))

    value, slope = spline(times, bump(times), at)
    np.testing.assert_allclose(value, bump(at), atol=1e-12)
    np.testing.assert_allclose(slope, np.where(at < 1, 3 * at**2 - 3, 3 - 3 * (2 - at) ** 2), atol=1e-11)


@pytest.mark.parametrize("count", [2, 3, 9])
def test_a_line_stays_a_line_beyond_its_ends_too(count: int) -> None:
    times, at = np.sort(np.random.default_rng(0).uniform(0, 5, count)), np.linspace(-1, 6, 20)
    value, slope = spline(times, 2.0 - 3.0 * times, at)
    np.testing.assert_allclose(value, 2 - 3 * at, atol=1e-10)
    np.testing.assert_allclose(slope, -3.0, atol=1e-10)


def test_slopes_converge_with_the_third_power_of_the_spacing() -> None:
    errors = []
    for count in (21, 41, 81):
        times = np.linspace(0, 2 * np.pi, count)
        errors.append(np.abs(spline(times, np.sin(times), times)[1] - np.cos(times)).max())
    assert np.log2(errors[0] / errors[1]) > 2.9
    assert np.log2(errors[1] / errors[2]) > 2.9


def test_few_values_and_gaps() -> None:
    times = np.array([[0.0, 1.0, 2.0, 3.0]])
    mask = np.array([[[True, False, False, True], [False, True, False, False], [False] * 4]])
    values = np.array([[[1.0, 9.0, 9.0, 4.0], [9.0, 5.0, 9.0, 9.0], [9.0] * 4]])
    found = natural_splines(times, values, mask, np.full(mask.shape, 0.04), np.array([[1.5, 3.5]]))
    np.testing.assert_allclose(found.value[0], [[2.5, 4.5], [5.0, 5.0], [0.0, 0.0]])
    np.testing.assert_allclose(found.slope[0], [[1.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(found.within[0], [[True, False], [False, False], [False, False]])
    np.testing.assert_allclose(found.slope_var[0, 0], 2 * 0.04 / 9)
    assert np.isnan(noise_level(times, values, mask)).all()


def test_noise_is_found_and_passes_through_the_spline() -> None:
    rng = np.random.default_rng(2)
    times = np.sort(rng.uniform(0, 10, 60))
    values = np.sin(times)[None, None] + 0.1 * rng.standard_normal((300, 1, 60))
    mask, grid = np.ones(values.shape, dtype=bool), np.broadcast_to(times, (300, 60))
    assert noise_level(grid, values, mask).mean() == pytest.approx(0.1, rel=0.03)
    found = natural_splines(grid, values, mask, np.full(values.shape, 0.01), np.full((300, 1), 5.0))
    assert found.slope[:, 0, 0].var() == pytest.approx(found.slope_var[0, 0, 0], rel=0.3)


# ---- Gaussian processes ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothness", ["rbf", "matern52"])
def test_slope_of_a_process_is_that_of_its_mean(smoothness: Any) -> None:
    rng = np.random.default_rng(3)
    times = np.sort(rng.uniform(0, 20, 25))
    data = one_series(times, 5 + 3 * np.sin(times) + 0.2 * rng.standard_normal(25))
    at, step = torch.linspace(1, 19, 13, dtype=torch.float64), 1e-4
    points = torch.cat([at - step, at, at + step]).unsqueeze(0)
    found = by_processes(data, points, smoothness=smoothness)
    below, _, above = found.value[0, 0].chunk(3)
    slope = found.slope[0, 0].chunk(3)[1]
    torch.testing.assert_close(slope, (above - below) / (2 * step), rtol=1e-5, atol=1e-5)
    assert float(found.noise[0, 0]) == pytest.approx(0.2, rel=0.5)


def test_bands_of_slopes_hold_the_truth() -> None:
    rng = np.random.default_rng(4)
    times, at = np.linspace(0, 6, 20), torch.linspace(0, 6, 39, dtype=torch.float64)
    phases = rng.uniform(0, 6, 40)
    instances = [
        Instance(
            str(i),
            ("y",),
            times,
            (np.sin(1.5 * times + phase) + 0.1 * rng.standard_normal(20))[None],
            np.ones((1, 20), bool),
        )
        for i, phase in enumerate(phases)
    ]
    found = by_processes(collate(instances, ("y",)), at.expand(40, -1))
    truth = 1.5 * torch.cos(1.5 * at + torch.from_numpy(phases)[:, None])
    within = ((found.slope[:, 0] - truth).abs() < 1.96 * found.slope_sd[:, 0]).double().mean()
    assert 0.88 < float(within) <= 1.0
    spline_error = (by_splines(collate(instances, ("y",)), at.expand(40, -1)).slope[:, 0] - truth).square().mean()
    assert (found.slope[:, 0] - truth).square().mean() < 0.5 * spline_error, "noisy data are what processes are for"


# ---- the match -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("interpolant", ["spline", "gp"])
@pytest.mark.parametrize("name", list(MECHANISMS))
def test_the_match_explains_the_data_better_than_the_middle_of_the_prior(name: str, interpolant: Any) -> None:
    model = model_of(MECHANISMS[name])
    instances = simulated(model, 3)
    forward = forward_of(model, instances)
    match = matched_start(forward, [1, 2, 3], PreestimateConfig(interpolant=interpolant))
    assert match is not None
    rows = torch.arange(3)
    with torch.no_grad():
        reached, middle = forward.log_likelihood(torch.stack([match, torch.zeros_like(match)]), rows)
    assert (reached - 0.5 * match.square().sum(-1) > middle + 10).all()


def test_the_mode_is_one_and_the_noise_does_not_vanish() -> None:
    model = model_of(MECHANISMS["lotka_volterra"])
    forward = forward_of(model, simulated(model, 2))
    found = matched_mode(forward, [1, 2], OptimiserConfig(), PreestimateConfig())
    assert found is not None
    assert (found.status == Status.CONVERGED).all()
    noise = model.space.unpack(forward.split(found.z)[0])["noise"]
    assert ((noise > 0.005) & (noise < 0.08)).all()

    def gradient(w: torch.Tensor) -> torch.Tensor:
        w = w.clone().requires_grad_(True)
        joint = forward.log_likelihood(w[None], torch.arange(2))[0] - 0.5 * w.square().sum(-1)
        (found,) = torch.autograd.grad(joint.sum(), w)
        found[:, model.space.slice_of("noise")] = 0.0
        return found.abs().amax(-1)

    assert (gradient(found.z) < 1e-3 * gradient(torch.zeros_like(found.z))).all()


def test_neighbours_play_no_part() -> None:
    model = model_of(TRANSCRIPTION)
    instances = simulated(model, 2)
    shorter = replace(
        instances[1], times=instances[1].times[:9], values=instances[1].values[:, :9], mask=instances[1].mask[:, :9]
    )
    settings = PreestimateConfig(draws=16)
    together = fit_preestimate(forward_of(model, [instances[0], shorter]), [5, 6], OptimiserConfig(), settings)
    alone = fit_preestimate(forward_of(model, [shorter]), [6], OptimiserConfig(), settings)
    torch.testing.assert_close(together.bound[1:], alone.bound, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(
        together.posterior.unknowns().proposals[:, 1:].mean(0),
        alone.posterior.unknowns().proposals.mean(0),
        rtol=0,
        atol=0.05,
    )


@pytest.mark.parametrize("interpolant", ["spline", "gp"])
@pytest.mark.slow
def test_quick_mode_finds_the_force_of_dense_clean_data(interpolant: str) -> None:
    model = model_of(TRANSCRIPTION, noise=0.005)
    instances = simulated(model, 2, points=25)
    options = build(InferenceConfig, {"method": "preestimate", "preestimate": {"interpolant": interpolant}})
    for result in fit_instances(model, instances, options):
        truth = result.instance.truth
        assert truth is not None
        assert truth.force is not None
        band = result.predict(truth.times).force
        assert result.method == "preestimate"
        assert q2(band.mean, truth.force) > 0.8
        assert ((band.lower95 <= truth.force) & (truth.force <= band.upper95)).mean() > 0.8


@pytest.mark.parametrize("kind", ["cascade", "linear_ode"])
def test_hidden_states_are_refused_with_a_way_out(kind: str) -> None:
    outputs = GENES if kind == "cascade" else ("y",)
    model = model_of({"kind": kind, "outputs": outputs})
    assert not all_observed(model)
    instances = simulated(model, 1)
    assert matched_start(forward_of(model, instances), [1], PreestimateConfig()) is None
    with pytest.raises(UsageError, match=f"every state to be observed, and '{kind}' has hidden ones.*method=auto"):
        fit_instances(model, instances, build(InferenceConfig, {"method": "preestimate"}))


# ---- on disk ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["variational", "preestimate"])
@pytest.mark.slow
def test_a_saved_fit_predicts_as_before(method: str, tmp_path: Path) -> None:
    model = model_of(MECHANISMS["lotka_volterra"])
    small = {"iterations": 5, "draws": 8, "num_inducing": 12, "features": 16}
    options = build(InferenceConfig, {"method": method, "variational": small, "preestimate": {"draws": 8}})
    for result in fit_instances(model, simulated(model, 2), options):
        save_fit(result, tmp_path / "fit.npz")
        again = load_fit(tmp_path / "fit.npz")
        assert again.method == method
        times = np.linspace(0, 10, 31)
        before, after = result.predict(times), again.predict(times)
        np.testing.assert_allclose(after.force.mean, before.force.mean, rtol=1e-12)
        np.testing.assert_allclose(after.outputs.upper95, before.outputs.upper95, rtol=1e-10)
        assert [one.mean for one in again.estimates] == pytest.approx([one.mean for one in result.estimates])
