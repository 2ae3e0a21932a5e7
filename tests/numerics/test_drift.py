"""An error that wanders is told from the force: the same answer by every method, and bands that hold the curve."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.series.linear import LinearGaussian, Quadrature
from distlfm.inference.series.statespace import StateSpace
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.likelihoods.gaussian import Gaussian
from distlfm.mechanisms import build_system
from distlfm.mechanisms.priors import Values
from distlfm.runs.settings import SimulateConfig
from distlfm.simulation.instances import simulate_from

KERNEL: dict[str, Any] = {"kernel": {"kind": "matern52"}}
TWO_GENES = {"kind": "transcription", "fixed": {"sensitivity": {"output_0": 1.0}}}


def glucose(drift: Any = None) -> Model:
    likelihood = build(LikelihoodConfig, {} if drift is None else {"drift": drift})
    return Model(build_system({"kind": "glucose"}, ("glucose",)), build(ForceConfig, KERNEL), likelihood)


def days(count: int, points: int = 73, seed: int = 3) -> list[Instance]:
    made = {"mechanism": {"kind": "glucose"}, "force": KERNEL, "instances": count, "points": points, "stop": 720.0}
    return simulate_from(build(SimulateConfig, {**made, "missing": 0.1, "seed": seed}))


def genes() -> tuple[Model, Observations]:
    drift = {"kind": "matern32", "size": {"kind": "lognormal", "median": 0.3, "spread": 0.5}}
    model = Model(
        build_system(TWO_GENES, ("output_0", "output_1")),
        build(ForceConfig, KERNEL),
        build(LikelihoodConfig, {"drift": drift}),
    )
    made = {"mechanism": TWO_GENES, "num_outputs": 2, "force": KERNEL, "instances": 3, "points": 9, "stop": 6.0}
    instances = simulate_from(build(SimulateConfig, {**made, "likelihood": {"drift": drift}, "missing": 0.2}))
    return model, collate([one.blind() for one in instances], model.mechanism.outputs)


def test_filter_and_dense_matrices_agree_on_the_density_the_curves_and_the_innovations() -> None:
    model, data = genes()
    z = 0.5 * torch.randn(3, model.space.num_free, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows = torch.arange(3)
    quick = StateSpace(model, data)
    dense = LinearGaussian(model, data, model.linearity, Quadrature(4, 6))
    torch.testing.assert_close(quick.log_marginal(z, rows), dense.log_marginal(z, rows), rtol=0, atol=1e-4)
    query = torch.linspace(0, 6, 13, dtype=torch.float64).expand(3, -1)
    one, other = quick.posterior(z, rows, query), dense.posterior(z, rows, query)
    for name in ("force_mean", "force_var", "output_mean", "output_var"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=1e-4)
    squares = quick.innovations(z, rows).square().sum((-2, -1)), dense.innovations(z, rows).square().sum((-2, -1))
    torch.testing.assert_close(*squares, rtol=0, atol=1e-3)


def test_the_density_of_data_with_drift_is_that_of_a_normal_vector() -> None:
    model, data = genes()
    own = model.likelihood
    assert isinstance(own, Gaussian)
    values: Values = model.space.unpack(torch.zeros(3, model.space.num_free, dtype=torch.float64))
    outputs = data.values + 0.1
    found = own.log_prob(values, outputs, data)
    size, scale = float(values["drift"][0, 0]), float(values["drift_time"][0, 0])
    for b in range(3):
        expected = 0.0
        for p in range(2):
            seen = data.mask[b, p].numpy()
            u = np.sqrt(3) * np.abs(np.subtract.outer(data.times[b].numpy(), data.times[b].numpy())) / scale
            noise = float(values["noise"][b, p]) ** 2 * np.eye(len(u))
            covariance = (size**2 * (1 + u) * np.exp(-u) + noise)[np.ix_(seen, seen)]
            expected += multivariate_normal.logpdf(np.full(seen.sum(), 0.1), cov=covariance)
        assert float(found[b]) == pytest.approx(expected, abs=1e-9)


def test_simulated_errors_wander_as_far_and_as_long_as_the_priors_say() -> None:
    own = glucose().likelihood
    times = np.linspace(0, 300, 61)
    values = {"noise": np.array([1.0]), "drift": np.array([5.0]), "drift_time": np.array([30.0])}
    generator = np.random.default_rng(0)
    seen = np.array([own.observe(values, np.zeros((1, 61)), times, generator)[0] for _ in range(4000)])
    u = np.sqrt(5) * np.abs(np.subtract.outer(times, times)) / 30
    expected = 25 * (1 + u + u**2 / 3) * np.exp(-u) + np.eye(61)
    assert np.abs(np.cov(seen.T) - expected).max() < 0.1 * 26


def test_joint_draws_have_the_moments_of_the_curves_without_the_drift() -> None:
    model, data = genes()
    z = torch.zeros(400, model.space.num_free, dtype=torch.float64)
    rows, query = torch.zeros(400, dtype=torch.long), torch.linspace(0, 6, 5, dtype=torch.float64).expand(400, -1)
    dense = LinearGaussian(model, data, model.linearity, Quadrature(2, 4))
    force, outputs = dense.draw(z, rows, query, torch.Generator().manual_seed(1))
    moments = dense.posterior(z[:1], rows[:1], query[:1])
    for drawn, mean, var in (
        (force, moments.force_mean[0], moments.force_var[0]),
        (outputs, moments.output_mean[0], moments.output_var[0]),
    ):
        off = (drawn.mean(0) - mean).abs() / (var / 400).clamp_min(1e-8).sqrt()
        assert float(off.max()) < 4.5
        assert float((drawn.var(0) / var.clamp_min(1e-6) - 1)[var > 1e-4].abs().max()) < 0.4


def held(model: Model, instances: list[Instance]) -> tuple[float, list[str]]:
    """Share of the noise-free curves that 95 % bands hold, and the statuses."""
    results = fit_instances(model, [one.blind() for one in instances], InferenceConfig())
    inside = []
    for instance, result in zip(instances, results, strict=True):
        truth, band = instance.truth, result.at_data.outputs
        assert truth is not None
        clean = np.interp(instance.times, truth.times, truth.outputs[0])
        inside.append(np.abs(clean - band.mean[0]) <= 1.96 * band.sd[0])
    return float(np.mean(inside)), [one.status for one in results]


def test_bands_hold_the_curve_below_a_drifting_sensor_and_without_a_drift_they_do_not() -> None:
    instances = days(12)
    share, statuses = held(glucose(), instances)
    assert share > 0.88
    assert statuses.count("converged") >= 11
    without, _ = held(glucose(drift=False), instances)
    assert without < 0.8


def test_a_nested_fit_of_a_linear_equation_with_drift_agrees_with_the_filter() -> None:
    instance = days(1, points=13)[0].blind()
    exact = fit_instances(glucose(), [instance], InferenceConfig(grid_points=13))[0]
    sampled = fit_instances(glucose(), [instance], InferenceConfig(method="nested", grid_points=13))[0]
    apart = np.abs(exact.outputs.mean - sampled.outputs.mean) / exact.outputs.sd
    assert apart.max() < 0.6
    assert np.abs(np.log(sampled.outputs.sd / exact.outputs.sd)).max() < 0.4


def test_a_run_of_version_0_1_goes_on_without_a_drift_and_a_new_one_has_the_equations() -> None:
    everything = LikelihoodConfig().model_dump(mode="json")
    del everything["drift"]
    old = build(LikelihoodConfig, everything)
    system = build_system({"kind": "glucose"}, ("glucose",))
    force = build(ForceConfig, KERNEL)
    assert Model(system, force, old).likelihood.drift is None
    assert Model(system, force, LikelihoodConfig()).likelihood.drift is not None
    stated = build(LikelihoodConfig, {"drift": {"kind": "matern12"}})
    drift = Model(system, force, stated).likelihood.drift
    assert drift is not None
    assert (drift.kind, drift.time.median) == ("matern12", 30.0)  # type: ignore[union-attr]


def test_counts_and_fields_refuse_a_drift() -> None:
    with pytest.raises(UsageError, match="Gaussian noise, and the likelihood 'poisson' has another"):
        Model(
            build_system({"kind": "transcription"}, ("a",)),
            ForceConfig(),
            build(LikelihoodConfig, {"kind": "poisson", "drift": {}}),
        )
    field = build_system({"kind": "reaction_diffusion"}, ("y",))
    with pytest.raises(UsageError, match="places"):
        Model(field, ForceConfig(), build(LikelihoodConfig, {"drift": {}}))
