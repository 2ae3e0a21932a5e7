"""How much of their patients' privacy a site's answers have cost: ε by the package dp-accounting.

One relation between neighbours holds for all of it: two sites' data are neighbours if one of them has one patient more,
with all windows. Every answer is a sum over patients with Gaussian noise, of `noise` times what one patient can change
in it; in a step with `rate` below 1 each patient takes part with that probability, independently. The privacy loss
distributions of these are composed (Koskela, Jälkö and Honkela 2020; Doroshenko et al. 2022), rounded up.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from distlfm.errors import UsageError


class Cost(NamedTuple):
    """`steps` answers with noise of `noise` times a patient's largest contribution, each patient in with `rate`."""

    noise: float
    rate: float
    steps: int


LEAST = 0.05
"""Noise below this hides nobody, ε is in the hundreds, and a formula takes the place of the distributions."""

FINE, COARSE = 1e-4, 1e-3
"""Steps in which privacy losses are counted: of noise above 0.5, and below it, where losses are large."""


def epsilon(costs: Iterable[Cost], delta: float) -> float:
    """Return the ε of all costs together that goes with δ; zero for none."""
    steps: Counter[tuple[float, float]] = Counter()
    for one in costs:
        _check(one)
        steps[one.noise, one.rate] += one.steps
    if not steps:
        return 0.0
    # Whole sums add up to one with less noise, exactly.
    whole = sum(count / noise**2 for (noise, rate), count in steps.items() if rate == 1)
    parts = [Cost(noise, rate, count) for (noise, rate), count in sorted(steps.items()) if rate < 1]
    if whole:
        parts.append(Cost(whole**-0.5, 1.0, 1))
    if min(one.noise for one in parts) < LEAST:
        rho = sum(count / noise**2 for (noise, _), count in steps.items()) / 2
        return rho + 2 * math.sqrt(rho * math.log(1 / delta))  # Bun and Steinke 2016; to sample costs no more
    step = FINE if min(one.noise for one in parts) > 0.5 else COARSE
    losses = [_loss(one, step) for one in parts]
    together = losses[0]
    for one in losses[1:]:
        together = together.compose(one)
    return max(0.0, float(together.get_epsilon_for_delta(delta)))


def noise_for(target: float, delta: float, rate: float, steps: int) -> float:
    """Return the least noise, to a thousandth, with which `steps` steps spend at most `target`."""
    high = 1.0
    while epsilon([Cost(high, rate, steps)], delta) > target:
        high *= 2
        if high > 1e6:
            raise UsageError(f"No noise keeps ε below {target:g}.", "Ask for a larger ε, or for fewer steps.")
    low = high / 2
    while low > LEAST and epsilon([Cost(low, rate, steps)], delta) <= target:
        low, high = low / 2, low
    while high > 1.001 * low:
        middle = math.sqrt(low * high)
        if epsilon([Cost(middle, rate, steps)], delta) > target:
            low = middle
        else:
            high = middle
    return high


def _check(cost: Cost) -> None:
    if not 0 < cost.rate <= 1 or not cost.noise > 0:
        raise UsageError(
            f"Noise {cost.noise:g} with sampling rate {cost.rate:g} is not a mechanism.",
            "Noise is above 0, rates are in (0, 1].",
        )


@lru_cache(maxsize=256)
def _loss(cost: Cost, step: float) -> Any:
    """The distribution of the privacy loss. The package is imported here: it takes a second."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    one = from_gaussian_mechanism(cost.noise, value_discretization_interval=step, sampling_prob=cost.rate)
    return one if cost.steps == 1 else one.self_compose(cost.steps)
