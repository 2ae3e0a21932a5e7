"""Instances made ready for a fit: windows and scales."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from distlfm.fleets.sources import scaled, windows
from distlfm.inference.findings.scores import row_of
from distlfm.instance import Instance, Truth
from tests.support.result_factories import make_result


def series(times: list[float], values: np.ndarray, **more: object) -> Instance:
    array = np.atleast_2d(values).astype(float)
    names = tuple(f"y{i}" for i in range(len(array)))
    return Instance("patient", names, np.array(times, float), array, np.ones(array.shape, bool), **more)


def test_windows_hold_every_point_once_and_count_time_from_their_start() -> None:
    times = [float(t) for t in range(3, 43, 2)]
    pieces = list(windows([series(times, np.arange(20))], 10.0))
    assert [piece.id for piece in pieces] == ["patient/0", "patient/1", "patient/2", "patient/3"]
    assert np.concatenate([piece.values[0] for piece in pieces]).tolist() == list(range(20))
    assert all(piece.times[0] == 0 and piece.times[-1] < 10 for piece in pieces)
    assert [piece.metadata["window_start"] for piece in pieces] == ["3", "13", "23", "33"]
    late = next(windows([series([1234567.25 + t for t in times], np.arange(20))], 10.0))
    assert float(late.metadata["window_start"]) == 1234570.25


def test_the_row_of_a_window_says_when_it_began() -> None:
    result = make_result()
    cut = replace(result, instance=replace(result.instance, metadata={"window_start": "1234570.25"}))
    assert row_of(cut)["window_start"] == 1234570.25
    assert "window_start" not in row_of(result)


def test_a_window_with_few_points_is_left_out() -> None:
    times = [*range(10), 10.0, 11.0]
    assert [piece.id for piece in windows([series(times, np.arange(12))], 10.0)] == ["patient/0"]


def test_a_window_with_nothing_observed_is_left_out() -> None:
    instance = series(list(range(20)), np.arange(20))
    instance.mask[:, 10:] = False
    assert [piece.id for piece in windows([instance], 10.0)] == ["patient/0"]


def test_scaled_outputs_have_root_mean_square_one_and_can_be_undone() -> None:
    values = np.array([[3.0, 4.0], [300.0, 400.0]])
    truth = Truth(np.array([0.0, 1.0]), np.ones((1, 2)), values.copy(), parameters={"decay": np.ones(2)})
    found = scaled(series([0, 1], values, variance=np.full((2, 2), 4.0), truth=truth))
    assert np.sqrt((found.values**2).mean(1)) == pytest.approx([1.0, 1.0])
    size = np.array([float(found.metadata[f"scale_{name}"]) for name in found.outputs])[:, None]
    assert found.values * size == pytest.approx(values)
    assert found.variance * size**2 == pytest.approx(np.full((2, 2), 4.0))
    assert found.truth.outputs * size == pytest.approx(values)
    assert found.truth.force.tolist() == truth.force.tolist()


def test_scaling_drops_true_parameters_whose_units_no_longer_hold() -> None:
    truth = Truth(np.array([0.0, 1.0]), parameters={"basal": np.ones(1)})
    assert scaled(series([0, 1], np.array([1.0, 2.0]), truth=truth)).truth.parameters == {}


def test_unobserved_values_do_not_count_in_the_scale_and_all_zero_outputs_stay() -> None:
    instance = series([0, 1, 2], np.array([[2.0, 2.0, 1e9], [0.0, 0.0, 0.0]]))
    instance.mask[0, 2] = False
    found = scaled(instance)
    assert found.metadata["scale_y0"] == "2"
    assert found.values[1].tolist() == [0.0, 0.0, 0.0]
