"""A gatherer that cheats during a sum learns nothing more: each way is tried against honest members, and refused."""

from __future__ import annotations

import numpy as np
import pytest

from distlfm.federated.refused import Reason
from distlfm.federated.secure.keys import sign
from distlfm.federated.secure.member import CONSENT
from distlfm.federated.secure.messages import Consents, Delivery, Survivors, agreement
from tests.support.cohorts import NAMES, Exchange, adverts_of, members, refused, roster_of, small_words


def _until_masked(exchange: Exchange) -> Survivors:
    return exchange.mask(exchange.share(exchange.enrol()), small_words)


def test_sites_with_split_views_of_the_cohort_do_not_open_each_others_boxes() -> None:
    sites = members()
    adverts = adverts_of(sites)
    whole, part = roster_of(adverts), roster_of({name: adverts[name] for name in NAMES if name != "west"})
    sites["east"].share(whole)
    boxes = {name: sites[name].share(part) for name in ("north", "south")}
    delivery = Delivery(session=whole.session.hex(), boxes={name: said.boxes["east"] for name, said in boxes.items()})
    with refused(Reason.KEY):
        sites["east"].mask(delivery, small_words("east"))


def test_sites_that_were_asked_different_things_do_not_open_each_others_boxes() -> None:
    """Otherwise weights could be sent that silence all sites but one, whose update would be the sum."""
    sites = members()
    adverts = adverts_of(sites)
    alone, others = roster_of(adverts, request="cd" * 32), roster_of(adverts)
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
    roster = roster_of({**adverts, "north": old})
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


@pytest.mark.parametrize("told_dead", [{"north"}, {"south"}, {"north", "south"}, set()])
def test_one_site_of_four_that_helps_the_server_does_not_open_a_second_list(told_dead: set[str]) -> None:
    """East signs both lists: west is alive in one of them, and dead in the other. Only one finds enough signatures."""
    exchange = Exchange(members())
    whole, sites = _until_masked(exchange), exchange.sites
    part = Survivors(session=whole.session, sites=("east", "north", "south"))
    kept = sites["east"].state
    opened = set()
    for listed, honest in ((whole, {"north", "south", "west"} - told_dead), (part, told_dead)):
        sites["east"].state = kept
        signatures = {name: sites[name].consent(listed).signature for name in ("east", *sorted(honest))}
        consents = Consents(session=whole.session, signatures=signatures)
        for name in sorted(honest):
            if len(signatures) < 3:
                with refused(Reason.CONSENT):
                    sites[name].reveal(consents)
            else:
                said = sites[name].reveal(consents)
                opened.add("seed" if "west" in said.seeds else "key")
                assert ("west" in said.seeds) != ("west" in said.keys)
    assert len(opened) == 1


def test_the_sites_own_fewest_number_holds_at_every_later_step() -> None:
    """Of four sites three are enough for the threshold, but these want four; the server would be content with three."""
    exchange = Exchange(members(min_cohort=4), lost={"mask": {"west"}})
    deliveries = exchange.share(exchange.enrol())
    boxes = {site: box for site, box in deliveries["north"].boxes.items() if site != "west"}
    with refused(Reason.SURVIVORS):
        exchange.sites["north"].mask(deliveries["north"].model_copy(update={"boxes": boxes}), small_words("north"))
    survivors = exchange.mask(deliveries, small_words)
    for name in ("east", "north", "south"):
        with refused(Reason.SURVIVORS):
            exchange.sites[name].consent(survivors)
    exchange = Exchange(members(min_cohort=4))
    whole = _until_masked(exchange)
    signatures = {name: exchange.sites[name].consent(whole).signature for name in NAMES}
    few = {name: signatures[name] for name in NAMES if name != "west"}
    with refused(Reason.CONSENT):
        exchange.sites["east"].reveal(Consents(session=whole.session, signatures=few))
    assert set(exchange.sites["east"].reveal(Consents(session=whole.session, signatures=signatures)).seeds) == {*NAMES}


def test_more_than_two_thirds_are_asked_for_where_a_site_would_be_content_with_fewer() -> None:
    """Of seven sites five; their policies want three. Fewer signatures could stand under two lists at once."""
    names = tuple(f"site-{number}" for number in range(7))
    exchange = Exchange(members(names, min_cohort=3))
    whole = exchange.mask(exchange.share(exchange.enrol()), lambda _: np.arange(5, dtype=np.uint64))
    sites = exchange.sites
    with refused(Reason.SURVIVORS):
        sites[names[0]].consent(Survivors(session=whole.session, sites=names[:4]))
    signatures = {name: sites[name].consent(whole).signature for name in names}
    few = Consents(session=whole.session, signatures={name: signatures[name] for name in names[:4]})
    with refused(Reason.CONSENT):
        sites[names[0]].reveal(few)
    enough = Consents(session=whole.session, signatures={name: signatures[name] for name in names[:5]})
    assert set(sites[names[0]].reveal(enough).seeds) == set(names)


def test_a_site_that_is_not_in_the_sum_does_not_count_among_its_signatures() -> None:
    """West has dropped out, works with the server, and signs the list of the others all the same."""
    exchange = Exchange(members(), lost={"mask": {"west"}})
    listed, sites = _until_masked(exchange), exchange.sites
    signatures = {name: sites[name].consent(listed).signature for name in ("east", "north", "south")}
    state = sites["east"].state
    assert state is not None
    told = agreement(state.cohort, state.masking, state.survivors)
    helped = {**signatures, "west": sign(sites["west"].key, CONSENT, told)}
    del helped["south"]
    with refused(Reason.CONSENT):
        sites["east"].reveal(Consents(session=listed.session, signatures=helped))
    sites["east"].reveal(Consents(session=listed.session, signatures=signatures))


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
    adverts = adverts_of(sites)
    part = {name: adverts[name] for name in NAMES if name != "west"}
    with refused(Reason.COHORT_FIXED):
        sites["east"].share(roster_of(part, purpose="query.calibration"))
    exchange = Exchange(sites, purpose="query.calibration", lost={"mask": {"west"}})
    deliveries = exchange.share(exchange.enrol())
    survivors = exchange.mask(deliveries, small_words)
    with refused(Reason.COHORT_FIXED):
        sites["east"].consent(survivors)
