"""Fits through the solver: against the exact answer where there is one, with counts, and with flows of the state."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from distlfm.inference.findings.scores import figures
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import collate
from distlfm.inference.result import FitResult
from distlfm.inference.series.linear import LinearGaussian, Quadrature
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import Mechanism, Parameter, build_mechanism, register
from distlfm.mechanisms.priors import LogNormal, Values
from distlfm.simulation.instances import simulate
from distlfm.solvers.linear import probe

GENES = ("a", "b")
NOISE = 0.1
TIMES = np.linspace(0, 8, 9).tolist()


def make_model(likelihood: LikelihoodConfig, response: str = "identity", **fixed: Any) -> Model:
    """Two genes of known decay and sensitivity: the basal rates and the force are open."""
    known = {"sensitivity": dict.fromkeys(GENES, 1.0), "decay": {"a": 0.5, "b": 1.0}, **fixed}
    options = {"kind": "transcription", "outputs": GENES, "response": {"kind": response}, "fixed": known}
    return Model(build_mechanism(options), ForceConfig(fixed={"lengthscale": 2.0, "variance": 1.0}), likelihood)


def make_instances(response: str, count: int, **fixed: Any) -> list[Instance]:
    model = make_model(LikelihoodConfig(prior=LogNormal(median=NOISE, spread=1e-3)), response, **fixed)
    truth_times = np.linspace(0, 8, 33).tolist()
    found = simulate(model, num_instances=count, times=TIMES, truth_times=truth_times, seed=1)
    return [replace(one, variance=np.full(one.values.shape, NOISE**2)) for one in found]


def options(method: str = "variational", **variational: Any) -> InferenceConfig:
    small = {"draws": 128, "num_inducing": 10, "samples": 6, "features": 32}
    own = {"stages": (60, 60)} if method == "variational" else {"stages": (60, 60), "draws": 16}
    return InferenceConfig.model_validate(
        {
            "method": method,
            "grid_points": 12,
            "optimiser": {"rounds": 2, "iterations": 50},
            "variational": {**small, **variational},
            "posterior": own,
        }
    )


GIVEN = LikelihoodConfig(noise="given")
KNOWN_BASAL = {"basal": {"b": 0.1}}


@pytest.fixture(scope="module")
def linear_fits() -> list[FitResult]:
    return fit_instances(make_model(GIVEN, **KNOWN_BASAL), make_instances("identity", 2, **KNOWN_BASAL), options())


def test_the_bound_is_below_the_exact_evidence_and_near_it(linear_fits: list[FitResult]) -> None:
    model = make_model(GIVEN, **KNOWN_BASAL)
    assert model.space.num_free == 1
    data = collate([result.instance for result in linear_fits], GENES)
    marginal = LinearGaussian(model, data, probe(model.mechanism, model.space), Quadrature(2))
    points = torch.linspace(-8, 8, 801, dtype=torch.float64)
    share = np.log(16 / 800 / np.sqrt(2 * np.pi)) - 0.5 * points.square()
    for row, result in enumerate(linear_fits):
        each = marginal.log_marginal(points.unsqueeze(-1), torch.full((len(points),), row))
        evidence = float(torch.logsumexp(each + share, 0))
        assert result.method == "variational"
        assert evidence - 0.3 < result.bound < evidence


def test_force_and_band_approach_the_exact_posterior(linear_fits: list[FitResult]) -> None:
    instances = [result.instance for result in linear_fits]
    exact = fit_instances(make_model(GIVEN, **KNOWN_BASAL), instances, options("collapsed"))
    for one, other in zip(linear_fits, exact, strict=True):
        off = np.abs(one.grid.force.mean - other.grid.force.mean) / other.grid.force.sd
        assert off.max() < 0.5
        assert off.mean() < 0.25
        ratio = one.grid.force.sd / other.grid.force.sd
        assert ((ratio > 0.7) & (ratio < 1.4)).all()
        np.testing.assert_allclose(one.grid.outputs.mean, other.grid.outputs.mean, atol=0.3 * NOISE)


@pytest.mark.slow
def test_natural_gradients_reach_the_answer_of_adam(linear_fits: list[FitResult]) -> None:
    model, instances = make_model(GIVEN, **KNOWN_BASAL), [result.instance for result in linear_fits]
    for one, other in zip(
        fit_instances(model, instances, options(gradient="natural", learning_rate=0.1, iterations=600)),
        linear_fits,
        strict=True,
    ):
        assert one.status == "converged"
        assert one.bound == pytest.approx(other.bound, abs=2.0)
        off = np.abs(one.grid.force.mean - other.grid.force.mean) / other.grid.force.sd
        assert off.max() < 0.6
        assert np.abs(np.log(one.grid.force.sd / other.grid.force.sd)).max() < 0.5


def test_an_absurd_neighbour_is_flagged_and_changes_no_other() -> None:
    model, instances = make_model(GIVEN, "softplus"), make_instances("softplus", 2)
    small = options(iterations=10, num_inducing=6, draws=16)
    bad = replace(instances[0], id="bad", values=np.full((2, len(TIMES)), 1e200))
    alone = fit_instances(model, instances, small)
    one, broken, other = fit_instances(model, [instances[0], bad, instances[1]], small)
    assert broken.status == "diverged"
    assert "units" in broken.advice
    assert not broken.ok
    for found, expected in zip((one, other), alone, strict=True):
        assert found.ok
        np.testing.assert_allclose(found.grid.force.mean, expected.grid.force.mean, rtol=0, atol=1e-8)
        np.testing.assert_allclose(found.trace[-1], expected.trace[-1], rtol=1e-6)


# ---- likelihoods -----------------------------------------------------------------------------------------------------


METHODS = {"auto": "nested", "variational": "variational"}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["poisson", "negative_binomial"])
def test_the_force_behind_counts_is_recovered(kind: str, method: str) -> None:
    known = {"sensitivity": dict.fromkeys(GENES, 200.0), "basal": dict.fromkeys(GENES, 1.0)}
    likelihood = LikelihoodConfig(kind=kind, dispersion=LogNormal(median=0.005, spread=0.1))
    model = make_model(likelihood, "softplus", **known)
    times = np.linspace(0, 10, 13).tolist()
    instances = simulate(model, num_instances=1, times=times, truth_times=np.linspace(0, 10, 41).tolist(), seed=5)
    for result in fit_instances(model, instances, options(method, iterations=20)):
        assert result.method == METHODS[method]
        assert result.ok
        found = figures(result)
        assert found["latent_correlation"] > 0.8
        assert found["output_q2"] > 0.9


# ---- a flow of the state ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["auto", "variational"])
@pytest.mark.slow
def test_a_nonparametric_flow_finds_a_linear_one(method: str) -> None:
    """ẏ = −0.5 y from 2, of which only a noisy trajectory is given."""
    times = np.linspace(0, 4, 11)
    values = 2 * np.exp(-0.5 * times) + 0.01 * np.random.default_rng(0).normal(size=11)
    instance = Instance("decay", ("y",), times, values[None], np.ones((1, 11), bool), variance=np.full((1, 11), 1e-4))
    force = ForceConfig(
        priors={"lengthscale": LogNormal(median=2.0, spread=0.3), "variance": LogNormal(median=1.0, spread=0.5)}
    )
    model = Model(build_mechanism({"kind": "nonparametric", "outputs": ("y",)}), force, GIVEN)
    (result,) = fit_instances(
        model, [instance], options(method, num_inducing=6, iterations=10, draws=32, solver={"steps": 12})
    )
    assert result.method == method.replace("auto", "nested")  # waves in time are nothing for a flow of the state
    assert result.force_names == ("flow_y",)
    state, flow = result.grid.outputs.mean[0], result.grid.force.mean[0]
    np.testing.assert_allclose(state, 2 * np.exp(-0.5 * result.grid.times), atol=0.03)
    np.testing.assert_allclose(flow, -0.5 * state, atol=0.1)


# ---- several modes ---------------------------------------------------------------------------------------------------


@register("squared_for_test")
class Squared(Mechanism):
    """ẏ = f² − d y: the data cannot tell f from −f."""

    force_names = ("drive",)

    def parameters(self) -> list[Parameter]:
        return [Parameter("decay", ("all",), LogNormal(median=0.5, spread=0.3), positive=True)]

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        return f.square() - values["decay"] * y

    def initial_state(self, values: Values) -> Tensor:
        return 0.0 * values["decay"]


def test_modes_of_either_sign_are_mixed_by_their_evidence() -> None:
    times = np.linspace(0, 6, 13)
    values = 2 * (1 - np.exp(-0.5 * times)) + 0.02 * np.random.default_rng(0).normal(size=13)
    instance = Instance("twin", ("y",), times, values[None], np.ones((1, 13), bool), variance=np.full((1, 13), 4e-4))
    force = ForceConfig(fixed={"lengthscale": 2.0, "variance": 1.0})
    model = Model(build_mechanism({"kind": "squared_for_test", "outputs": ("y",)}), force, GIVEN)
    several = options(num_inducing=8).model_copy(update={"restarts": 4})
    (result,) = fit_instances(model, [instance], several)
    signs = np.sign(result.draws(64, times=[3.0]).force[:, 0, 0])
    assert result.status == "converged"
    assert 0.35 < (signs > 0).mean() < 0.65
    np.testing.assert_allclose(result.at_data.outputs.mean[0], values, atol=0.08)
