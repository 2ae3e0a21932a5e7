"""The costliest block goes first, and the time left is learned from what is done."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from distlfm.cluster.schedule import Schedule


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
