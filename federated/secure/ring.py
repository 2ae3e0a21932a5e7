"""Real numbers as fixed-point numbers in the integers modulo 2^64, where sums of masked values are exact."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]
Bits = npt.NDArray[np.int64]


class OutOfRange(ValueError):
    """A value that the sum could not hold."""


def limit_of(fraction_bits: int, count: int) -> float:
    """The largest value of which `count` fit into one sum."""
    return float((2**63 - 1) // count) / 2.0**fraction_bits


def largest(fraction_bits: int, count: int) -> float:
    """The largest value that `encode` takes, by a hair."""
    return limit_of(fraction_bits, count) * (1.0 - 2.0**-50)


def encode(values: FloatArray, fraction_bits: Bits, count: int) -> Words:
    """Values [N] as words [N], each with its own number of fraction bits, for a sum of `count` sites.

    Raises OutOfRange for what is not finite or too large: modulo 2^64 it would come back as another number.
    """
    with np.errstate(over="ignore"):  # what overflows is refused below
        scaled = np.rint(np.ldexp(values, fraction_bits))
    # The largest float below the limit: the limit itself may be rounded up to a float that does not fit.
    bound = np.nextafter(float((2**63 - 1) // count), 0.0)
    if not bool(np.all(np.abs(scaled) <= bound)):  # false for NaN too
        raise OutOfRange("A value is not finite or too large for the sum.")
    words: Words = scaled.astype(np.int64).view(np.uint64)
    return words


def decode(words: Words, fraction_bits: Bits) -> FloatArray:
    """The sum [N] of encoded values as numbers."""
    values: FloatArray = np.ldexp(words.view(np.int64).astype(np.float64), -fraction_bits)
    return values
