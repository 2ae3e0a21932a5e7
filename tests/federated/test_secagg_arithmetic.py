"""Shares, the ring and masks: exact where they must be, and saying nothing where they must not."""

from __future__ import annotations

import itertools
import os

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from distlfm.federated.secure.keys import PIECE, BadKey, add_mask, agree, mask, new_secret, public_of, seal, unseal
from distlfm.federated.secure.ring import OutOfRange, decode, encode, limit_of
from distlfm.federated.secure.rules import threshold_of
from distlfm.federated.secure.shamir import PRIME, join, split


def test_the_field_is_a_prime_field_larger_than_every_secret() -> None:
    """Lucas and Lehmer: 2^p − 1 is prime exactly when this sequence ends in zero."""
    value = 4
    for _ in range(521 - 2):
        value = (value * value - 2) % PRIME
    assert value == 0
    assert PRIME == 2**521 - 1
    assert PRIME > 2**256


@pytest.mark.parametrize(("threshold", "count"), [(1, 1), (2, 3), (3, 4), (5, 7)])
def test_every_set_of_enough_shares_gives_the_secret_back(threshold: int, count: int) -> None:
    secret = os.urandom(32)
    shares = split(secret, threshold, count)
    for points in itertools.combinations(range(count), threshold):
        assert join({point + 1: shares[point] for point in points}) == secret


def test_fewer_shares_fit_every_secret_equally_well() -> None:
    """For two shares of three and any other secret there is a third share that completes them to that secret."""
    shares = split(os.urandom(32), 3, 4)
    for _ in range(5):
        other = os.urandom(32)
        third = _line_through({0: int.from_bytes(other, "big"), **_points(shares[:2])}, at=3)
        assert join({1: shares[0], 2: shares[1], 3: third.to_bytes(66, "big")}) == other


def _points(shares: list[bytes]) -> dict[int, int]:
    return {point: int.from_bytes(share, "big") for point, share in enumerate(shares, start=1)}


def _line_through(points: dict[int, int], at: int) -> int:
    total = 0
    for x, y in points.items():
        above = below = 1
        for other in points:
            if other != x:
                above, below = above * (at - other) % PRIME, below * (x - other) % PRIME
        total += y * above * pow(below, -1, PRIME)
    return total % PRIME


def test_a_changed_share_is_noticed_or_gives_another_secret() -> None:
    secret = os.urandom(32)
    shares = dict(enumerate(split(secret, 3, 4), start=1))
    shares[2] = bytes([shares[2][0], shares[2][1] ^ 1]) + shares[2][2:]
    with pytest.raises(ValueError, match="do not belong to one secret"):
        join({point: shares[point] for point in (1, 2, 3)})


@given(
    st.lists(st.lists(st.floats(-1e4, 1e4), min_size=5, max_size=5), min_size=2, max_size=9),
    st.integers(24, 40),
)
@settings(max_examples=50, deadline=None)
def test_sums_in_the_ring_are_as_exact_as_their_fraction_bits(values: list[list[float]], bits: int) -> None:
    terms = np.array(values)
    fraction = np.full(5, bits, dtype=np.int64)
    total = np.zeros(5, dtype=np.uint64)
    for term in terms:
        total += encode(term, fraction, len(terms))
    expected = terms.sum(axis=0)
    tolerance = len(terms) * 2.0 ** -(bits + 1) + 1e-12 * np.abs(terms).sum(axis=0)
    assert np.all(np.abs(decode(total, fraction) - expected) <= tolerance)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
@pytest.mark.parametrize("count", [2, 3, 4, 100])
def test_the_largest_values_do_not_wrap_around(count: int, sign: float) -> None:
    largest = sign * limit_of(40, count) * (1 - 1e-9)
    fraction = np.array([40], dtype=np.int64)
    total = np.zeros(1, dtype=np.uint64)
    for _ in range(count):
        total += encode(np.array([largest]), fraction, count)
    assert decode(total, fraction)[0] == pytest.approx(count * largest, rel=1e-12)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300, limit_of(40, 4), -1.0001 * limit_of(40, 4)])
def test_values_that_the_sum_cannot_hold_are_refused(value: float) -> None:
    with pytest.raises(OutOfRange):
        encode(np.array([0.0, value]), np.full(2, 40, dtype=np.int64), 4)


@pytest.mark.parametrize(("count", "threshold"), [(2, 2), (3, 3), (4, 3), (5, 4), (6, 5), (7, 5), (10, 7), (100, 67)])
def test_more_than_two_thirds_have_to_agree(count: int, threshold: int) -> None:
    assert threshold_of(count) == threshold
    assert 3 * threshold > 2 * count


def test_fewer_than_a_third_may_be_lost_and_fewer_than_a_third_may_help_the_server() -> None:
    """An honest site signs one list, a helper both: two lists with enough signatures take a third of helpers."""
    for count in range(2, 400):
        third = (count - 1) // 3  # the largest number below count / 3
        assert count - threshold_of(count) == third
        assert (count - third) + 2 * third < 2 * threshold_of(count)


def test_masks_are_uniform_and_differ_from_key_to_key() -> None:
    """Bytes and bits at fixed seeds: the chance that a fair mask fails is below one in a million for each."""
    keys = [bytes([i]) * 32 for i in range(1, 5)]
    masks = [mask(key, 50_000) for key in keys]
    for words in masks:
        assert stats.chisquare(np.bincount(words.view(np.uint8), minlength=256)).pvalue > 1e-6
        ones = np.unpackbits(words.view(np.uint8)).mean()
        assert abs(ones - 0.5) < 5 * 0.5 / np.sqrt(64 * 50_000)
    for first, second in itertools.combinations(masks, 2):
        assert not np.any(first == second)
        same_bits = np.unpackbits((first ^ second).view(np.uint8)).mean()
        assert abs(same_bits - 0.5) < 5 * 0.5 / np.sqrt(64 * 50_000)


def test_a_mask_is_the_key_stream_of_rfc_8439() -> None:
    """Test vector 1 of appendix A.1: key, nonce and counter of zeros."""
    expected = bytes.fromhex("76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7")
    assert mask(bytes(32), 4).tobytes() == expected


@pytest.mark.parametrize("count", [1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE + 7])
def test_a_mask_that_is_made_in_pieces_is_the_whole_key_stream_and_comes_off_again(count: int) -> None:
    key, words = bytes(range(32)), np.arange(count, dtype=np.uint64)
    whole = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    assert mask(key, count).tobytes() == whole
    total = words.copy()
    add_mask(total, key)
    add_mask(total, key, take_away=True)
    assert np.array_equal(total, words)


def test_two_owners_agree_and_a_third_does_not() -> None:
    first, second, third = new_secret(), new_secret(), new_secret()
    session = os.urandom(32)
    key = agree(first, public_of(second), session, "box")
    assert key == agree(second, public_of(first), session, "box")
    assert key != agree(third, public_of(first), session, "box")
    assert key != agree(first, public_of(second), session, "other use")
    assert key != agree(first, public_of(second), os.urandom(32), "box")
    assert unseal(key, seal(key, b"share")) == b"share"
    with pytest.raises(BadKey):
        unseal(os.urandom(32), seal(key, b"share"))


@pytest.mark.parametrize("point", ["00" * 32, "01" + "00" * 31])
def test_points_of_low_order_are_refused(point: str) -> None:
    with pytest.raises(BadKey):
        agree(new_secret(), point, os.urandom(32), "box")


def test_a_mask_depends_on_every_bit_of_its_key() -> None:
    """There is no shorter key inside of which a search would do."""
    key = bytes(range(32))
    flipped = [bytes(one ^ (1 << bit if at == place else 0) for at, one in enumerate(key)) for place, bit in BITS]
    masks = {mask(one, 8).tobytes() for one in (key, *flipped)}
    assert len(masks) == 257


BITS = tuple(itertools.product(range(32), range(8)))
"""Of a key: which byte, and which of its bits."""
