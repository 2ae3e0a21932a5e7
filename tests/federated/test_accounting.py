"""What answers cost: against closed forms, integrals and published values."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from distlfm.federated.site.accounting import LEAST, Cost, epsilon, noise_for

DELTA = 1e-5


def gaussian(noise: float, delta: float) -> float:
    """ε of the Gaussian mechanism, exactly (Balle and Wang 2018, theorem 8)."""

    def over(one: float) -> float:
        a, b = 1 / (2 * noise) - one * noise, -1 / (2 * noise) - one * noise
        return float(norm.cdf(a) - math.exp(one + norm.logcdf(b)) - delta)

    return float(brentq(over, 0.0, 500.0))


@pytest.mark.parametrize("noise", [0.1, 0.7, 1.0, 4.0, 20.0])
def test_one_answer_costs_what_the_closed_form_says(noise: float) -> None:
    exact = gaussian(noise, DELTA)
    assert exact <= epsilon([Cost(noise, 1.0, 1)], DELTA) <= exact * 1.001 + 1e-4


def test_whole_answers_add_up_as_one_with_less_noise() -> None:
    costs = [Cost(4.0, 1.0, 4), Cost(2.0, 1.0, 1), Cost(2.0, 1.0, 2)]
    assert epsilon(costs, DELTA) == pytest.approx(gaussian(1.0, DELTA), rel=1e-3)


@pytest.mark.parametrize(("noise", "rate"), [(1.0, 0.1), (2.0, 0.5)])
def test_a_sampled_step_costs_what_its_two_densities_say(noise: float, rate: float) -> None:
    """δ of a patient who joins and of one who leaves, by where one density exceeds e^ε times the other."""
    found = epsilon([Cost(noise, rate, 1)], DELTA)

    def mass(x: float) -> tuple[float, float]:
        """Of the mixture and of the plain Gaussian above x."""
        low = float(norm.sf(x, 0, noise))
        return (1 - rate) * low + rate * float(norm.sf(x, 1, noise)), low

    def edge(level: float) -> float:
        """Where the mixture is `level` times the plain density."""
        return noise**2 * math.log((level - 1 + rate) / rate) + 0.5

    mixed, plain = mass(edge(math.exp(found)))
    joins = mixed - math.exp(found) * plain
    leaves = 0.0
    if math.exp(-found) > 1 - rate:
        mixed, plain = mass(edge(math.exp(-found)))
        leaves = (1 - plain) - math.exp(found) * (1 - mixed)
    assert max(joins, leaves) <= DELTA
    assert max(joins, leaves) == pytest.approx(DELTA, rel=0.05)


def test_sampled_steps_cost_less_than_tensorflow_privacy_publishes() -> None:
    """Its tutorial: 60,000 examples, batches of 250, noise 1.3, 3600 steps; ε 1.18 by the bound of Rényi."""
    assert 0.7 * 1.18 < epsilon([Cost(1.3, 250 / 60_000, 3600)], DELTA) <= 1.18


def test_distributions_are_tighter_than_the_orders_of_renyi() -> None:
    """Forty steps of half of the patients, which cost 4.00 with the best of Rényi's orders."""
    assert 3.5 < epsilon([Cost(3.85, 0.5, 40)], DELTA) < 0.93 * 4.0


def test_more_is_never_cheaper_across_the_formulas() -> None:
    above, below = (epsilon([Cost(LEAST * factor, 1.0, 1)], DELTA) for factor in (1.001, 0.999))
    assert below > above
    mixed = epsilon([Cost(1.0, 0.5, 3), Cost(LEAST / 2, 1.0, 1)], DELTA)
    assert mixed > epsilon([Cost(LEAST / 2, 1.0, 1)], DELTA)


def test_the_noise_for_a_budget_spends_just_that() -> None:
    noise = noise_for(2.0, DELTA, 0.5, 100)
    assert 1.99 < epsilon([Cost(noise, 0.5, 100)], DELTA) <= 2.0


def test_nothing_spent_is_zero() -> None:
    assert epsilon([], DELTA) == 0.0
