"""Force and parameters sampled together: gradients, agreement with the closed form, and answers of one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import collate
from distlfm.inference.series.joint.density import Density
from distlfm.inference.series.joint.fit import fit_joint
from distlfm.inference.series.joint.grid import Grid
from distlfm.inference.series.joint.method import misfit
from distlfm.inference.series.joint.metric import Metric, held
from distlfm.inference.series.joint.modes import Modes, climb
from distlfm.inference.series.joint.sampler import SamplerConfig
from distlfm.inference.series.joint.waves import Circle, FreeWaves
from distlfm.inference.series.linear import LinearGaussian, Quadrature
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_mechanism
from distlfm.mechanisms.priors import LogNormal
from distlfm.simulation.instances import simulate
from distlfm.solvers import ode

GENES = ("a", "b")
TWO = {"forces": ("f", "g"), "response": {"kind": "hill"}}
CASES: dict[str, dict[str, Any]] = {
    "softplus": {"response": {"kind": "softplus"}},
    "hill with two forces": TWO,
    "a predator": {"kind": "lotka_volterra", "outputs": ("predator",)},
    "hidden states": {"kind": "cascade"},
    "a periodic force": {"response": {"kind": "softplus"}, "kernel": "periodic"},
    "counts": {"response": {"kind": "softplus"}, "likelihood": {"kind": "negative_binomial"}},
    "a drift": {"response": {"kind": "softplus"}, "likelihood": {"drift": {"kind": "matern12"}}},
}


def make_model(**content: Any) -> Model:
    kernel, likelihood = content.pop("kernel", "rbf"), content.pop("likelihood", {})
    mechanism = build_mechanism({"kind": "transcription", "outputs": GENES, **content})
    priors = {"lengthscale": LogNormal(median=2.0, spread=0.3), "variance": LogNormal(median=1.0, spread=0.3)}
    noise = {"shared": True, "prior": LogNormal(median=0.1, spread=0.5), **likelihood}
    force = build(ForceConfig, {"kernel": {"kind": kernel}, "priors": priors})
    return Model(mechanism, force, LikelihoodConfig.model_validate(noise))


def make_instances(model: Model, count: int, points: int = 10) -> list[Instance]:
    times, truth = np.linspace(0, 9, points).tolist(), np.linspace(0, 9, 19).tolist()
    return simulate(model, num_instances=count, times=times, truth_times=truth, seed=2)


def density_of(model: Model, instances: list[Instance], kernel: str = "rbf") -> Density:
    data = collate([one.blind() for one in instances], model.mechanism.outputs)
    first, last = data.times[:, 0], data.times[:, -1]
    span = last - first
    waves = (
        FreeWaves(model, first, span)
        if kernel == "periodic"
        else Circle.around(model, first, last, span / 5, span / 3, 40)
    )
    return Density.of(model, data, Grid.chosen(data), waves)


@pytest.mark.parametrize("name", CASES)
def test_gradients_and_jacobians_are_those_of_differences(name: str) -> None:
    content = dict(CASES[name])
    model = make_model(**content)
    density = density_of(model, make_instances(model, 2), content.get("kernel", "rbf"))
    generator = torch.Generator().manual_seed(1)
    w = 0.3 * torch.randn(2, 2, density.size, generator=generator, dtype=torch.float64) * density.active
    value, gradient = density.with_gradient(w)
    found = density.linearised(w)
    assert torch.isfinite(value).all()
    for i in range(0, density.size, 3):
        step = torch.zeros_like(w)
        step[..., i] = 1e-5 * density.active[:, i]
        with torch.no_grad():
            slope = (density.log_density(w + step) - density.log_density(w - step)) / 2e-5
            change = (density.outputs(w + step)[1] - density.outputs(w - step)[1]) / 2e-5
        torch.testing.assert_close(gradient[..., i], slope, rtol=1e-4, atol=1e-4 * float(value.abs().max()) ** 0.5)
        torch.testing.assert_close(found.jacobian[..., i], change, rtol=1e-4, atol=1e-5)


def test_trajectories_are_those_of_the_general_solver() -> None:
    model = make_model(**CASES["softplus"])
    density = density_of(model, make_instances(model, 2))
    w = 0.5 * torch.ones(1, 2, density.size, dtype=torch.float64) * density.active
    values, outputs, ok = density.outputs(w)
    _, amplitudes = density.split(w)

    def force(x: torch.Tensor) -> torch.Tensor:
        return density.waves.force(values, amplitudes, x[..., 0]).permute(1, 2, 3, 0)

    config = build(ode.SolverConfig, {"steps": 400})
    exact = ode.solve(model.mechanism, force, values, density.data.times, config)
    assert ok.all()
    torch.testing.assert_close(outputs, exact.states.mT, rtol=1e-3, atol=1e-3)


def test_a_step_is_checked_by_halving_for_each_instance_alone() -> None:
    """A fast decay needs short steps, and its neighbour keeps its own."""
    model = make_model(response={"kind": "softplus"}, fixed={"decay": {"a": 12.0, "b": 0.5}, "basal": 0.1})
    instances = make_instances(model, 2)
    slow = replace(instances[1], mask=np.array([[False], [True]]) & instances[1].mask)
    data = collate([one.blind() for one in (instances[0], slow)], GENES)
    short = SamplerConfig(chains=4, warm=(1,), kept=2, extensions=0)
    together = fit_joint(model, data, [1, 2], short, 1, False, None).posterior.density.grid.steps  # type: ignore[attr-defined]
    alone = fit_joint(model, data.rows(torch.tensor([1])), [2], short, 1, False, None)
    assert together[1] == alone.posterior.density.grid.steps[0]  # type: ignore[attr-defined]
    assert together[0] > 18


def linear_model() -> Model:
    return make_model(fixed={"basal": 0.2, "sensitivity": 1.0})


def test_with_the_force_summed_out_a_linear_equation_has_the_density_of_the_closed_form() -> None:
    """Outputs are linear in the amplitudes there, so their Jacobian gives the density of the data."""
    model = linear_model()
    instances = make_instances(model, 1)
    density = density_of(model, instances)
    z = torch.zeros(5, 1, model.space.num_free, dtype=torch.float64)
    z[:, 0, model.space.slice_of("force.lengthscale")] = torch.linspace(-1, 1, 5, dtype=torch.float64).unsqueeze(-1)
    amplitudes = torch.zeros(5, 1, density.size - density.num_free, dtype=torch.float64)
    found = density.linearised(torch.cat([z, amplitudes], -1))
    white = density.weighted(found.values, found.outputs, found.jacobian)[..., density.num_free :]
    rest = density.weighted(found.values, found.outputs, (density.data.values - found.outputs).unsqueeze(-1))
    noise = model.noise_variance(found.values, density.data).flatten(-2)
    normal = torch.distributions.MultivariateNormal(
        torch.zeros(white.shape[-2], dtype=torch.float64),
        white @ white.mT + torch.eye(white.shape[-2], dtype=torch.float64),
    )
    mine = normal.log_prob(rest[..., 0])[:, 0] - 0.5 * noise.log().sum(-1)[:, 0]
    exact = LinearGaussian(model, density.data, model.linearity, Quadrature(6))
    theirs = exact.log_marginal(z[:, 0], torch.zeros(5, dtype=torch.long))
    torch.testing.assert_close(mine, theirs, rtol=0, atol=5e-3)


def test_a_linear_equation_has_the_force_of_the_closed_form() -> None:
    model = linear_model()
    instances = make_instances(model, 2)
    options = [build(InferenceConfig, {"method": name, "grid_points": 12}) for name in ("collapsed", "joint")]
    for one, other in zip(*(fit_instances(model, instances, each) for each in options), strict=True):
        assert (np.abs(one.force.mean - other.force.mean) / one.force.sd).mean() < 0.35
        assert np.abs(np.log(other.force.sd / one.force.sd)).mean() < 0.2


def test_modes_do_not_depend_on_the_batch() -> None:
    model = make_model(**CASES["softplus"])
    instances = [*make_instances(model, 2), *make_instances(model, 1, points=17)]
    whole = density_of(model, instances)
    start = torch.zeros(1, 3, whole.size, dtype=torch.float64)
    together = climb(whole, start)
    for b, instance in enumerate(instances):
        own = density_of(model, [instance])
        alone = climb(own, start[:, :1, : own.size])
        z = together.w[0, b, : whole.num_free]
        torch.testing.assert_close(z, alone.w[0, 0, : own.num_free], rtol=0, atol=1e-6)


def test_what_has_no_waves_in_time_goes_to_nested() -> None:
    options = InferenceConfig()
    flow = Model(build_mechanism({"kind": "nonparametric", "outputs": ("y",)}), ForceConfig(), LikelihoodConfig())
    rough = make_model(response={"kind": "softplus"}, kernel="matern12")
    for model in (flow, rough):
        assert misfit(model, options) is not None
        with pytest.raises(UsageError, match="does not suit this model"):
            fit_instances(model, make_instances(rough, 1), InferenceConfig(method="joint"))
    assert misfit(make_model(**CASES["softplus"]), options) is None


def test_coordinates_of_a_chain_follow_its_kernel() -> None:
    """Curvature found with one kernel gives that of amplitudes and rates with another, where outputs are linear."""
    model = linear_model()
    density = density_of(model, make_instances(model, 1))
    n = density.num_free
    here = torch.zeros(1, 1, density.size, dtype=torch.float64)
    there = here.clone()
    there[..., torch.nonzero(held(density)).squeeze(-1)] = 0.8
    modes = Modes(here, torch.eye(density.size).double().expand(1, 1, -1, -1), *torch.zeros(3, 1, 1).double())
    metric = Metric.of(density, here, modes)
    factor = metric.factor(*metric.waves(there[..., :n]))
    found = density.linearised(there)
    columns = density.weighted(found.values, found.outputs, found.jacobian)
    columns[..., :n] *= ~(held(density) | density.noise)
    exact = columns.mT @ columns + torch.eye(density.size, dtype=torch.float64)
    x = torch.randn(3, 1, density.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    turned = factor.back((exact @ factor.away(x)[..., None]).squeeze(-1))
    active = density.active.expand_as(x)
    torch.testing.assert_close(turned[active], x[active], rtol=1e-5, atol=1e-6)
