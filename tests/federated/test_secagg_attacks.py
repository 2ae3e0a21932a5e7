"""The attacks that recover masks of at most 32 bits, against ours: there is no short seed to search for.

An update is small beside the ring, so a guessed mask is known to be right when what is left under it is small. The
searcher is tried on a mask that does come from a short seed first: it finds that one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np
from scipy import stats

from distlfm.federated.secure import member
from distlfm.federated.secure.keys import derive, mask
from distlfm.federated.secure.member import SELF_MASK, pair_key
from distlfm.federated.secure.messages import Reveal
from distlfm.federated.secure.ring import Words, encode
from distlfm.federated.secure.shamir import join
from tests.support.cohorts import NAMES, Exchange, members

WINDOW = 2**11
"""Seeds that are tried, each in four ways; the attack takes all 2^32, and ours has 2^256."""
LOOK = 8
SMALL = np.uint64(2**52)


def _update(name: str, size: int = 4000) -> Words:
    values = np.random.default_rng(NAMES.index(name)).normal(scale=1e-2, size=size)
    return encode(values, np.full(size, 40, dtype=np.int64), 4)


def _is_small(words: Words) -> bool:
    return bool(np.all((words + SMALL) < np.uint64(2) * SMALL))


def _search(masked: Words, session: bytes) -> bytes | None:
    """A key from a short seed under which the masked words look like an update, or None."""
    for key in _short_keys(session):
        if _is_small(masked[:LOOK] - mask(key, LOOK)) or _is_small(masked[:LOOK] + mask(key, LOOK)):
            return key
    return None


def _short_keys(session: bytes) -> Iterator[bytes]:
    for seed in range(WINDOW):
        short = seed.to_bytes(4, "little")
        yield short + bytes(28)
        yield short * 8
        yield hashlib.sha256(short).digest()
        yield derive(short, session, SELF_MASK)


def _joined(exchange: Exchange, reveals: dict[str, Reveal], site: str, secret: str) -> bytes:
    points = {exchange.gatherer.roster.sites.index(name) + 1: said for name, said in reveals.items()}
    return join({point: bytes.fromhex(getattr(said, secret)[site]) for point, said in points.items()})


def test_the_searcher_finds_a_mask_that_comes_from_a_short_seed() -> None:
    session = bytes(32)
    key = derive((1_999).to_bytes(4, "little"), session, SELF_MASK)
    assert _search(_update("east") + mask(key, 4000), session) == key


def test_a_search_for_short_seeds_finds_nothing_in_a_masked_vector() -> None:
    exchange = Exchange(members())
    exchange.mask(exchange.share(exchange.enrol()), _update)
    session = exchange.gatherer.roster.session
    assert _search(exchange.vectors["east"], session) is None


def test_a_search_finds_nothing_with_the_revealed_secret_of_a_dropped_site() -> None:
    """The server takes off all that it knows after the sum: a site's own mask, and its mask with the dropped site."""
    exchange = Exchange(members(), lost={"mask": {"north"}})
    consents = exchange.consent(exchange.mask(exchange.share(exchange.enrol()), _update))
    reveals = {name: exchange.sites[name].reveal(consents) for name in ("east", "south", "west")}
    roster = exchange.gatherer.roster
    seed = _joined(exchange, reveals, "east", "seeds")
    secret = _joined(exchange, reveals, "north", "keys").hex()
    left = exchange.vectors["east"] - mask(derive(seed, roster.session, SELF_MASK), 4000)
    left -= mask(pair_key(secret, roster.of("east").mask_key, roster.session, ("east", "north")), 4000)
    assert not _is_small(left[:LOOK])
    assert _search(left, roster.session) is None
    assert not np.any(left == _update("east"))
    total = exchange.gatherer.unmask(reveals)
    assert np.array_equal(total, _update("east") + _update("south") + _update("west"))


def test_a_vector_that_comes_too_late_stays_hidden_although_its_pair_masks_are_known() -> None:
    """The server counted north as lost, learned its mask key, and then gets its vector: its own mask is left."""
    exchange = Exchange(members())
    deliveries = exchange.share(exchange.enrol())
    late = exchange.sites["north"].mask(deliveries["north"], _update("north"))
    exchange.lost = {"mask": {"north"}}
    consents = exchange.consent(exchange.mask(deliveries, _update))
    reveals = {name: exchange.sites[name].reveal(consents) for name in ("east", "south", "west")}
    roster = exchange.gatherer.roster
    secret = _joined(exchange, reveals, "north", "keys").hex()
    for name in ("east", "south", "west"):
        pair = mask(pair_key(secret, roster.of(name).mask_key, roster.session, ("north", name)), 4000)
        late = late - pair if name > "north" else late + pair
    only_seed = late - _update("north")
    assert _search(late, roster.session) is None
    assert not np.any(late == _update("north"))
    assert stats.chisquare(np.bincount(only_seed.view(np.uint8), minlength=256)).pvalue > 1e-9


def test_masked_vectors_are_uniform_whatever_is_under_them() -> None:
    """Fresh keys each time: a fair vector fails one of these in fewer than one of a million runs."""
    for value in (np.zeros(20_000, dtype=np.uint64), np.full(20_000, 12345, dtype=np.uint64)):
        exchange = Exchange(members())
        exchange.mask(exchange.share(exchange.enrol()), lambda _, value=value: value)
        for vector in exchange.vectors.values():
            assert stats.chisquare(np.bincount(vector.view(np.uint8), minlength=256)).pvalue > 1e-9
            uniform = stats.kstest(vector.astype(np.float64) / 2.0**64, "uniform")
            assert uniform.pvalue > 1e-9


def test_the_same_value_is_never_masked_twice_in_the_same_way() -> None:
    sites = members()
    seen = []
    for _ in range(3):
        exchange = Exchange(sites)
        exchange.run(lambda _: np.zeros(1000, dtype=np.uint64))
        seen += list(exchange.vectors.values())
    words = np.concatenate(seen)
    assert len(np.unique(words)) == len(words)


def test_every_bit_of_the_secrets_is_drawn() -> None:
    """Each of 256 bits is zero at times and one at times, in seeds, and in keys but for those that X25519 fixes."""
    seeds, keys = [], []
    for _ in range(64):
        sites = members(("east", "north", "south"))
        exchange = Exchange(sites)
        exchange.share(exchange.enrol())
        state = sites["east"].state
        assert state is not None
        seeds.append(np.unpackbits(np.frombuffer(bytes.fromhex(state.seed), np.uint8)))
        fresh = member.advertise(sites["east"].rules, sites["east"].key, "7")
        keys.append(np.unpackbits(np.frombuffer(bytes.fromhex(fresh.mask_secret), np.uint8)))
    for draws, fixed in ((np.array(seeds), 0), (np.array(keys), 5)):
        constant = np.all(draws == draws[0], axis=0)
        assert constant.sum() <= fixed
