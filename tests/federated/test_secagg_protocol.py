"""A secure sum among honest members and an honest gatherer: right, with whoever is left, or no sum at all."""

from __future__ import annotations

import numpy as np
import pytest

from distlfm.federated.secure.gatherer import SumFailed
from distlfm.federated.secure.messages import Reveal
from tests.support.cohorts import NAMES, Exchange, members, small_words

STAGES = ("advertise", "share", "mask", "consent", "reveal")


def _plain(names: tuple[str, ...]) -> np.ndarray:
    return np.sum([small_words(name) for name in names], axis=0, dtype=np.uint64)


def test_the_sum_is_that_of_the_terms() -> None:
    assert np.array_equal(Exchange(members()).run(small_words), _plain(NAMES))


@pytest.mark.parametrize("site", ["east", "north", "west"])
@pytest.mark.parametrize("stage", STAGES)
def test_one_of_four_may_drop_out_at_any_stage(stage: str, site: str) -> None:
    """Before its vector is there, the sum is that of the others; after, its vector stays in the sum."""
    exchange = Exchange(members(), lost={stage: {site}})
    total = exchange.run(small_words)
    left = NAMES if stage in ("consent", "reveal") else tuple(name for name in NAMES if name != site)
    assert exchange.gatherer.survivors == left
    assert np.array_equal(total, _plain(left))


@pytest.mark.parametrize("stage", STAGES)
def test_two_of_four_lost_at_a_stage_leave_no_sum(stage: str) -> None:
    exchange = Exchange(members(), lost={stage: {"east", "south"}})
    with pytest.raises(SumFailed, match="2 sites"):
        exchange.run(small_words)


def test_losses_at_several_stages_add_up_to_what_the_threshold_allows() -> None:
    names = tuple(f"site{i}" for i in range(10))
    lost = {"share": {"site1"}, "mask": {"site4"}, "consent": {"site7"}}
    exchange = Exchange(members(names), lost=lost)
    total = exchange.run(lambda name: np.full(3, int(name[4:]), dtype=np.uint64))
    assert total.tolist() == [sum(range(10)) - 1 - 4] * 3
    more = Exchange(members(names), lost={**lost, "reveal": {"site2"}})
    with pytest.raises(SumFailed, match="6 sites helped to unmask, and 7 are needed"):
        more.run(lambda name: np.full(3, int(name[4:]), dtype=np.uint64))


def test_a_site_that_reveals_wrong_shares_spoils_no_sum_unseen() -> None:
    exchange = Exchange(members())
    consents = exchange.consent(exchange.mask(exchange.share(exchange.enrol()), small_words))
    reveals = {name: one.reveal(consents) for name, one in exchange.sites.items()}
    wrong = reveals["north"].model_copy(update={"seeds": {**reveals["north"].seeds, "east": "00" * 66}})
    with pytest.raises(SumFailed, match="east"):
        exchange.gatherer.unmask({**reveals, "north": wrong})


def test_messages_are_read_back_as_they_were_written() -> None:
    exchange = Exchange(members())
    roster = exchange.enrol()
    assert type(roster).from_bytes(roster.to_bytes()) == roster
    reveal = Reveal(session="ab" * 32, seeds={"east": "00" * 66}, keys={})
    assert Reveal.from_bytes(reveal.to_bytes()) == reveal
