"""Numbers that stand for missing values are noticed, and ordinary data never are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distlfm.data import ColumnMap, examine
from distlfm.data.doubts import StandIns
from distlfm.errors import Doubt, Problem
from distlfm.instance import Instance

GLUCOSE = np.array([70.0, 110.0, 180.0, 400.0, 95.0])


def notices(*rows: np.ndarray) -> list[Problem]:
    """What is noticed of instances "0", "1", … with these values."""
    watcher = StandIns()
    for i, row in enumerate(rows):
        watcher.add(Instance(str(i), ("y",), np.arange(float(len(row))), row[None], np.ones((1, len(row)), dtype=bool)))
    return watcher.notices("f.csv")


@pytest.mark.parametrize("number", [-9999, -999, -99, -99.9, 999, 9999, 99999, -32768, 1e20, -3.4028234663852886e38])
def test_a_number_that_stands_for_none_is_noticed_once_with_its_count(number: float) -> None:
    (notice,) = notices(GLUCOSE, np.array([100.0, number, 90.0, number]), np.array([number, 120.0]))
    assert notice.what.startswith(f"3 values are {number:.7g} and apart from all others, in 2 instances of which '1'")
    assert (notice.column, notice.instance) == ("y", None)
    assert notice.fix == "Leave the cell empty where nothing was observed."


def test_one_alone_is_noticed_if_it_is_very_far() -> None:
    (notice,) = notices(np.append(GLUCOSE, -9999.0))
    assert notice.what.startswith("1 value is -9999")
    assert notice.instance == "0"
    assert notices(np.append(GLUCOSE, -99.0)) == []


def test_among_values_of_both_signs_it_has_to_be_far() -> None:
    cold = np.array([-20.0, -5.0, 3.0, 35.0])
    assert len(notices(np.append(cold, [-99.9, -99.9]))) == 1
    assert notices(np.append(5 * cold, [-99.0, -99.0])) == []


def test_a_time_that_is_not_known_is_noticed_too() -> None:
    watcher = StandIns()
    for name, times in (("A", [-9999.0, 0, 1, 2]), ("B", [0.0, 1, 2, 3]), ("C", [0.0, 24, 48, 96])):
        watcher.add(Instance(name, ("y",), np.array(times), np.ones((1, 4)), np.ones((1, 4), dtype=bool)))
    (notice,) = watcher.notices("f.csv")
    assert notice.what.startswith("1 time is -9999 and apart from all others: such a number mostly means")
    assert (notice.instance, notice.column) == ("A", None)
    assert notice.fix == "Remove the rows whose time is not known."


def test_single_precision_hides_none() -> None:
    assert len(notices(np.append(GLUCOSE, np.float32([-999.9, -999.9]).astype(float)))) == 1


@pytest.mark.parametrize(
    "values",
    [
        np.full(8, -9999.0),
        np.full(8, 999.0),
        np.append(np.full(8, 1000.0), [999.0, 999.0]),
        np.zeros(8),
        np.append(np.zeros(8), [1.0, 1.0]),
        np.array([-99.0, -99.0, -98.0, -101.0, -120.0]),
        np.array([900.0, 950.0, 999.0, 999.0, 1020.0]),
        np.array([4000.0, 8000.0, 9999.0, 9999.0]),
    ],
)
def test_ordinary_values_are_not_noticed(values: np.ndarray) -> None:
    assert notices(values) == []


def test_counts_and_noise_are_not_noticed() -> None:
    generator = np.random.default_rng(0)
    for _ in range(100):
        assert notices(np.rint(generator.lognormal(4, 2, 500))) == []
        assert notices(np.rint(generator.normal(0, 300, 500))) == []
        assert notices(generator.integers(-9999, 9999, 50).astype(float)) == []


def test_a_file_with_stand_ins_is_read_whole_and_doubted(tmp_path: Path) -> None:
    path = tmp_path / "f.csv"
    path.write_text("id,t,y,z\nA,0,104,1\nA,1,-9999,-999\nA,2,99,2\nB,0,120,3\nB,1,-9999,1\n")
    report = examine(path, ColumnMap(time="t", instance="id", values=("y", "z")))
    doubts = [notice for notice in report.notices if isinstance(notice, Doubt)]
    assert [(one.column, one.instance) for one in doubts] == [("y", None), ("z", "A")]
    assert report.instances[0].values[0].tolist() == [104, -9999, 99], "nothing is mended silently"
    assert report.instances[0].mask.all()
