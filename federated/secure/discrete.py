"""Noise from the discrete Gaussian: whole numbers, exactly distributed, from the system's source of randomness.

Noise that is drawn as floating-point numbers has gaps that depend on what it is added to, and may give that away
(Mironov 2012). Here values are words of the ring first, and the noise is whole numbers with
P(x) ∝ exp(−x² / 2σ²), by the sampler of Canonne, Kamath and Steinke (2020), many at a time.

Each choice "with probability exp(−γ)" compares a random number with exp(−γ). Double precision decides nearly always;
where the two are too close for it, both are continued with more digits until they differ.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from decimal import Context, Decimal
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Random = Callable[[int], bytes]
"""Gives that many random bytes."""

LARGEST = 2.0**55
"""Standard deviation up to which all numbers fit into 64 bits, with forty times of it to spare."""

_BITS = 53
_CLOSE = 2.0**-44
"""Double precision is trusted beyond this; its error here is below 2⁻⁴⁸."""


def discrete_gaussian(sigma: float, count: int, random: Random = os.urandom) -> Integers:
    """Draw `count` whole numbers of standard deviation `sigma` (in the sense of the formula above) and mean zero."""
    if not 0 < sigma <= LARGEST:
        raise ValueError("The standard deviation of the noise is not positive, or too large for the ring.")
    found = np.zeros(count, dtype=np.int64)
    missing = np.arange(count)
    scale = math.floor(sigma) + 1
    variance = Fraction(sigma) ** 2
    shift = float(variance / scale)
    while len(missing):
        drawn = _laplace(scale, len(missing), random)
        size = np.abs(drawn)
        off = (size.astype(np.float64) - shift) / sigma

        def exactly(one: int, size: Integers = size) -> Fraction:
            return (int(size[one]) - variance / scale) ** 2 / (2 * variance)

        taken = _bernoulli_exp(off * off / 2, exactly, random)
        found[missing[taken]] = drawn[taken]
        missing = missing[~taken]
    return found


def _laplace(scale: int, count: int, random: Random) -> Integers:
    """`count` whole numbers with P(x) ∝ exp(−|x| / scale)."""
    found = np.zeros(count, dtype=np.int64)
    missing = np.arange(count)
    while len(missing):
        low = uniform(scale, len(missing), random)

        def exactly(one: int, low: Integers = low) -> Fraction:
            return Fraction(int(low[one]), scale)

        kept = _bernoulli_exp(low / scale, exactly, random)
        here, low = missing[kept], low[kept]
        high = _geometric(len(here), random)
        size = low + scale * high
        negative = (np.frombuffer(random(len(here)), dtype=np.uint8) & 1).astype(bool)
        good = ~(negative & (size == 0))  # zero has one sign
        found[here[good]] = np.where(negative, -size, size)[good]
        missing = np.concatenate([missing[~kept], here[~good]])
    return found


def _geometric(count: int, random: Random) -> Integers:
    """How often in a row something of probability exp(−1) happens."""
    found = np.zeros(count, dtype=np.int64)
    going = np.arange(count)
    while len(going):
        going = going[_bernoulli_exp(np.ones(len(going)), lambda _: Fraction(1), random)]
        found[going] += 1
    return found


def uniform(below: int, count: int, random: Random = os.urandom) -> Integers:
    """`count` whole numbers from 0 to `below` − 1, each as likely."""
    mask = np.uint64((1 << max(1, (below - 1).bit_length())) - 1)
    found = np.zeros(count, dtype=np.int64)
    missing = np.arange(count)
    while len(missing):
        drawn = (np.frombuffer(random(8 * len(missing)), dtype=np.uint64) & mask).astype(np.int64)
        good = drawn < below
        found[missing[good]] = drawn[good]
        missing = missing[~good]
    return found


def chance(probability: float, count: int, random: Random = os.urandom) -> NDArray[np.bool_]:
    """Whether something of this probability happens, `count` times."""
    return uniform(2**_BITS, count, random) < int(probability * 2**_BITS)


def _bernoulli_exp(gamma: NDArray[np.float64], exactly: Callable[[int], Fraction], random: Random) -> NDArray[np.bool_]:
    """Whether something of probability exp(−gamma) happens, for each gamma ≥ 0. exactly: the same without rounding."""
    drawn = uniform(2**_BITS, len(gamma), random)
    chosen = np.ldexp(drawn.astype(np.float64), -_BITS)
    likely = np.exp(-gamma)
    taken: NDArray[np.bool_] = chosen < likely
    for one in np.flatnonzero(np.abs(chosen - likely) <= _CLOSE).tolist():
        taken[one] = _continued(int(drawn[one]), exactly(one), random)
    return taken


def _continued(drawn: int, gamma: Fraction, random: Random) -> bool:
    """Go on with more digits of a random number, of which the first are `drawn`, and of exp(−gamma)."""
    bits = _BITS
    while True:
        drawn, bits = (drawn << 64) | int.from_bytes(random(8), "big"), bits + 64
        digits = bits // 3 + 20
        context = Context(prec=digits)
        power = context.exp(context.divide(Decimal(-gamma.numerator), Decimal(gamma.denominator)))
        likely = Fraction(power)
        error = likely * Fraction(1, 10 ** (digits - 15)) + Fraction(1, 2 ** (bits + 10))
        if Fraction(drawn + 1, 1 << bits) <= likely - error:
            return True
        if Fraction(drawn, 1 << bits) >= likely + error:
            return False
