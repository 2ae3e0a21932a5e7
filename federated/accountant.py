"""How much privacy is spent: Rényi differential privacy of the sampled Gaussian mechanism.

Each record is in a step with probability `rate`, independently; the sum has noise of `noise` times a record's largest
contribution. Steps add up in each order (Mironov 2017; Mironov, Talwar and Zhang 2019), and the best order is turned
into (ε, δ) as in Canonne, Kamath and Steinke (2020).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, logsumexp

from distlfm.errors import UsageError

ORDERS = (*range(2, 65), 72, 80, 96, 112, 128, 160, 192, 256, 384, 512)
"""Whole numbers: the closed form of the sum below is exact for them."""


@lru_cache(maxsize=1024)
def _rdp(noise: float, rate: float) -> NDArray[np.float64]:
    """Rényi divergence [orders] of one step."""
    if not 0 < rate <= 1 or not noise > 0:
        raise UsageError(
            f"Noise {noise:g} with sampling rate {rate:g} is no mechanism.", "Noise is above 0, rates are in (0, 1]."
        )
    if rate == 1:
        return np.array([order / (2 * noise**2) for order in ORDERS])
    found = []
    for order in ORDERS:
        k = np.arange(order + 1)
        choose = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        terms = choose + k * math.log(rate) + (order - k) * math.log1p(-rate) + k * (k - 1) / (2 * noise**2)
        found.append(float(logsumexp(terms)) / (order - 1))
    return np.array(found)


def rdp(noise: float, rate: float, steps: int) -> NDArray[np.float64]:
    """Rényi divergence [orders] of so many steps."""
    return _rdp(noise, rate) * steps


def epsilon(divergence: NDArray[np.float64], delta: float) -> float:
    """The ε that goes with δ; the best over the orders."""
    if not divergence.any():
        return 0.0
    order = np.array(ORDERS, float)
    found = divergence + np.log1p(-1 / order) - (math.log(delta) + np.log(order)) / (order - 1)
    return float(max(0.0, found.min()))


def noise_for(target: float, delta: float, rate: float, steps: int) -> float:
    """The least noise with which so many steps spend at most `target`."""
    low, high = 0.05, 0.1
    while epsilon(rdp(high, rate, steps), delta) > target:
        low, high = high, 2 * high
        if high > 1e6:
            raise UsageError(f"No noise keeps ε below {target:g}.", "Ask for a larger ε, or for fewer steps.")
    for _ in range(30):
        middle = (low + high) / 2
        if epsilon(rdp(middle, rate, steps), delta) > target:
            low = middle
        else:
            high = middle
    return high
