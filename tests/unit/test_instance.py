"""An instance refuses what a fit cannot use, and hands on what it promises."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from distlfm.errors import DataError
from distlfm.instance import Instance, Truth


def make(**changes: Any) -> Instance:
    fields: dict[str, Any] = {
        "id": "p1",
        "outputs": ("a", "b"),
        "times": np.array([0.0, 1.0, 2.0]),
        "values": np.arange(6.0).reshape(2, 3),
        "mask": np.ones((2, 3), dtype=bool),
    }
    return Instance(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"values": np.zeros((3, 2))}, "values has shape (3, 2)"),
        ({"mask": np.ones((2, 2), dtype=bool)}, "mask has shape (2, 2)"),
        ({"variance": np.ones((1, 3))}, "variance has shape (1, 3)"),
        ({"positions": np.zeros(3)}, "positions has shape (3,)"),
        ({"times": np.array([0.0, np.nan, 2.0])}, "A time is not finite"),
        ({"times": np.array([0.0, 2.0, 1.0])}, "2 is followed by 1"),
        ({"times": np.array([0.0, 1.0, 1.0])}, "1 is followed by 1"),
        ({"values": np.full((2, 3), np.inf)}, "An observed value is not finite"),
        ({"positions": np.full((3, 1), np.nan)}, "A position is not finite"),
        ({"mask": np.zeros((2, 3), dtype=bool)}, "There is no observed value"),
        ({"variance": -np.ones((2, 3))}, "variance is negative"),
    ],
)
def test_it_refuses_with_the_instance_and_the_cause(changes: dict[str, Any], what: str) -> None:
    with pytest.raises(DataError) as caught:
        make(**changes)
    assert what in caught.value.problem.what
    assert caught.value.problem.instance == "p1"
    assert caught.value.problem.fix


def test_one_time_is_too_few() -> None:
    with pytest.raises(DataError, match="only one time point"):
        Instance("p", ("a",), np.array([3.0]), np.ones((1, 1)), np.ones((1, 1), dtype=bool))


def test_what_is_not_observed_may_be_anything() -> None:
    mask = np.array([[True, False, True], [True, True, True]])
    values = np.where(mask, 1.0, np.nan)
    assert make(values=values, mask=mask, variance=values).num_times == 3


def test_times_may_repeat_where_positions_differ() -> None:
    instance = make(times=np.array([0.0, 0.0, 1.0]), positions=np.array([[0.0], [1.0], [0.0]]))
    assert instance.num_times == 2
    assert instance.num_outputs == 2


def test_blind_drops_the_truth_and_nothing_else() -> None:
    instance = make(truth=Truth(np.array([0.0, 1.0]), force=np.ones((1, 2))), metadata={"k": "v"})
    assert instance.blind().truth is None
    assert replace(instance.blind(), truth=instance.truth) == instance


def test_thinning_keeps_every_second_point_and_the_whole_truth() -> None:
    truth = Truth(np.array([0.0, 1.0, 2.0]), outputs=np.ones((2, 3)))
    thin = make(truth=truth, variance=np.ones((2, 3)), positions=np.array([[0.0], [1.0], [2.0]])).thinned(2)
    assert thin.times.tolist() == [0.0, 2.0]
    assert thin.values.tolist() == [[0.0, 2.0], [3.0, 5.0]]
    assert thin.variance is not None
    assert thin.variance.shape == (2, 2)
    assert thin.positions is not None
    assert thin.positions.tolist() == [[0.0], [2.0]]
    assert thin.truth is truth


def test_an_instance_of_many_points_is_shown_in_a_line() -> None:
    shown = repr(Instance("A", [f"gene {i}" for i in range(6)], np.arange(400.0), np.ones((6, 400))))
    assert shown == "<Instance 'A': gene 0, gene 1, gene 2, gene 3 and 2 more; 400 times from 0 to 399; 2400 values>"


def test_what_numpy_or_pandas_masks_was_not_observed() -> None:
    masked = np.ma.masked_array([1.0, -999.0, 3.0], [0, 1, 0])
    for values in (masked, pd.array([1, None, 3], dtype="Int64"), pd.Series([1.0, None, 3.0]), [1, None, 3]):
        one = Instance("A", "p21", [0, 1, 2], values)
        assert one.mask.tolist() == [[True, False, True]]
        assert one.values.tolist() == [[1.0, 0.0, 3.0]]
    rows = Instance("A", ["a", "b"], [0, 1, 2], [masked, [4, 5, 6]])
    assert rows.mask.tolist() == [[True, False, True], [True, True, True]]
    with pytest.raises(DataError, match="variance is negative or not finite"):
        Instance("A", "p21", [0, 1, 2], [1, 2, 3], variance=masked)


def test_ids_are_text_and_outputs_have_names_of_their_own() -> None:
    assert Instance(np.int64(7), "p21", [0, 1], [1, 2]).id == "7"  # type: ignore[arg-type]
    for wrong in (1.5, None, True):
        with pytest.raises(DataError, match="The id is not text"):
            Instance(wrong, "p21", [0, 1], [1, 2])  # type: ignore[arg-type]
    for names in (["a", "a"], [1, 2], [], None):
        with pytest.raises(DataError, match="Give the name of each output"):
            make(outputs=names)


@pytest.mark.parametrize("times", [pd.date_range("2026-01-01", periods=2), pd.to_timedelta([0, 1], "h"), [0j, 1j]])
def test_dates_and_complex_numbers_are_not_taken_for_numbers(times: Any) -> None:
    with pytest.raises(DataError, match="times are counted from a start, not dates"):
        Instance("A", "p21", times, [1, 2])
