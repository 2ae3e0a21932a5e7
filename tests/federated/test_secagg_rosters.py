"""A gatherer that cheats about who takes part: rosters, keys and messages that members refuse."""

from __future__ import annotations

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from distlfm.federated.refused import Reason
from distlfm.federated.secure import member
from distlfm.federated.secure.gatherer import Gatherer
from distlfm.federated.secure.keys import new_secret, public_of, sign
from distlfm.federated.secure.messages import Advert, Call, Roster
from distlfm.federated.secure.rules import Rules
from tests.support.cohorts import NAMES, REQUEST, RUN, adverts_of, members, refused, roster_of


@pytest.mark.parametrize("threshold", [1, 2, 4])
def test_another_threshold_than_the_rule_is_refused(threshold: int) -> None:
    sites = members()
    roster = roster_of(adverts_of(sites), threshold=threshold)
    with refused(Reason.THRESHOLD):
        sites["east"].share(roster)


def test_a_small_cohort_is_refused() -> None:
    sites = members()
    adverts = adverts_of(sites)
    with refused(Reason.COHORT):
        sites["east"].share(roster_of({name: adverts[name] for name in ("east", "north")}))


def test_invented_sites_are_refused() -> None:
    """A gatherer that plays sites of its own would know all masks but one."""
    sites = members()
    adverts = adverts_of(sites)
    stranger = member.advertise(Rules("zeta", {}, 3), Ed25519PrivateKey.generate(), RUN).advert
    with refused(Reason.COHORT):
        sites["east"].share(roster_of({**adverts, "zeta": stranger}))


def test_a_key_that_its_owner_has_not_signed_is_refused() -> None:
    sites = members()
    adverts = adverts_of(sites)
    known = adverts["north"].model_copy(update={"mask_key": public_of(new_secret())})
    with refused(Reason.KEY):
        sites["east"].share(roster_of({**adverts, "north": known}))


def test_a_key_signed_by_somebody_elses_key_is_refused() -> None:
    sites = members()
    adverts = adverts_of(sites)
    forged = member.advertise(Rules("north", {}, 3), Ed25519PrivateKey.generate(), RUN).advert
    with refused(Reason.KEY):
        sites["east"].share(roster_of({**adverts, "north": forged}))


def test_keys_of_another_run_are_refused() -> None:
    sites = members()
    adverts = adverts_of(sites)
    other = member.advertise(sites["north"].rules, sites["north"].key, "8").advert
    with refused(Reason.KEY):
        sites["east"].share(roster_of({**adverts, "north": other}))


def test_a_roster_of_another_run_is_refused() -> None:
    sites = members()
    with refused(Reason.KEY):
        sites["east"].share(roster_of(adverts_of(sites), run="8"))


def test_one_key_under_two_names_is_refused() -> None:
    """North signs south's mask key as its own: it would share masks with itself through south."""
    sites = members()
    adverts = adverts_of(sites)
    copied = adverts["north"].model_copy(update={"mask_key": adverts["south"].mask_key})
    signed = copied.model_copy(update={"signature": sign(sites["north"].key, Advert.label, copied.signed())})
    with refused(Reason.KEY):
        sites["east"].share(roster_of({**adverts, "north": signed}))


def test_a_signed_key_with_which_everybody_agrees_on_the_same_is_refused() -> None:
    """A point of low order, signed by a site that works with the gatherer."""
    sites = members()
    adverts = adverts_of(sites)
    weak = adverts["north"].model_copy(update={"channel_key": "00" * 32})
    signed = weak.model_copy(update={"signature": sign(sites["north"].key, Advert.label, weak.signed())})
    with refused(Reason.KEY):
        sites["east"].share(roster_of({**adverts, "north": signed}))


def test_a_roster_without_the_keys_that_the_site_gave_last_is_refused() -> None:
    """A replayed roster, or one with keys from an earlier sum, finds the site with others."""
    sites = members()
    before = roster_of(adverts_of(sites))
    adverts_of(sites)
    with refused(Reason.STAGE):
        sites["east"].share(before)


def test_a_second_roster_for_the_same_keys_is_refused() -> None:
    """Two cohorts for one pair of keys would give two sets of shares of the same secrets."""
    sites = members()
    adverts = adverts_of(sites)
    sites["east"].share(roster_of(adverts))
    with refused(Reason.STAGE):
        sites["east"].share(roster_of({name: adverts[name] for name in NAMES if name != "west"}))


def test_a_roster_names_each_site_once_and_in_order() -> None:
    adverts = adverts_of(members())
    roster = roster_of(adverts)
    swapped = roster.model_copy(update={"adverts": (roster.adverts[1], roster.adverts[0], *roster.adverts[2:])})
    twice = roster.model_copy(update={"adverts": (roster.adverts[0], *roster.adverts)})
    for wrong in (swapped, twice):
        with refused(Reason.MALFORMED):
            Roster.from_bytes(wrong.to_bytes())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{}",
        b"\x80\x04.",
        b'{"purpose":"train","run":"7","more":1}',
        b'{"purpose":"train","run":"7","run":"7"}',
        b'{"run":"7","purpose":"train"}',
        b'{"purpose":"train","run":7}',
        b'{"purpose":"train","run":"../../etc"}',
    ],
)
def test_what_is_not_exactly_a_message_is_not_read(content: bytes) -> None:
    with refused(Reason.MALFORMED):
        Call.from_bytes(content)


def test_a_gatherer_that_knows_its_sites_leaves_strangers_out() -> None:
    sites = members()
    adverts = adverts_of(sites)
    pins = {**sites["east"].rules.peers, "east": sites["north"].rules.peers["east"]}
    stranger = member.advertise(Rules("zeta", {}, 3), Ed25519PrivateKey.generate(), RUN).advert
    forged = member.advertise(Rules("west", {}, 3), Ed25519PrivateKey.generate(), RUN).advert
    gatherer = Gatherer(RUN, "train", REQUEST, 3)
    assert gatherer.enrol({**adverts, "zeta": stranger, "west": forged}, pins).sites == ("east", "north", "south")
