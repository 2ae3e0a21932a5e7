"""The costliest block goes first; what blocks cost, and the time left, is learned from what is done."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlfm.cluster.blocks.ledger import Rates, Schedule, kind_of


def taken(schedule: Schedule) -> list[int]:
    """All blocks in the order they are given out."""
    return list(iter(schedule.next, None))


def test_the_costliest_block_is_given_out_first() -> None:
    assert taken(Schedule([0, 1, 2, 3], [1.0, 5.0, 3.0, 5.0])) == [1, 3, 2, 0]


def test_blocks_of_equal_cost_keep_their_order() -> None:
    assert taken(Schedule(range(4), [2.0] * 4)) == [0, 1, 2, 3]


def test_only_the_blocks_asked_for_are_given_out() -> None:
    assert taken(Schedule([5, 2], [1.0, 1.0, 3.0, 9.0, 9.0, 1.0])) == [2, 5]


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=30))
def test_any_guess_of_costs_gives_every_block_out_once(weights: list[float]) -> None:
    assert sorted(taken(Schedule(range(len(weights)), weights))) == list(range(len(weights)))


def test_nothing_is_said_of_the_time_left_before_a_block_is_done() -> None:
    schedule = Schedule(range(3), [1.0, 1.0, 1.0])
    assert math.isnan(schedule.time_left(2))
    schedule.next()
    assert math.isnan(schedule.time_left(2))


def test_the_time_left_is_shared_by_the_workers() -> None:
    schedule = Schedule(range(9), [1.0] * 9)
    first = schedule.next()
    assert first is not None
    schedule.done(first, seconds=10.0)
    assert schedule.time_left(1) == pytest.approx(80.0)
    assert schedule.time_left(4) == pytest.approx(20.0)


def test_no_number_of_workers_is_quicker_than_the_longest_block() -> None:
    schedule = Schedule(range(3), [8.0, 7.0, 1.0])
    first = schedule.next()
    assert first == 0
    schedule.done(0, seconds=16.0)
    assert schedule.time_left(100) == pytest.approx(14.0)


def test_a_block_in_hand_counts_half() -> None:
    schedule = Schedule(range(2), [1.0, 1.0])
    assert (schedule.next(), schedule.next()) == (0, 1)
    schedule.done(0, seconds=4.0)
    assert schedule.time_left(1) == pytest.approx(2.0)


def test_when_all_is_done_no_time_is_left() -> None:
    schedule = Schedule([0], [3.0])
    schedule.next()
    schedule.done(0, seconds=4.0)
    assert schedule.time_left(3) == 0.0


def test_measured_seconds_change_the_order() -> None:
    """Blocks that were guessed to be cheap take longest."""
    schedule = Schedule(range(16), [4.0] * 8 + [1.0] * 8)
    first, look = schedule.next(), schedule.next()
    assert (first, look) == (0, 8), "the smallest is looked at early"
    schedule.done(0, seconds=1.0)
    schedule.done(8, seconds=5.0)
    assert taken(schedule) == [*range(9, 16), *range(1, 8)]


def test_seconds_measured_before_a_stop_order_the_rest() -> None:
    weights = [4.0, 4.0, 1.0, 1.0, 2.0]
    assert taken(Schedule([1, 3, 4], weights)) == [1, 4, 3]
    assert taken(Schedule([1, 3, 4], weights, {0: 1.0, 2: 16.0})) == [3, 4, 1]


def test_sizes_that_were_not_measured_cost_what_the_next_ones_tell() -> None:
    """Seconds that grow by the root of the guess: 1 s at 1, 4 s at 16, so 2 s at 4; beyond, in proportion."""
    rates = Rates()
    rates.learn(1.0, 1.0)
    rates.learn(16.0, 4.0)
    assert 4.0 * rates.of(kind_of(4.0)) == pytest.approx(2.0)
    assert 32.0 * rates.of(kind_of(32.0)) == pytest.approx(8.0)
    assert 0.5 * rates.of(kind_of(0.5)) == pytest.approx(0.5)


def test_a_small_fleet_begins_with_its_costliest_blocks_only() -> None:
    assert taken(Schedule(range(4), [4.0, 4.0, 1.0, 1.0])) == [0, 1, 2, 3]


def test_the_time_left_is_that_of_sizes_as_measured() -> None:
    schedule = Schedule(range(16), [4.0] * 8 + [1.0] * 8)
    assert (schedule.next(), schedule.next()) == (0, 8)
    schedule.done(0, seconds=1.0)
    schedule.done(8, seconds=5.0)
    assert schedule.time_left(1) == pytest.approx(7 * 1.0 + 7 * 5.0)


def test_a_block_without_any_answer_says_nothing_of_the_others() -> None:
    schedule = Schedule(range(2), [1.0, 1.0])
    schedule.next()
    schedule.done(0, None)
    assert math.isnan(schedule.time_left(1))
