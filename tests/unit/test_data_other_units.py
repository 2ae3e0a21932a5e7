"""An instance in another unit is noticed where the others are alike, and nobody where they differ by nature."""

from __future__ import annotations

import numpy as np
import pytest

from distlfm.data.doubts import InstanceChecks, _odd_ones
from distlfm.errors import Problem
from distlfm.instance import Instance


def notices(sizes: np.ndarray) -> list[Problem]:
    """What is noticed of instances "0", "1", … of these sizes [B]."""
    comparison = InstanceChecks()
    course = np.array([[0.8, 1.0, 1.3]])
    for i, size in enumerate(sizes.tolist()):
        comparison.add(Instance(str(i), ("glucose",), np.arange(3.0), size * course, np.ones((1, 3), dtype=bool)))
    return comparison.notices("f.csv")


def alike(count: int) -> np.ndarray:
    return 110 * np.random.default_rng(3).lognormal(0, 0.15, count)


@pytest.mark.parametrize(("factor", "words"), [(18.0, "times larger"), (1 / 18, "times smaller")])
def test_one_in_mmol_among_mg_is_noticed(factor: float, words: str) -> None:
    sizes = alike(20)
    sizes[7] *= factor
    (notice,) = notices(sizes)
    assert (notice.instance, notice.column) == ("7", "glucose")
    assert words in notice.what
    assert 10 < float(notice.what.split(" are ")[1].split()[0]) < 30
    assert "unit" in notice.fix


def test_sizes_that_differ_by_nature_are_not_noticed() -> None:
    draws = np.random.default_rng(0).lognormal(0, 1, (20, 100))
    assert [notices(sizes) for sizes in draws] == [[]] * len(draws)


@pytest.mark.parametrize(("count", "most"), [(6, 0.06), (8, 0.03), (10, 0.03)])
def test_small_fleets_that_differ_by_nature_are_seldom_noticed(count: int, most: float) -> None:
    draws = np.random.default_rng(1).lognormal(0, 1, (1000, count))
    assert np.mean([_odd_ones(np.log(sizes)).any() for sizes in draws]) < most


@pytest.mark.parametrize("count", [6, 8, 10])
@pytest.mark.parametrize("factor", [18.0, 1000.0])
def test_another_unit_is_found_in_small_fleets_too(count: int, factor: float) -> None:
    logs = np.random.default_rng(2).normal(0, 0.3, (300, count))
    logs[:, 1] += np.log(factor)
    assert np.mean([_odd_ones(row)[1] for row in logs]) > 0.9


def test_three_of_ten_in_another_unit_are_each_noticed() -> None:
    sizes = alike(10)
    sizes[[2, 5, 6]] /= 18
    assert [notice.instance for notice in notices(sizes)] == ["2", "5", "6"]


def test_half_a_fleet_in_another_unit_is_not_called_odd() -> None:
    sizes = alike(20)
    sizes[::2] *= 18
    assert notices(sizes) == []


@pytest.mark.parametrize(("others", "factor", "told"), [(5, 8.0, 1), (5, 7.9, 0), (4, 18.0, 0), (1, 18.0, 0)])
def test_it_takes_five_others_and_a_factor_of_eight(others: int, factor: float, told: int) -> None:
    assert len(notices(np.array([5.0] * others + [5 * factor]))) == told
