"""What an attack on noised sums proves about ε, from below, beside what the accountant says, from above.

The audit takes one sum (Steinke, Nasr and Jagielski 2023). Each of many canaries is a patient whose update is as long
as the limit allows, in a direction of its own, and is in the data by the toss of a coin. From the sum that the sites
open together, noise and all, the attack guesses for those canaries of which it is surest whether they were in. Under
(ε, δ) hardly more of r guesses can be right than of r coins that fall right with e^ε / (1 + e^ε); so a count that is
too high for that, at 95 % confidence, refutes ε. The sites' share of the noise that may be missing is missing.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
from scipy.stats import binom

from benchmarks.goals import at_most
from distlfm.federated.secure.discrete import Random
from distlfm.federated.secure.messages import Part
from distlfm.federated.secure.noise import SumNoise
from distlfm.federated.secure.records import ARRAY_BITS
from distlfm.federated.secure.ring import decode, encode
from distlfm.federated.site.accounting import Cost, epsilon, noise_for

CONFIDENCE, DELTA, CLIP = 0.95, 1e-5, 1.0
SITES, LOST = 4, 1
CANARIES, GUESSED = 100_000, (0.005, 0.01, 0.02, 0.05)
"""Shares of the canaries that are guessed; each has its part of the chance to be wrong."""


def run(quick: bool = False) -> dict[str, Any]:
    count = 4000 if quick else CANARIES
    figures, known = {}, {}
    for target in (1.0, 4.0):
        multiplier = noise_for(target, DELTA, 1.0, 1)
        above = epsilon([Cost(multiplier, 1.0, 1)], DELTA)
        known[f"{target:g}"] = above
        figures[f"ε {target:g}: lower bound of the attack"] = at_most(attacked(multiplier, count), above)
    return {"figures": figures, "accountant": known, "canaries": count, "confidence": CONFIDENCE, "delta": DELTA}


def attacked(multiplier: float, count: int, random: Random = os.urandom) -> float:
    """Return the ε that an attack on one sum refutes at `CONFIDENCE`. count: canaries. random: of coins and noise."""
    inside = np.frombuffer(random(count), np.uint8) & 1
    seen = noised_sum(CLIP * inside, multiplier, random)
    order = np.argsort(seen)
    bounds = []
    for share in GUESSED:
        half = int(share * count / 2)
        right = int(inside[order[-half:]].sum() + (1 - inside[order[:half]]).sum())
        bounds.append(refuted(count, 2 * half, right, DELTA, (1 - CONFIDENCE) / len(GUESSED)))
    return max(bounds)


def noised_sum(values: np.ndarray, multiplier: float, random: Random) -> np.ndarray:
    """Values [N], of one site, in the sum of `SITES` sites as it is opened, without the noise of `LOST` of them."""
    part: Part = ("shared", "difference", "float64", values.shape)
    noise = SumNoise({"shared": multiplier * CLIP}, LOST)
    bits = np.full(values.size, ARRAY_BITS)
    total = encode(values, bits, SITES)
    for _ in range(SITES - LOST):
        total = total + noise.words((part,), SITES, random)
    return decode(total, bits)


def refuted(count: int, guesses: int, right: int, delta: float, chance: float) -> float:
    """Return the largest ε under which so many right guesses have a probability of at most `chance`; 0 if none has."""
    low, high = 0.0, 50.0
    if _likely(count, guesses, right, low, delta) > chance:
        return 0.0
    while high - low > 1e-4:
        middle = (low + high) / 2
        low, high = (middle, high) if _likely(count, guesses, right, middle, delta) <= chance else (low, middle)
    return low


def _likely(count: int, guesses: int, right: int, epsilon_: float, delta: float) -> float:
    """Bound the probability of `right` or more right guesses under (ε, δ): theorem 5.2 of Steinke et al."""
    coin = 1 / (1 + math.exp(-epsilon_))
    below = np.cumsum(binom.pmf(np.arange(right - 1, -1, -1), guesses, coin))
    worst = float(np.max(below / np.arange(1, right + 1), initial=0.0))
    return float(binom.sf(right - 1, guesses, coin)) + 2 * count * delta * worst
