"""What every likelihood keeps to. `--plugin FILE` puts your own through the same tests."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.inference.observations import Observations, collate
from distlfm.instance import FloatArray, Instance
from distlfm.likelihoods import LIKELIHOODS, Likelihood, build_likelihood
from distlfm.likelihoods.counts import positive_rate
from distlfm.mechanisms import ParameterSpace, Values

OUTPUTS = ("a", "b")
TIMES = np.arange(7.0)
LARGEST = 3000
"""Counts above this have no probability worth adding."""


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
    likelihood = build_likelihood(LIKELIHOODS[request.param].Options(kind=request.param), OUTPUTS)
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
