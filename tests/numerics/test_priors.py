"""Priors that whiten, and the vector that holds the free elements of all parameters."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distlfm.errors import UsageError
from distlfm.mechanisms.priors import HalfNormal, LogNormal, Normal, Parameter, ParameterSpace, Prior, Uniform

PRIORS: dict[str, tuple[Prior, scipy.stats.rv_continuous]] = {
    "lognormal": (LogNormal(median=0.4, spread=0.8), scipy.stats.lognorm(s=0.8, scale=0.4)),
    "normal": (Normal(mean=-1.5, sd=2.0), scipy.stats.norm(-1.5, 2.0)),
    "uniform": (Uniform(low=-2.0, high=3.0), scipy.stats.uniform(-2.0, 5.0)),
    "halfnormal": (HalfNormal(scale=0.7), scipy.stats.halfnorm(scale=0.7)),
}
every_prior = pytest.mark.parametrize(("prior", "reference"), PRIORS.values(), ids=PRIORS)


@every_prior
def test_whitening_undoes_the_natural_value(prior: Prior, reference: scipy.stats.rv_continuous) -> None:
    z = torch.linspace(-5, 5, 201, dtype=torch.float64)
    torch.testing.assert_close(prior.whiten(prior.natural(z)), z, rtol=0, atol=1e-6)


@every_prior
def test_the_natural_value_of_z_is_the_priors_quantile_there(
    prior: Prior, reference: scipy.stats.rv_continuous
) -> None:
    """z has the probability Φ(z) below it, so natural(z) must be the quantile Φ(z)."""
    z = np.linspace(-4, 4, 81)
    expected = reference.ppf(scipy.stats.norm.cdf(z))
    np.testing.assert_allclose(prior.natural(torch.from_numpy(z)).numpy(), expected, rtol=1e-9, atol=1e-12)


@every_prior
def test_draws_of_a_standard_normal_become_draws_of_the_prior(
    prior: Prior, reference: scipy.stats.rv_continuous
) -> None:
    z = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = scipy.stats.kstest(prior.natural(z).numpy(), reference.cdf)
    assert found.pvalue > 1e-3


@every_prior
def test_the_natural_value_increases_and_has_a_gradient(prior: Prior, reference: scipy.stats.rv_continuous) -> None:
    z = torch.linspace(-5, 5, 101, dtype=torch.float64)
    assert (torch.diff(prior.natural(z)) > 0).all()
    some = torch.linspace(-3, 3, 7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(prior.natural, (some,))


@every_prior
def test_far_out_values_stay_finite_and_allowed(prior: Prior, reference: scipy.stats.rv_continuous) -> None:
    z = torch.tensor([-20.0, -8.0, 8.0, 20.0], dtype=torch.float64)
    value = prior.natural(z)
    assert value.isfinite().all()
    assert not prior.positive or (value >= 0).all()
    assert prior.whiten(value).isfinite().all()


def test_a_prior_says_whether_it_keeps_values_positive() -> None:
    found = {name: prior.positive for name, (prior, _) in PRIORS.items()}
    assert found == {"lognormal": True, "normal": False, "uniform": False, "halfnormal": True}
    assert Uniform(low=0.0, high=1.0).positive


def test_a_uniform_prior_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match=r"low \(2\) must be below high \(1\)"):
        Uniform(low=2.0, high=1.0)


# ---- the vector of all unknowns --------------------------------------------------------------------------------------


def make_space(fixed: dict[str, float] | None = None) -> ParameterSpace:
    return ParameterSpace(
        [
            Parameter("decay", ("a", "b", "c"), LogNormal(median=0.4), positive=True, fixed=fixed or {}),
            Parameter("weight", ("w",), Normal()),
            Parameter("share", ("a", "b"), Uniform(low=0.0, high=2.0)),
        ]
    )


@settings(max_examples=25, deadline=None)
@given(fixed=st.dictionaries(st.sampled_from("abc"), st.floats(0.1, 9.0)), seed=st.integers(0, 999))
def test_packing_undoes_unpacking_whatever_elements_are_fixed(fixed: dict[str, float], seed: int) -> None:
    space = make_space(fixed)
    assert space.num_free == 6 - len(fixed)
    z = torch.randn(4, 2, space.num_free, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = space.unpack(z)
    assert {name: value.shape for name, value in values.items()} == {
        "decay": (4, 2, 3),
        "weight": (4, 2, 1),
        "share": (4, 2, 2),
    }
    for i, label in enumerate("abc"):
        if label in fixed:
            assert (values["decay"][..., i] == fixed[label]).all()
    torch.testing.assert_close(space.pack(values, z), z, rtol=0, atol=1e-9)


def test_a_fixed_element_does_not_move_its_neighbours() -> None:
    space = make_space({"b": 5.0})
    decay = space.unpack(torch.arange(5.0, dtype=torch.float64))["decay"]
    expected = 0.4 * torch.exp(torch.arange(2.0, dtype=torch.float64))
    torch.testing.assert_close(decay, torch.tensor([expected[0], 5.0, expected[1]], dtype=torch.float64))
    assert space.free_names == ("decay[a]", "decay[c]", "weight", "share[a]", "share[b]")
    assert space.slice_of("weight") == slice(2, 3)


def test_a_parameter_that_is_not_given_stays_in_the_priors_middle() -> None:
    space = make_space()
    z = space.pack({"weight": torch.tensor([1.5], dtype=torch.float64)}, torch.zeros(6, dtype=torch.float64))
    assert z.tolist() == [0, 0, 0, 1.5, 0, 0]


def test_gradients_pass_through_unpacking() -> None:
    space = make_space({"a": 1.0})
    z = torch.randn(2, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda one: torch.cat(list(space.unpack(one).values()), -1), (z,))


def test_wrong_elements_and_priors_are_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match=r"'decay' has no element 'p12'\. Did you mean 'p21'\?"):
        Parameter("decay", ("p21", "mdm2"), LogNormal(median=1.0), fixed={"p12": 1.0})
    with pytest.raises(UsageError, match=r"'decay' is positive, and its prior \(normal\) allows negative.*lognormal"):
        Parameter("decay", ("a",), Normal(), positive=True)
    with pytest.raises(UsageError, match=r"decay\[a\] is fixed to -1\. It must not be negative"):
        Parameter("decay", ("a",), LogNormal(median=1.0), positive=True, fixed={"a": -1.0})
