"""What every likelihood keeps to. `--plugin FILE` puts your own through the same tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from torch import Tensor

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.inference.observations import Observations, collate
from distlfm.instance import FloatArray, Instance
from distlfm.likelihoods import LIKELIHOODS, Likelihood, LikelihoodConfig, build_likelihood
from distlfm.likelihoods.base import may_vanish
from distlfm.likelihoods.counts import positive_rate
from distlfm.mechanisms import ParameterSpace, Values
from distlfm.mechanisms.priors import LogNormal

OUTPUTS = ("a", "b")
TIMES = np.arange(7.0)
LARGEST = 3000
"""Counts above this have no probability worth adding."""

SHARE = {"kind": "lognormal", "median": 0.1, "spread": 1.0}
SECTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "given": {"noise": "given"},
    "both": {"noise": "both", "floor": 0.3},
    "shared": {"shared": True, "floor": 0.3},
    "relative": {"relative": SHARE},
    "drift": {"drift": {"kind": "matern32"}},
    "all": {"noise": "both", "relative": SHARE, "drift": {}, "shared": True},
}
"""Options by a name; every likelihood is to say what it does with them."""


@dataclass(frozen=True)
class Case:
    """A likelihood, values of its parameters [1, P], and outputs [P, T]."""

    likelihood: Likelihood
    values: Values
    outputs: FloatArray

    @property
    def numbers(self) -> dict[str, FloatArray]:
        return {name: value[0].numpy() for name, value in self.values.items()}

    @property
    def counts(self) -> bool:
        return bool((self.drawn(0) == np.rint(self.drawn(0))).all())

    def drawn(self, seed: int, outputs: FloatArray | None = None) -> FloatArray:
        where = self.outputs if outputs is None else outputs
        return self.likelihood.sample(self.numbers, where, np.random.default_rng(seed))

    def instance(self, seed: int = 0) -> Instance:
        mask = np.random.default_rng(3).random(self.outputs.shape) > 0.3
        return Instance("one", OUTPUTS, TIMES, np.where(mask, self.drawn(seed), 0.0), mask)

    def data(self, values: FloatArray) -> Observations:
        """Whole data [B, P, T] of B instances."""
        times = torch.from_numpy(TIMES).expand(len(values), -1)
        every = torch.ones(values.shape, dtype=torch.bool)
        return Observations(("one",) * len(values), OUTPUTS, times, torch.from_numpy(values), every, None)

    def moments(self) -> FloatArray:
        """Sum, mean and variance of the density under each output, [3, P, T]."""
        steps = np.sinh(np.linspace(-14, 14, 8001))[:, None, None]
        at = np.arange(LARGEST + 0.0)[:, None, None] + 0 * self.outputs if self.counts else self.outputs + 0.1 * steps
        outputs = torch.from_numpy(self.outputs).expand(*at.shape)
        values = {name: value.expand(len(at), -1) for name, value in self.values.items()}
        density = self.likelihood.density(values, outputs, self.data(at)).exp().numpy()

        def total(each: FloatArray) -> FloatArray:
            return each.sum(0) if self.counts else scipy.integrate.simpson(each, x=at, axis=0)

        mean = total(at * density)
        return np.stack([total(density), mean, total((at - mean) ** 2 * density)])


@pytest.fixture(params=sorted(LIKELIHOODS))
def case(request: pytest.FixtureRequest) -> Case:
    return case_of(request.param)


def case_of(kind: str, section: str = "plain") -> Case:
    options = build(LikelihoodConfig, {"kind": kind, **SECTIONS[section]})
    likelihood = build_likelihood(options, OUTPUTS)
    space = ParameterSpace(likelihood.parameters())
    z = 0.5 * torch.randn(1, space.num_free, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    outputs = np.random.default_rng(0).uniform(1.0, 12.0, (len(OUTPUTS), len(TIMES)))
    return Case(likelihood, space.unpack(z), outputs)


def test_its_parameters_are_noise_and_its_keys_are_in_its_options(case: Case) -> None:
    for parameter in case.likelihood.parameters():
        assert parameter.kind == "noise"
        assert case.likelihood.keys.get(parameter.name, parameter.name) in case.likelihood.Options.model_fields


def test_the_density_sums_to_one_with_the_variance_that_it_says(case: Case) -> None:
    whole, _, spread = case.moments()
    np.testing.assert_allclose(whole, 1.0, rtol=1e-6)
    outputs, data = torch.from_numpy(case.outputs).unsqueeze(0), case.data(case.drawn(0)[None])
    variance = case.likelihood.noise_variance(case.values, data, outputs).expand(1, *case.outputs.shape)[0]
    np.testing.assert_allclose(variance.numpy(), spread, rtol=1e-4)


def test_draws_have_the_mean_and_the_variance_of_the_density(case: Case) -> None:
    number = 60_000
    drawn = case.drawn(5, np.repeat(case.outputs[:, :1], number, 1))
    _, mean, spread = case.moments()[..., 0]
    squares = (drawn - drawn.mean(-1, keepdims=True)) ** 2
    assert (np.abs(drawn.mean(-1) - mean) < 5 * np.sqrt(spread / number)).all()
    assert (np.abs(squares.mean(-1) - spread) < 5 * squares.std(-1) / np.sqrt(number)).all()


def test_draws_follow_from_the_seed(case: Case) -> None:
    np.testing.assert_array_equal(case.drawn(2), case.drawn(2))
    assert (case.drawn(2) != case.drawn(3)).any()


def test_gradients_are_those_of_differences(case: Case) -> None:
    data = collate([case.instance()], OUTPUTS)
    names = list(case.values)

    def density(outputs: Tensor, *values: Tensor) -> Tensor:
        return case.likelihood.log_prob(dict(zip(names, values, strict=True)), outputs, data)

    free = [torch.from_numpy(case.outputs).unsqueeze(0), *case.values.values()]
    assert torch.autograd.gradcheck(density, [one.clone().requires_grad_() for one in free])


def test_what_was_not_observed_counts_nothing(case: Case) -> None:
    data, outputs = collate([case.instance()], OUTPUTS), torch.from_numpy(case.outputs).unsqueeze(0)
    other = torch.where(data.mask, data.values, torch.from_numpy(case.drawn(9)))
    found = case.likelihood.log_prob(case.values, outputs, data)
    assert torch.equal(found, case.likelihood.log_prob(case.values, outputs, replace(data, values=other)))
    nothing = replace(data, mask=torch.zeros_like(data.mask))
    assert case.likelihood.log_prob(case.values, outputs, nothing).tolist() == [0.0]


def test_samples_and_instances_are_independent(case: Case) -> None:
    data = collate([case.instance(seed) for seed in range(3)], OUTPUTS)
    outputs = torch.from_numpy(case.outputs) + torch.rand(4, 3, 1, 1, dtype=torch.float64)
    values = {name: value * torch.linspace(0.9, 1.1, 4)[:, None, None] for name, value in case.values.items()}
    values = {name: value.expand(4, 3, -1) for name, value in values.items()}
    together = case.likelihood.log_prob(values, outputs, data)
    assert together.shape == (4, 3)
    for s in range(4):
        for b in range(3):
            own = {name: value[s, b : b + 1] for name, value in values.items()}
            alone = case.likelihood.log_prob(own, outputs[s, b : b + 1], data.rows(torch.tensor([b])))
            torch.testing.assert_close(alone[0], together[s, b], rtol=1e-12, atol=0)


def test_its_own_draws_are_taken_and_what_they_cannot_be_is_refused(case: Case) -> None:
    instance = case.instance()
    case.likelihood.check(instance)
    for wrong in (-1.0, 1.5) if case.counts else ():
        spoilt = replace(instance, values=np.where(instance.mask, wrong, 0.0))
        with pytest.raises(UsageError, match="'one'") as refused:
            case.likelihood.check(spoilt)
        assert refused.value.fix
        case.likelihood.check(replace(instance, values=np.where(instance.mask, instance.values, wrong)))


def test_a_report_has_words_for_it(case: Case) -> None:
    words = case.likelihood.words([f"{one.name} lognormal" for one in case.likelihood.parameters()])
    assert all(words)
    assert words


VARIED = [
    pytest.param(kind, section, id=f"{kind}-{section}")
    for kind, one in sorted(LIKELIHOODS.items())
    for section, options in SECTIONS.items()
    if one.gaussian or "drift" not in options
]


def data_of(case: Case) -> tuple[Observations, Tensor]:
    """Data with variances, of which some are not observed, and the outputs [1, P, T]."""
    plain = case_of(case.likelihood.options.kind)  # what takes variances that are given draws none itself
    data, variance = collate([plain.instance()], OUTPUTS), torch.linspace(0.5, 2, 14, dtype=torch.float64)
    return replace(data, variance=variance.reshape(1, 2, 7)), torch.from_numpy(case.outputs).unsqueeze(0)


@pytest.mark.parametrize(("kind", "section"), VARIED)
def test_its_variance_follows_what_it_says_it_takes(kind: str, section: str) -> None:
    case = case_of(kind, section)
    own, (data, outputs) = case.likelihood, data_of(case)
    plain = own.noise_variance(case.values, data, outputs)
    assert data.variance is not None
    for changed, wanted in (
        (replace(data, variance=2 * data.variance), own.takes_variances),
        (replace(data, level=100 + outputs), own.takes_level),
    ):
        assert (not torch.equal(own.noise_variance(case.values, changed, outputs), plain)) == wanted
    assert not own.learns_noise or ("noise" in case.values and not own.takes_variances)
    assert not own.knows_noise or ("noise" not in case.values and own.takes_variances)
    assert all(may_vanish(name) and own.keys[name] for name in own.vanishing)


@pytest.mark.parametrize(("kind", "section"), VARIED)
def test_a_steady_variance_is_one_part_of_the_data_times_one_of_the_unknowns(kind: str, section: str) -> None:
    case = case_of(kind, section)
    own, (data, outputs) = case.likelihood, data_of(case)
    if kind == "gaussian":
        assert own.steady == (section in ("plain", "given", "shared"))
    if own.steady:
        product = own.data_variance(data) * own.unit_variance(case.values).unsqueeze(-1)
        whole = own.noise_variance(case.values, data, outputs)
        torch.testing.assert_close(product.expand_as(whole), whole, rtol=1e-7, atol=0)
        assert own.noise_factor(case.values, data) is None


@pytest.mark.parametrize(("kind", "section"), VARIED)
def test_errors_that_wander_are_in_the_covariance_and_in_the_density(kind: str, section: str) -> None:
    case = case_of(kind, section)
    own, (data, outputs) = case.likelihood, data_of(case)
    noise, drift = own.noise_variance(case.values, data, outputs), own.drift_covariance(case.values, data)
    factor, total = own.noise_factor(case.values, data), own.total_variance(case.values, data, outputs)
    density = own.log_prob(case.values, outputs, data)
    assert (drift is None) == (factor is None) == (own.drift_scales(case.values) == ())
    if drift is None or factor is None:
        assert torch.equal(total, noise)
        torch.testing.assert_close(density, own.density(case.values, outputs, data)[data.mask].sum().unsqueeze(0))
        return
    torch.testing.assert_close(total, noise + torch.diagonal(drift, dim1=-2, dim2=-1))
    expected = 0.0
    for seen, whole, each, off in zip(data.mask[0], drift[0], noise[0], (data.values - outputs)[0], strict=True):
        own_part = (whole + torch.diag(each))[seen][:, seen].numpy()
        expected += scipy.stats.multivariate_normal.logpdf(off[seen].numpy(), cov=own_part)
    assert float(density) == pytest.approx(expected)
    apart = factor @ factor.mT - torch.where(data.mask.unsqueeze(-1) & data.mask.unsqueeze(-2), drift, 0.0)
    torch.testing.assert_close(apart, torch.diag_embed(torch.where(data.mask, noise, 1.0)))


@pytest.mark.parametrize(("kind", "section"), VARIED)
def test_its_deviation_is_the_root_of_all_its_variance(kind: str, section: str) -> None:
    case = case_of(kind, section)
    data, outputs = data_of(case)
    assert data.variance is not None
    found = case.likelihood.deviation(case.numbers, case.outputs, data.variance[0].numpy())
    total = case.likelihood.total_variance(case.values, replace(data, level=outputs), outputs)[0].numpy()
    if found is not None:
        np.testing.assert_allclose(np.broadcast_to(found, total.shape), np.sqrt(total), rtol=1e-7)
    assert found is not None or kind != "gaussian"


def test_it_has_a_section_with_an_error_that_wanders_or_refuses_it(case: Case) -> None:
    section = case.likelihood.with_drift(LogNormal(0.3, 1.0), LogNormal(2.0, 1.0))
    if not case.likelihood.gaussian:
        with pytest.raises(UsageError, match="drift"):
            build_likelihood(section, OUTPUTS)
        return
    drift = build_likelihood(section, OUTPUTS).drift
    assert drift is not None
    assert (drift.size, drift.time) == (LogNormal(0.3, 1.0), LogNormal(2.0, 1.0))


def count_data() -> tuple[Instance, Tensor]:
    rng = np.random.default_rng(0)
    outputs = rng.uniform(0.5, 30.0, (2, 5))
    mask = rng.random((2, 5)) > 0.3
    instance = Instance("one", OUTPUTS, np.arange(5.0), rng.poisson(outputs).astype(float) * mask, mask)
    return instance, torch.from_numpy(outputs)


@pytest.mark.parametrize("kind", ["poisson", "negative_binomial", "gaussian"])
def test_the_shipped_ones_are_scipys(kind: str) -> None:
    instance, outputs = count_data()
    scatter = np.array([0.2, 1.7])
    values = {name: torch.from_numpy(scatter).expand(3, 1, 2) for name in ("dispersion", "noise")}
    mean = positive_rate(outputs).numpy()
    if kind == "poisson":
        expected = scipy.stats.poisson.logpmf(instance.values, mean)
    elif kind == "negative_binomial":
        size = 1 / scatter[:, None]
        expected = scipy.stats.nbinom.logpmf(instance.values, size, size / (size + mean))
    else:
        expected = scipy.stats.norm.logpdf(instance.values, outputs.numpy(), scatter[:, None])
    likelihood = build_likelihood(LIKELIHOODS[kind].Options(kind=kind), OUTPUTS)
    found = likelihood.log_prob(values, outputs.expand(3, 1, 2, 5), collate([instance], OUTPUTS))
    np.testing.assert_allclose(found.numpy(), np.full((3, 1), expected[instance.mask].sum()), rtol=1e-9)


def test_the_rate_of_a_count_is_the_output_itself_and_positive_below_zero() -> None:
    y = torch.tensor([-50.0, -0.2, 0.0, 0.5, 3.0, 1e4], dtype=torch.float64)
    rate = positive_rate(y)
    assert (rate > 0).all()
    torch.testing.assert_close(rate[3:], y[3:], rtol=1e-4, atol=0)
