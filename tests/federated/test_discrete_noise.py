"""Whole-number noise: its distribution, its source, and how sites bring it together."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chisquare, kstest

from distlfm.federated.secure import discrete
from distlfm.federated.secure.discrete import chance, discrete_gaussian, uniform
from distlfm.federated.secure.messages import Part
from distlfm.federated.secure.noise import MARGIN, SumNoise
from distlfm.federated.secure.records import BITS, METRIC_BITS
from distlfm.federated.secure.ring import Words

LEAST_P = 1e-3


def source(seed: int) -> discrete.Random:
    return np.random.default_rng(seed).bytes


@pytest.mark.parametrize("close", [discrete._CLOSE, 2.0], ids=["double precision", "all digits"])
@pytest.mark.parametrize("sigma", [0.4, 1.0, 3.3])
def test_small_noise_has_the_probabilities_of_the_formula(
    sigma: float, close: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discrete, "_CLOSE", close)
    count = 200_000 if close < 1 else 3_000
    drawn = discrete_gaussian(sigma, count, source(1))
    most = max(1, round(2.5 * sigma))
    values = np.arange(-most, most + 1)
    weights = np.exp(-(np.arange(-200, 201) ** 2) / (2 * sigma**2))
    wanted = np.exp(-(values**2) / (2 * sigma**2)) / weights.sum() * count
    seen = np.array([(drawn == value).sum() for value in values], float)
    rest = count - np.array([seen.sum(), wanted.sum()])
    assert chisquare([*seen, rest[0]], [*wanted, rest[1]]).pvalue > LEAST_P


@pytest.mark.parametrize("sigma", [1e3, 2.0**41 * 3.7, discrete.LARGEST])
def test_large_noise_is_as_wide_as_it_is_paid_for_and_even_as_often_as_odd(sigma: float) -> None:
    drawn = discrete_gaussian(sigma, 100_000, source(2))
    assert kstest(drawn / sigma, "norm").pvalue > LEAST_P
    assert abs((drawn & 1).mean() - 0.5) < 0.01, "the last digits are noise too"


def test_the_two_ways_to_decide_agree() -> None:
    """Which digits are looked at changes no outcome: with all of them, the same random bytes give the same noise."""
    gamma = np.array([0.1, 1.0, 3.0, 0.7])
    exact = [discrete.Fraction(one) for one in gamma.tolist()]
    likely = np.exp(-gamma)
    for start in np.linspace(0, 2**53 - 1, 40).astype(np.int64).tolist():
        for one in range(4):
            told = discrete._continued(int(start), exact[one], source(3))
            if abs(start / 2**53 - likely[one]) > 1e-12:
                assert told == (start / 2**53 < likely[one])


def test_noise_is_drawn_from_the_systems_source_and_not_twice_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = discrete_gaussian(1e6, 50), discrete_gaussian(1e6, 50)
    assert not np.array_equal(one, other)
    asked = []
    monkeypatch.setattr(np.random, "default_rng", lambda *_: asked.append(1))
    discrete_gaussian(5.0, 10)
    assert asked == []
    assert discrete_gaussian.__defaults__ == (discrete.os.urandom,)


def test_numbers_below_a_limit_and_chances_are_even() -> None:
    drawn = uniform(7, 70_000, source(4))
    assert chisquare(np.bincount(drawn, minlength=7)).pvalue > LEAST_P
    assert chance(0.3, 100_000, source(5)).mean() == pytest.approx(0.3, abs=0.01)


PARTS: tuple[Part, ...] = (
    ("num-examples", "weight", "float64", ()),
    ("loss", "metric", "float64", ()),
    ("shared", "difference", "float64", (4000,)),
)


def together(lost: int, sites: int, brought: int) -> Words:
    """The sum of what `brought` of `sites` sites bring."""
    noise = SumNoise({"shared": 1.5}, lost)
    total = np.zeros(4002, np.uint64)
    for site in range(brought):
        total += noise.words(PARTS, sites, source(10 + site))
    return total


@pytest.mark.parametrize(("sites", "lost"), [(4, 1), (5, 0), (9, 3)])
def test_what_is_left_when_as_many_are_lost_as_stated_is_the_whole_noise(sites: int, lost: int) -> None:
    found = together(lost, sites, sites - lost).view(np.int64)[2:] * 2.0 ** -BITS["difference"]
    assert found.std() == pytest.approx(1.5 * MARGIN, rel=0.05)
    everybody = together(lost, sites, sites).view(np.int64)[2:] * 2.0 ** -BITS["difference"]
    assert everybody.std() == pytest.approx(1.5 * np.sqrt(sites / (sites - lost)), rel=0.05)


def test_a_site_that_shares_with_nobody_brings_all_of_it_and_only_where_it_belongs() -> None:
    words = SumNoise({"loss": 2.0, "shared": 0.5}).words(PARTS, 4, source(6)).view(np.int64)
    assert words[0] == 0, "the weight"
    assert abs(words[1]) < 10 * 2.0 * 2.0**METRIC_BITS
    assert (words[2:] * 2.0 ** -BITS["difference"]).std() == pytest.approx(0.5, rel=0.05)


def test_noise_for_what_is_not_there_and_too_few_sites_are_errors() -> None:
    with pytest.raises(ValueError, match="does not have"):
        SumNoise({"other": 1.0}).words(PARTS, 4)
    with pytest.raises(ValueError, match="not more sites"):
        SumNoise({"shared": 1.0}, lost=3).words(PARTS, 3)
    with pytest.raises(ValueError, match="too large"):
        discrete_gaussian(2.0**60, 1)
