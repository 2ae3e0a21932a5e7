"""Times that count from 1970 or 1900 are noticed with what makes hours of them, and other times are not."""

from __future__ import annotations

import numpy as np
import pytest

from distlfm.data.doubts import Clocks
from distlfm.errors import Problem
from distlfm.instance import Instance

HOURS = np.array([0.0, 1.0, 1.5, 30.0, 47.0])


def notices(*series: np.ndarray) -> list[Problem]:
    """What is noticed of instances "0", "1", … with these times."""
    watcher = Clocks()
    for i, times in enumerate(series):
        shape = (1, len(times))
        watcher.add(Instance(str(i), ("y",), times, np.ones(shape), np.ones(shape, dtype=bool)))
    return watcher.notices("f.csv")


@pytest.mark.parametrize(
    ("times", "name", "fix"),
    [
        (1709280000 + 3600 * HOURS, "Unix seconds", "divide by 3600 to"),
        (1e3 * (1709280000 + 3600 * HOURS), "Unix milliseconds", "divide by 3600000 to"),
        (1e9 * (1709280000 + 3600 * HOURS), "Unix nanoseconds", "divide by 3600000000000 to"),
        (1709280000 + 86400 * np.arange(365.0), "Unix seconds", "Subtract each instance's first time"),
        (45352.33 + HOURS / 24, "day numbers of Excel", "multiply by 24"),
        (45352 + np.arange(300.0), "day numbers of Excel", "multiply by 24"),
        (739312.33 + HOURS / 24, "day numbers of Matlab", "multiply by 24"),
        (np.array([20240228.0, 20240229.0, 20240301.0]), "dates written as one number", "after each instance's first"),
    ],
)
def test_a_clock_is_noticed_with_what_makes_hours_of_it(times: np.ndarray, name: str, fix: str) -> None:
    (notice,) = notices(HOURS, times)
    assert notice.what.startswith(f"Times look like {name}")
    assert f"{times[0]:.15g} is the first." in notice.what
    assert fix in notice.fix
    assert notice.instance == "1"


def test_many_instances_are_noticed_once() -> None:
    (notice,) = notices(*(1.7e9 + 9e5 * i + 60 * HOURS for i in range(30)))
    assert notice.what.startswith("Times of 30 instances look like Unix seconds, counted from 1970: 1700000000 is")
    assert notice.instance is None


@pytest.mark.parametrize(
    "times",
    [
        HOURS,
        1900 + np.arange(21.0),
        2024 + HOURS / 100,
        5 * np.arange(2016.0),
        40320 + 5 * np.arange(288.0),
        28800 + 30 * np.arange(1000.0),
        np.linspace(0, 2e9, 50),
        1e6 * np.arange(1.0, 50.0),
        np.linspace(1e9, 2e9, 20),
        np.linspace(20240100.0, 20240400.0, 7),
        -45352 + HOURS,
    ],
)
def test_times_from_a_start_are_not_noticed(times: np.ndarray) -> None:
    assert notices(times) == []
