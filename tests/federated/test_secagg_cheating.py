"""A gatherer that cheats learns nothing more: each way is tried against honest members, and refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from cohorts import NAMES, REQUEST, RUN, Exchange, Member, members, small_words
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secagg import member
from distlfm.federated.secagg.gatherer import Gatherer
from distlfm.federated.secagg.keys import new_secret, public_of, sign
from distlfm.federated.secagg.messages import Advert, Call, Consents, Delivery, Roster, Survivors
from distlfm.federated.secagg.rules import Rules, threshold_of


@contextmanager
def refused(reason: Reason) -> Iterator[None]:
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.reason is reason


def _roster(adverts: dict[str, Advert], **changes: object) -> Roster:
    chosen = tuple(advert for _, advert in sorted(adverts.items()))
    told = {"run": RUN, "purpose": "train", "request": REQUEST, "threshold": threshold_of(len(chosen))}
    return Roster.model_validate({**told, "adverts": chosen, **changes})


def _advertised(sites: dict[str, Member]) -> dict[str, Advert]:
    return {name: one.advertise() for name, one in sites.items()}


def _until_masked(exchange: Exchange) -> Survivors:
    return exchange.mask(exchange.share(exchange.enrol()), small_words)


@pytest.mark.parametrize("threshold", [1, 2, 4])
def test_another_threshold_than_the_rule_is_refused(threshold: int) -> None:
    sites = members()
    roster = _roster(_advertised(sites), threshold=threshold)
    with refused(Reason.THRESHOLD):
        sites["east"].share(roster)


def test_a_small_cohort_is_refused() -> None:
    sites = members()
    adverts = _advertised(sites)
    with refused(Reason.COHORT):
        sites["east"].share(_roster({name: adverts[name] for name in ("east", "north")}))


def test_invented_sites_are_refused() -> None:
    """A gatherer that plays sites of its own would know all masks but one."""
    sites = members()
    adverts = _advertised(sites)
    stranger = member.advertise(Rules("zeta", {}, 3), Ed25519PrivateKey.generate(), RUN).advert
    with refused(Reason.COHORT):
        sites["east"].share(_roster({**adverts, "zeta": stranger}))


def test_a_key_that_its_owner_has_not_signed_is_refused() -> None:
    sites = members()
    adverts = _advertised(sites)
    known = adverts["north"].model_copy(update={"mask_key": public_of(new_secret())})
    with refused(Reason.KEY):
        sites["east"].share(_roster({**adverts, "north": known}))


def test_a_key_signed_by_somebody_elses_key_is_refused() -> None:
    sites = members()
    adverts = _advertised(sites)
    forged = member.advertise(Rules("north", {}, 3), Ed25519PrivateKey.generate(), RUN).advert
    with refused(Reason.KEY):
        sites["east"].share(_roster({**adverts, "north": forged}))


def test_keys_of_another_run_are_refused() -> None:
    sites = members()
    adverts = _advertised(sites)
    other = member.advertise(sites["north"].rules, sites["north"].key, "8").advert
    with refused(Reason.KEY):
        sites["east"].share(_roster({**adverts, "north": other}))


def test_a_roster_of_another_run_is_refused() -> None:
    sites = members()
    with refused(Reason.KEY):
        sites["east"].share(_roster(_advertised(sites), run="8"))


def test_one_key_under_two_names_is_refused() -> None:
    """North signs south's mask key as its own: it would share masks with itself through south."""
    sites = members()
    adverts = _advertised(sites)
    copied = adverts["north"].model_copy(update={"mask_key": adverts["south"].mask_key})
    signed = copied.model_copy(update={"signature": sign(sites["north"].key, Advert.label, copied.signed())})
    with refused(Reason.KEY):
        sites["east"].share(_roster({**adverts, "north": signed}))


def test_a_signed_key_with_which_everybody_agrees_on_the_same_is_refused() -> None:
    """A point of low order, signed by a site that works with the gatherer."""
    sites = members()
    adverts = _advertised(sites)
    weak = adverts["north"].model_copy(update={"channel_key": "00" * 32})
    signed = weak.model_copy(update={"signature": sign(sites["north"].key, Advert.label, weak.signed())})
    with refused(Reason.KEY):
        sites["east"].share(_roster({**adverts, "north": signed}))


def test_a_roster_without_the_keys_that_the_site_gave_last_is_refused() -> None:
    """A replayed roster, or one with keys from an earlier sum, finds the site with others."""
    sites = members()
    before = _roster(_advertised(sites))
    _advertised(sites)
    with refused(Reason.STAGE):
        sites["east"].share(before)


def test_a_second_roster_for_the_same_keys_is_refused() -> None:
    """Two cohorts for one pair of keys would give two sets of shares of the same secrets."""
    sites = members()
    adverts = _advertised(sites)
    sites["east"].share(_roster(adverts))
    with refused(Reason.STAGE):
        sites["east"].share(_roster({name: adverts[name] for name in NAMES if name != "west"}))


def test_sites_with_split_views_of_the_cohort_do_not_open_each_others_boxes() -> None:
    sites = members()
    adverts = _advertised(sites)
    whole, part = _roster(adverts), _roster({name: adverts[name] for name in NAMES if name != "west"})
    sites["east"].share(whole)
    boxes = {name: sites[name].share(part) for name in ("north", "south")}
    delivery = Delivery(session=whole.session.hex(), boxes={name: said.boxes["east"] for name, said in boxes.items()})
    with refused(Reason.KEY):
        sites["east"].mask(delivery, small_words("east"))


def test_sites_that_were_asked_different_things_do_not_open_each_others_boxes() -> None:
    """Otherwise weights could be sent that silence all sites but one, whose update would be the sum."""
    sites = members()
    adverts = _advertised(sites)
    alone, others = _roster(adverts, request="cd" * 32), _roster(adverts)
    sites["east"].share(alone)
    boxes = {name: sites[name].share(others) for name in NAMES if name != "east"}
    delivery = Delivery(session=alone.session.hex(), boxes={name: said.boxes["east"] for name, said in boxes.items()})
    with refused(Reason.KEY):
        sites["east"].mask(delivery, small_words("east"))


def test_the_keys_of_a_site_that_once_dropped_out_are_worth_nothing_later() -> None:
    """Its revealed mask key would unmask its pairs; but it never seals a box for the fresh keys of another session."""
    sites = members()
    exchange = Exchange(sites, lost={"mask": {"north"}})
    exchange.run(small_words)
    old = exchange.gatherer.roster.of("north")
    adverts = {name: sites[name].advertise() for name in NAMES if name != "north"}
    roster = _roster({**adverts, "north": old})
    boxes = {name: sites[name].share(roster) for name in NAMES if name != "north"}
    with refused(Reason.STAGE):
        sites["north"].share(roster)
    forged = {name: said.boxes["east"] for name, said in boxes.items() if name != "east"}
    with refused(Reason.KEY):
        sites["east"].mask(
            Delivery(session=roster.session.hex(), boxes={**forged, "north": forged["south"]}), small_words("east")
        )


def test_a_changed_cohort_between_stages_is_refused() -> None:
    exchange = Exchange(members())
    deliveries = exchange.share(exchange.enrol())
    boxes = deliveries["east"].boxes
    strange = Delivery(session=deliveries["east"].session, boxes={**boxes, "zeta": boxes["north"]})
    with refused(Reason.SURVIVORS):
        exchange.sites["east"].mask(strange, small_words("east"))
    few = Delivery(session=deliveries["east"].session, boxes={"north": boxes["north"]})
    with refused(Reason.SURVIVORS):
        exchange.sites["east"].mask(few, small_words("east"))


def test_no_second_vector_is_masked_with_the_same_masks() -> None:
    """The difference of two would be the difference of two updates."""
    exchange = Exchange(members())
    deliveries = exchange.share(exchange.enrol())
    exchange.mask(deliveries, small_words)
    with refused(Reason.STAGE):
        exchange.sites["east"].mask(deliveries["east"], small_words("east"))


@pytest.mark.parametrize(
    "listed",
    [
        ("east", "north"),
        ("north", "south", "west"),
        ("east", "east", "north", "south"),
        ("east", "north", "south", "zeta"),
    ],
    ids=["too few", "without itself", "one twice", "a stranger"],
)
def test_a_wrong_list_of_survivors_is_not_signed(listed: tuple[str, ...]) -> None:
    exchange = Exchange(members())
    session = _until_masked(exchange).session
    with refused(Reason.SURVIVORS):
        exchange.sites["east"].consent(Survivors(session=session, sites=listed))


def test_no_site_signs_two_lists() -> None:
    exchange = Exchange(members())
    survivors = _until_masked(exchange)
    exchange.sites["east"].consent(survivors)
    with refused(Reason.STAGE):
        exchange.sites["east"].consent(Survivors(session=survivors.session, sites=("east", "north", "south")))


def test_a_site_that_is_alive_for_some_and_dead_for_others_keeps_both_secrets() -> None:
    """West is in the list of two sites and not in that of the other two: neither list has enough signatures."""
    exchange = Exchange(members())
    whole = _until_masked(exchange)
    part = Survivors(session=whole.session, sites=("east", "north", "south"))
    sites = exchange.sites
    alive = {name: sites[name].consent(whole).signature for name in ("west", "south")}
    dead = {name: sites[name].consent(part).signature for name in ("east", "north")}
    for mixture in (alive, dead, {**alive, **dead}):
        for one in sites.values():
            with refused(Reason.CONSENT):
                one.reveal(Consents(session=whole.session, signatures=mixture))


def test_of_each_site_only_one_secret_is_ever_revealed() -> None:
    exchange = Exchange(members(), lost={"mask": {"north"}})
    consents = exchange.consent(_until_masked(exchange))
    reveals = [exchange.sites[name].reveal(consents) for name in ("east", "south", "west")]
    for said in reveals:
        assert set(said.seeds) == {"east", "south", "west"}
        assert set(said.keys) == {"north"}


def test_signatures_of_others_cannot_be_invented() -> None:
    exchange = Exchange(members())
    survivors = _until_masked(exchange)
    own = exchange.sites["east"].consent(survivors).signature
    invented = dict.fromkeys(NAMES, own)
    with refused(Reason.CONSENT):
        exchange.sites["east"].reveal(Consents(session=survivors.session, signatures=invented))


def test_too_few_signatures_reveal_nothing() -> None:
    exchange = Exchange(members())
    survivors = _until_masked(exchange)
    signatures = {name: exchange.sites[name].consent(survivors).signature for name in ("east", "north")}
    with refused(Reason.CONSENT):
        exchange.sites["east"].reveal(Consents(session=survivors.session, signatures=signatures))


def test_unmasking_without_signing_first_is_refused() -> None:
    exchange = Exchange(members())
    survivors = _until_masked(exchange)
    signatures = {name: exchange.sites[name].consent(survivors).signature for name in ("north", "south", "west")}
    with refused(Reason.STAGE):
        exchange.sites["east"].reveal(Consents(session=survivors.session, signatures=signatures))


def test_messages_of_another_session_are_refused_at_every_stage() -> None:
    sites = members()
    old = Exchange(sites)
    deliveries = old.share(old.enrol())
    survivors = old.mask(deliveries, small_words)
    consents = old.consent(survivors)
    new = Exchange(sites)
    fresh = new.share(new.enrol())
    with refused(Reason.STAGE):
        sites["east"].mask(deliveries["east"], small_words("east"))
    listed = new.mask(fresh, small_words)
    with refused(Reason.STAGE):
        sites["east"].consent(survivors)
    sites["east"].consent(listed)
    with refused(Reason.STAGE):
        sites["east"].reveal(consents)


def test_a_question_for_all_is_not_answered_by_fewer() -> None:
    sites = members(whole=("query",))
    adverts = _advertised(sites)
    part = {name: adverts[name] for name in NAMES if name != "west"}
    with refused(Reason.COHORT_FIXED):
        sites["east"].share(_roster(part, purpose="query.calibration"))
    exchange = Exchange(sites, purpose="query.calibration", lost={"mask": {"west"}})
    deliveries = exchange.share(exchange.enrol())
    survivors = exchange.mask(deliveries, small_words)
    with refused(Reason.COHORT_FIXED):
        sites["east"].consent(survivors)


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


def test_a_roster_names_each_site_once_and_in_order() -> None:
    adverts = _advertised(members())
    roster = _roster(adverts)
    swapped = roster.model_copy(update={"adverts": (roster.adverts[1], roster.adverts[0], *roster.adverts[2:])})
    twice = roster.model_copy(update={"adverts": (roster.adverts[0], *roster.adverts)})
    for wrong in (swapped, twice):
        with refused(Reason.MALFORMED):
            Roster.from_bytes(wrong.to_bytes())


def test_a_gatherer_that_knows_its_sites_leaves_strangers_out() -> None:
    sites = members()
    adverts = _advertised(sites)
    pins = {**sites["east"].rules.peers, "east": sites["north"].rules.peers["east"]}
    stranger = member.advertise(Rules("zeta", {}, 3), Ed25519PrivateKey.generate(), RUN).advert
    forged = member.advertise(Rules("west", {}, 3), Ed25519PrivateKey.generate(), RUN).advert
    gatherer = Gatherer(RUN, "train", REQUEST, 3)
    assert gatherer.enrol({**adverts, "zeta": stranger, "west": forged}, pins).sites == ("east", "north", "south")
