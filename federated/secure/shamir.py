"""Secrets in shares: any `threshold` of them give the secret back, fewer say nothing (Shamir 1979)."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

PRIME = 2**521 - 1
"""A Mersenne prime, so that every secret of 32 bytes is an element of the field."""

SECRET_BYTES = 32
SHARE_BYTES = 66


def split(secret: bytes, threshold: int, count: int) -> list[bytes]:
    """`count` shares of a secret of 32 bytes; share `i` belongs to the point `i + 1`."""
    if len(secret) != SECRET_BYTES or not 1 <= threshold <= count:
        raise ValueError("A secret has 32 bytes, and its threshold is at least one and at most the number of shares.")
    polynomial = [int.from_bytes(secret, "big"), *(secrets.randbelow(PRIME) for _ in range(threshold - 1))]
    return [_at(polynomial, point).to_bytes(SHARE_BYTES, "big") for point in range(1, count + 1)]


def _at(polynomial: list[int], point: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * point + coefficient) % PRIME
    return value


def join(shares: Mapping[int, bytes]) -> bytes:
    """The secret from shares by their points; raises ValueError if they cannot be of one secret of 32 bytes."""
    values = {point: int.from_bytes(share, "big") for point, share in shares.items()}
    if not values or any(point < 1 for point in values) or any(value >= PRIME for value in values.values()):
        raise ValueError("These are not shares.")
    secret = 0
    for point, value in values.items():
        above = below = 1
        for other in values:
            if other != point:
                above = above * other % PRIME
                below = below * (other - point) % PRIME
        secret = (secret + value * above * pow(below, -1, PRIME)) % PRIME
    if secret >> (8 * SECRET_BYTES):
        raise ValueError("The shares do not belong to one secret.")
    return secret.to_bytes(SECRET_BYTES, "big")
