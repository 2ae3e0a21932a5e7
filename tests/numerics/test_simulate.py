"""Simulated instances: they obey the equation, come from the prior, and do not depend on how many are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.interpolate import CubicSpline

from distlfm.errors import UsageError, WorkError
from distlfm.gp.kernels import KernelConfig
from distlfm.inference.model import ForceConfig, Model
from distlfm.instance import FloatArray, Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_mechanism
from distlfm.simulation.instances import BLOCK, simulate

TIMES = [0.0, 0.5, 2.0, 3.0, 5.0, 8.0]


def make_model(
    kind: str, *, kernel: str = "rbf", likelihood: str = "gaussian", fixed_kernel: bool = True, **options: Any
) -> Model:
    fixed = {"lengthscale": 1.5, "variance": 0.8} if fixed_kernel and kind != "nonparametric" else {}
    force = ForceConfig(kernel=KernelConfig(kind=kernel), fixed=fixed)
    return Model(build_mechanism({"kind": kind, **options}), force, LikelihoodConfig(kind=likelihood))


def draw(model: Model, num_instances: int, **options: Any) -> list[Instance]:
    given = {"times": TIMES, "truth_times": np.linspace(0, 8, 111), "seed": 3, **options}
    return simulate(model, num_instances=num_instances, **given)


def truth_of(instance: Instance) -> tuple[FloatArray, FloatArray, FloatArray]:
    assert instance.truth is not None
    assert instance.truth.force is not None
    assert instance.truth.outputs is not None
    return instance.truth.times, instance.truth.force, instance.truth.outputs


@pytest.mark.parametrize("kind", ["transcription", "lotka_volterra"])
def test_an_instance_does_not_depend_on_how_many_are_drawn(kind: str) -> None:
    model = make_model(kind, outputs=("a",), fixed_kernel=False)
    few, many = draw(model, 3, missing=0.3), draw(model, BLOCK + 5, missing=0.3)
    assert len(many) == BLOCK + 5
    assert len({instance.id for instance in many}) == BLOCK + 5
    for one, other in zip(few, many, strict=False):
        assert one.id == other.id
        assert np.array_equal(one.values, other.values)
        assert np.array_equal(one.mask, other.mask)
        assert all(np.array_equal(a, b) for a, b in zip(truth_of(one), truth_of(other), strict=True))
    assert not np.array_equal(few[0].values, draw(model, 1, seed=4)[0].values)


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "transcription", "outputs": ("a", "b"), "forces": ("f", "g")},
        {"kind": "transcription", "outputs": ("a", "b"), "response": {"kind": "softplus"}},
        {"kind": "cascade", "outputs": ("a", "b")},
        {"kind": "linear_ode", "order": 3},
        {"kind": "lotka_volterra"},
    ],
    ids=lambda options: f"{options['kind']}-{options.get('response', 'linear')}"[:24],
)
def test_the_truth_solves_the_equation(options: dict[str, Any]) -> None:
    """An independent integrator, driven by the force that the truth shows."""
    model = make_model(**options)
    instance = draw(model, 1, truth_times=np.linspace(0, 8, 321))[0]
    times, force, outputs = truth_of(instance)
    assert instance.truth is not None
    values = {name: torch.from_numpy(value) for name, value in instance.truth.parameters.items()}
    # The force of Lotka–Volterra is shown as prey, softplus of the process; the equation takes the process.
    latent = np.log(np.expm1(force)) if options["kind"] == "lotka_volterra" else force
    spline = CubicSpline(times, latent, axis=-1)

    def rate(t: float, y: FloatArray) -> FloatArray:
        f = torch.from_numpy(spline(t))
        found: FloatArray = model.mechanism.vector_field(torch.tensor(t), torch.from_numpy(y), f, values).numpy()
        return found

    start = model.mechanism.initial_state(values).numpy()
    solved = solve_ivp(rate, (0, 8), start, t_eval=times, rtol=1e-9, atol=1e-10, max_step=0.2)
    expected = model.mechanism.observe(torch.from_numpy(solved.y.T), values).numpy().T
    np.testing.assert_allclose(outputs, expected, rtol=0, atol=3e-6 * np.abs(expected).max())


def test_a_flow_is_the_derivative_of_its_trajectory() -> None:
    force = ForceConfig(fixed={"lengthscale": 2.0, "variance": 0.3})
    model = Model(build_mechanism({"kind": "nonparametric", "outputs": ("a", "b")}), force, LikelihoodConfig())
    instance = simulate(model, num_instances=1, times=[0, 2], truth_times=np.linspace(0, 2, 201).tolist(), seed=0)[0]
    times, flow, outputs = truth_of(instance)
    slope = CubicSpline(times, outputs, axis=-1)(times, 1)
    np.testing.assert_allclose(flow[:, 5:-5], slope[:, 5:-5], atol=1e-5)


@pytest.mark.parametrize("kernel", ["rbf", "matern12"])
def test_forces_have_the_kernels_covariance(kernel: str) -> None:
    model = make_model("glucose", kernel=kernel)
    truth_times = np.array([0.0, 0.3, 1.0, 2.5, 6.0])
    forces = np.stack([truth_of(i)[1][0] for i in draw(model, 800, times=[0, 6], truth_times=truth_times)])
    x = torch.from_numpy(truth_times).unsqueeze(-1)
    hyper = {"lengthscale": torch.tensor(1.5, dtype=torch.float64), "variance": torch.tensor(0.8, dtype=torch.float64)}
    expected = model.kernels[0].covariance(hyper, x, x).numpy()
    found = forces.T @ forces / len(forces)
    # The variance of an empirical covariance is (k_ii k_jj + k_ij²)/n.
    error = np.sqrt((0.8**2 + expected**2) / len(forces))
    assert (np.abs(found - expected) < 4 * error).all()


def test_parameters_come_from_their_priors() -> None:
    model = make_model("transcription", outputs=("a",), fixed_kernel=False)
    instances = draw(model, 600, truth_times=[0.0, 8.0])
    values = {
        name: torch.from_numpy(np.stack([i.truth.parameters[name] for i in instances if i.truth]))
        for name in (parameter.name for parameter in model.space.parameters)
    }
    z = model.space.pack(values, torch.zeros(600, model.space.num_free, dtype=torch.float64))
    assert (z.mean(0).abs() < 4 / 600**0.5).all()
    assert ((z.var(0) - 1).abs() < 4 * (2 / 600) ** 0.5).all()


def test_gaussian_noise_has_the_drawn_size_and_values_go_missing_at_random() -> None:
    model = make_model("transcription", outputs=("a", "b"))
    instances = draw(model, 200, truth_times=TIMES, missing=0.4)
    scaled = []
    for instance in instances:
        assert instance.truth is not None
        noise = instance.truth.parameters["noise"][:, None]
        scaled.append(((instance.values - truth_of(instance)[2]) / noise)[instance.mask])
    found = np.concatenate(scaled)
    assert abs(found.mean()) < 4 / len(found) ** 0.5
    assert abs(found.var() - 1) < 4 * (2 / len(found)) ** 0.5
    observed = np.mean([instance.mask.mean() for instance in instances])
    assert abs(observed - 0.6) < 0.03
    assert all(instance.mask.any() for instance in draw(model, 20, times=[0, 1], truth_times=[0, 1], missing=0.99))


@pytest.mark.parametrize("likelihood", ["poisson", "negative_binomial"])
def test_counts_scatter_as_the_likelihood_says(likelihood: str) -> None:
    model = make_model("glucose", likelihood=likelihood)
    instances = draw(model, 200, truth_times=TIMES)
    scaled = []
    for instance in instances:
        assert instance.truth is not None
        mean = truth_of(instance)[2]
        dispersion = instance.truth.parameters.get("dispersion", np.zeros(1))[:, None]
        scaled.append((instance.values - mean) / np.sqrt(mean + dispersion * mean**2))
        assert (instance.values == np.round(instance.values)).all()
    found = np.concatenate(scaled)
    assert abs(found.mean()) < 0.1
    assert abs(found.var() - 1) < 0.2


def test_wrong_questions_are_refused() -> None:
    model = make_model("glucose")
    with pytest.raises(UsageError, match="increasing"):
        draw(model, 1, times=[0, 0, 1])
    with pytest.raises(UsageError, match="begin"):
        draw(model, 1, times=[1, 2])
    with pytest.raises(UsageError, match="missing"):
        draw(model, 1, missing=1.0)
    with pytest.raises(UsageError, match="one or more"):
        draw(model, 0)
    given = Model(model.mechanism, ForceConfig(), LikelihoodConfig(noise="given"))
    with pytest.raises(UsageError, match="learned"):
        draw(given, 1)


def test_a_model_that_always_diverges_says_so() -> None:
    growth = {"kind": "uniform", "low": 1e4, "high": 2e4}
    with pytest.raises(WorkError, match="diverge"):
        draw(make_model("lotka_volterra", priors={"growth": growth}), 1)
