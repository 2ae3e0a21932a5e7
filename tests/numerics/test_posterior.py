"""The posterior of the unknowns: importance sampling, its weights and quantiles, and what it says is not known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
import torch
from torch import Tensor

from distlfm.inference.base import Mixture
from distlfm.inference.findings.estimates import weighted_quantile
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.posterior import Coordinates, ParameterPosterior, PosteriorConfig, infer, pareto_shape
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_mechanism
from distlfm.mechanisms.priors import HalfNormal, LogNormal, Parameter, ParameterSpace, Uniform
from distlfm.simulation.instances import simulate

SHAPES = torch.tensor([0.6, 1.0, 3.0], dtype=torch.float64)
"""A log-gamma variable is the more skewed, the smaller its shape; each row is three independent ones and a turn."""


class LogGamma:
    """z = turn · x with x_i the logarithms of gamma variables: mean and covariance are known."""

    def __init__(self, num_rows: int, seed: int = 0) -> None:
        stream = torch.Generator().manual_seed(seed)
        self.turn = torch.linalg.qr(torch.randn(num_rows, 3, 3, generator=stream, dtype=torch.float64))[0]
        self.mean = (self.turn @ torch.digamma(SHAPES).unsqueeze(-1)).squeeze(-1)
        self.covariance = self.turn @ torch.diag(torch.polygamma(1, SHAPES)) @ self.turn.mT
        self.mode = (self.turn @ SHAPES.log().unsqueeze(-1)).squeeze(-1)

    def __call__(self, z: Tensor, rows: Tensor) -> Tensor:
        x = (self.turn[rows].mT @ z.unsqueeze(-1)).squeeze(-1)
        return (x.exp() - SHAPES * x).sum(-1)


def posterior_of(problem: LogGamma, method: str, seeds: list[int], **options: object) -> ParameterPosterior:
    return infer(problem, problem.mode, seeds, PosteriorConfig.model_validate({"method": method, **options}))


def test_importance_sampling_finds_the_moments_of_a_skewed_posterior_and_laplace_does_not() -> None:
    problem = LogGamma(8)
    errors = {}
    for method in ("importance", "laplace"):
        found = posterior_of(problem, method, list(range(8)), stages=(100, 170, 400), draws=2000)
        mean = (found.mean - problem.mean).norm(dim=-1).mean()
        covariance = (found.covariance - problem.covariance).flatten(1).norm(dim=-1).mean()
        errors[method] = float(mean), float(covariance / problem.covariance[0].norm())
    assert errors["importance"][0] < 0.1
    assert errors["importance"][1] < 0.2
    assert errors["importance"][0] < errors["laplace"][0] / 5
    assert errors["importance"][1] < errors["laplace"][1] / 2


def test_more_proposals_bring_the_mean_closer() -> None:
    problem = LogGamma(24, seed=2)

    def error(stages: tuple[int, ...]) -> float:
        found = posterior_of(problem, "importance", list(range(24)), stages=stages)
        return float((found.mean - problem.mean).norm(dim=-1).mean())

    assert error((300, 300, 700)) < 0.6 * error((20, 20, 40))


def test_weights_are_a_distribution_and_the_effective_number_lies_within_their_count() -> None:
    found = posterior_of(LogGamma(5), "importance", list(range(5)), stages=(40, 60), draws=32)
    assert found.proposals.shape[1:] == (5, 3)
    assert len(found.proposals) >= 300  # a hundred for each of three unknowns, and more where weights are heavy
    assert found.draws.shape == (32, 5, 3)
    assert (found.weights >= 0).all()
    torch.testing.assert_close(found.weights.sum(0), torch.ones(5, dtype=torch.float64))
    assert ((found.effective > 20) & (found.effective <= len(found.proposals))).all()


def test_equal_draws_stand_for_the_weighted_ones() -> None:
    found = posterior_of(LogGamma(4), "importance", [5, 6, 7, 8], draws=400)
    sd = torch.diagonal(found.covariance, dim1=-2, dim2=-1).sqrt()
    assert ((found.draws.mean(0) - found.mean).abs() < 0.15 * sd).all()
    assert ((found.draws.std(0) / sd - 1).abs() < 0.15).all()


def weights_of(found: ParameterPosterior, row: int) -> Tensor:
    """Those of one instance; stages that only others needed have none."""
    own = found.weights[:, row]
    return own[own > 0]


@pytest.mark.parametrize("method", ["importance", "laplace", "point"])
def test_an_instance_draws_the_same_whatever_its_neighbours(method: str) -> None:
    problem = LogGamma(3)
    together = posterior_of(problem, method, [11, 22, 33], stages=(20, 30), draws=16)
    again = posterior_of(problem, method, [11, 22, 33], stages=(20, 30), draws=16)
    assert torch.equal(together.draws, again.draws)
    alone = infer(
        lambda z, rows: problem(z, rows + 1),
        problem.mode[1:2],
        [22],
        PosteriorConfig.model_validate({"method": method, "stages": (20, 30), "draws": 16}),
    )
    torch.testing.assert_close(alone.draws[:, 0], together.draws[:, 1], rtol=0, atol=1e-9)
    torch.testing.assert_close(weights_of(alone, 0), weights_of(together, 1), rtol=1e-6, atol=1e-12)


def test_a_point_estimate_is_the_mode_alone() -> None:
    found = posterior_of(LogGamma(2), "point", [0, 1])
    assert torch.equal(found.draws, found.mode.unsqueeze(0))
    assert not found.covariance.any()


def test_laplace_has_the_inverse_curvature_as_covariance() -> None:
    problem = LogGamma(2)
    found = posterior_of(problem, "laplace", [0, 1], draws=20_000)
    expected = problem.turn @ torch.diag(1 / SHAPES) @ problem.turn.mT
    torch.testing.assert_close(found.covariance, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("value", [torch.nan, torch.inf], ids=["nan", "inf"])
def test_a_row_that_is_impossible_everywhere_leaves_its_neighbours_as_they_are(value: float) -> None:
    problem = LogGamma(3)

    def spoiled(z: Tensor, rows: Tensor) -> Tensor:
        good = problem(z, rows)
        return torch.where(rows == 1, torch.full_like(good, value), good)

    options = PosteriorConfig(stages=(20, 30), draws=16)
    clean, found = (infer(one, problem.mode, [1, 2, 3], options) for one in (problem, spoiled))
    torch.testing.assert_close(clean.draws[:, [0, 2]], found.draws[:, [0, 2]], rtol=1e-9, atol=1e-12)
    for row in (0, 2):
        torch.testing.assert_close(weights_of(clean, row), weights_of(found, row), rtol=1e-9, atol=1e-12)


def test_proposals_of_unknowns_with_walls_are_made_in_natural_values() -> None:
    space = ParameterSpace(
        [Parameter("a", ("x", "y"), Uniform(0.0, 2.0)), Parameter("b", ("b",), HalfNormal(2.0), positive=True)]
    )
    coordinates = Coordinates(space)
    z = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = coordinates.straight(z)
    values = space.unpack(z)
    torch.testing.assert_close(x, torch.cat([values["a"] / 2, values["b"] / 2], -1))
    back, within = coordinates.whitened(x)
    torch.testing.assert_close(back, z)
    assert within.all()
    assert not coordinates.whitened(torch.tensor([[1.2, 0.5, 0.5], [0.5, 0.5, -0.1]], dtype=torch.float64))[1].any()
    step = 1e-6
    slope = (coordinates.straight(z + step) - coordinates.straight(z - step)) / (2 * step)
    torch.testing.assert_close(coordinates.log_slope(z), slope.log(), rtol=1e-6, atol=1e-6)


def test_a_ridge_between_walls_is_sampled_along_its_whole_length() -> None:
    space = ParameterSpace([Parameter("a", ("x", "y"), Uniform(0.0, 1.0))])

    def objective(z: Tensor, rows: Tensor) -> Tensor:
        del rows
        x, y = space.unpack(z)["a"].unbind(-1)
        return 0.5 * ((x - y) / 0.01).square() + 0.5 * z.square().sum(-1)

    found = infer(objective, torch.full((1, 2), 1.0, dtype=torch.float64), [0], PosteriorConfig(), Coordinates(space))
    x = space.unpack(found.draws[:, 0])["a"][:, 0]
    assert abs(float(x.mean()) - 0.5) < 0.1
    assert abs(float(x.std()) - 12**-0.5) < 0.06
    assert float(found.tail) < 0.7


def test_unknowns_that_the_data_say_nothing_of_cost_no_draws() -> None:
    """Twelve uniform unknowns: in natural values a proposal loses a third of its draws at each pair of walls."""
    space = ParameterSpace([Parameter("a", tuple("abcdefghijklm"), Uniform(0.0, 1.0))])

    def objective(z: Tensor, rows: Tensor) -> Tensor:
        del rows
        return 0.5 * ((space.unpack(z)["a"][:, 0] - 0.5) / 0.1).square() + 0.5 * z.square().sum(-1)

    mode = torch.zeros(1, space.num_free, dtype=torch.float64)
    found = infer(objective, mode, [0], PosteriorConfig(), Coordinates(space))
    assert float(found.effective) > 0.4 * len(found.proposals)
    assert float(found.tail) < 0.5


def test_an_instance_of_heavy_weights_goes_on_and_its_neighbours_stay_as_they_are() -> None:
    """A banana, which no Gaussian is, beside a Gaussian."""

    def objective(z: Tensor, rows: Tensor) -> Tensor:
        banana = 0.5 * z[:, 0].square() + 0.5 * ((z[:, 1] - 2 * z[:, 0].square()) / 0.3).square()
        return torch.where(rows == 0, banana, 0.5 * z.square().sum(-1))

    mode, options = torch.zeros(2, 2, dtype=torch.float64), PosteriorConfig(stages=(20, 30))
    short, long = (infer(objective, mode, [0, 1], options, further=number) for number in (0, 3))
    assert float(long.effective[0]) > 1.5 * float(short.effective[0])
    assert torch.equal(short.draws[:, 1], long.draws[:, 1])
    assert long.proposals.shape == short.proposals.shape
    alone = infer(lambda z, rows: objective(z, 0 * rows), mode[:1], [0], options, further=3)
    torch.testing.assert_close(alone.draws[:, 0], long.draws[:, 0])


@pytest.mark.parametrize("shape", [0.2, 0.5, 0.9])
def test_the_shape_of_a_pareto_tail_is_found(shape: float) -> None:
    uniform = torch.rand(4000, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights = (uniform**-shape - 1) / shape
    assert abs(float(pareto_shape(weights.log()).mean()) - shape) < 0.08


# ---- quantiles -------------------------------------------------------------------------------------------------------


def test_quantiles_of_equal_weights_are_numpys() -> None:
    draws = np.random.default_rng(0).gamma(2.0, size=(2000, 3))
    weights = torch.full((2000, 3), 1 / 2000, dtype=torch.float64)
    for level in (0.025, 0.16, 0.5, 0.975):
        found = weighted_quantile(torch.from_numpy(draws), weights, level)
        np.testing.assert_allclose(found.numpy(), np.quantile(draws, level, axis=0, method="hazen"), rtol=1e-9)


def test_a_weighted_quantile_counts_a_heavy_draw_as_many_light_ones() -> None:
    draws = torch.tensor([[3.0], [1.0], [2.0]], dtype=torch.float64)
    weights = torch.tensor([[0.8], [0.1], [0.1]], dtype=torch.float64)
    assert float(weighted_quantile(draws, weights, 0.05)) == pytest.approx(1.0)
    assert float(weighted_quantile(draws, weights, 0.15)) == pytest.approx(2.0)
    assert float(weighted_quantile(draws, weights, 0.375)) == pytest.approx(2.5)
    assert float(weighted_quantile(draws, weights, 0.99)) == pytest.approx(3.0)


def test_the_quantile_of_one_draw_is_that_draw() -> None:
    assert weighted_quantile(torch.tensor([[1.0, 2.0]]), torch.ones(1, 2), 0.9).tolist() == [1.0, 2.0]


def test_quantiles_and_moments_of_mixtures_are_exact() -> None:
    rng = np.random.default_rng(1)
    means, variances = rng.normal(size=(5, 4)), rng.gamma(1.0, size=(5, 4))
    mixture = Mixture(torch.from_numpy(means), torch.from_numpy(variances))
    for level in (0.025, 0.16, 0.5, 0.84, 0.975):
        found = mixture.quantile(level).numpy()
        for i in range(4):

            def missing(x: float, i: int = i, level: float = level) -> float:
                return float(scipy.stats.norm.cdf(x, means[:, i], np.sqrt(variances[:, i])).mean() - level)

            assert found[i] == pytest.approx(scipy.optimize.brentq(missing, -40, 40, xtol=1e-12), abs=1e-8)
    np.testing.assert_allclose(mixture.mean.numpy(), means.mean(0))
    np.testing.assert_allclose(mixture.variance.numpy(), (variances + means**2).mean(0) - means.mean(0) ** 2)
    lower, upper = mixture.interval(0.68)
    assert (lower < upper).all()


def test_a_mixture_of_points_has_their_order_statistics_as_quantiles() -> None:
    means = torch.arange(101.0, dtype=torch.float64).unsqueeze(-1)
    mixture = Mixture(means, torch.zeros_like(means))
    assert float(mixture.quantile(0.5)) == pytest.approx(50.0, abs=1e-6)
    assert float(mixture.quantile(0.025)) == pytest.approx(2.0, abs=1e-6)


# ---- what the data leave open ----------------------------------------------------------------------------------------


def one_gene(fixed: dict[str, dict[str, float]]) -> Model:
    mechanism = build_mechanism({"kind": "transcription", "outputs": ("a",), "fixed": fixed})
    force = ForceConfig(fixed={"lengthscale": 1.5}, priors={"variance": LogNormal(median=1.0, spread=2.0)})
    return Model(mechanism, force, LikelihoodConfig(noise="given"))


def one_gene_data(num_instances: int) -> list[Instance]:
    """s²·variance is 1."""
    known = {"basal": {"a": 0.1}, "decay": {"a": 0.5}, "sensitivity": {"a": 1.0}}
    mechanism = build_mechanism({"kind": "transcription", "outputs": ("a",), "fixed": known})
    force = ForceConfig(fixed={"lengthscale": 1.5, "variance": 1.0})
    exact = Model(mechanism, force, LikelihoodConfig(prior=LogNormal(median=0.05, spread=0.001)))
    times = np.linspace(0, 24, 25).tolist()
    found = simulate(exact, num_instances=num_instances, times=times, truth_times=[0], seed=1)
    return [replace(instance, variance=np.full((1, 25), 0.05**2)) for instance in found]


QUICK = InferenceConfig(grid_points=3, posterior=PosteriorConfig(stages=(40, 60), draws=4))


def test_the_scale_of_a_force_is_named_as_undetermined_until_a_sensitivity_is_fixed() -> None:
    """Twice the sensitivity and half the force give the same data: only s²·variance can be known."""
    known = {"basal": {"a": 0.1}, "decay": {"a": 0.5}}
    for result in fit_instances(one_gene(known), one_gene_data(2), QUICK):
        (direction,) = result.undetermined
        weights = dict(direction.parts)
        assert set(weights) == {"sensitivity", "force.variance"}
        # s²·v is constant where log v moves −2 for log s moving 1; in units of the priors' spreads (2 and 1): −1.
        assert weights["sensitivity"] / weights["force.variance"] == pytest.approx(-1.0, abs=0.2)
        assert 0.7 < direction.spread < 1.3
        assert "sensitivity" in str(direction)
        assert "% of the prior's spread is left" in str(direction)
    for result in fit_instances(one_gene({**known, "sensitivity": {"a": 1.0}}), one_gene_data(2), QUICK):
        assert result.undetermined == ()


def test_shrinkage_tells_known_parameters_from_unknown_ones() -> None:
    (result,) = fit_instances(one_gene({"basal": {"a": 0.1}}), one_gene_data(1), QUICK)
    found = {one.name: one for one in result.estimates}
    assert set(found) == {"decay", "sensitivity", "force.variance"}
    assert found["decay"].shrinkage > 0.5
    assert found["sensitivity"].shrinkage < 0.5
    for one in found.values():
        assert one.lower95 < one.lower68 < one.upper68 < one.upper95
        assert one.lower95 < one.mean < one.upper95
