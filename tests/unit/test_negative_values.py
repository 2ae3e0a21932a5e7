"""Negative values of what cannot be negative are told; simulated data and other equations are not looked at."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from distlfm import fit
from distlfm.config import build
from distlfm.inference.findings.expectations import Negatives
from distlfm.instance import Instance, Truth
from distlfm.mechanisms import build_system
from distlfm.runs.settings import FitConfig

TIMES = np.arange(4.0)


def patient(name: str, *values: float, seen: tuple[bool, ...] = (True,) * 4) -> Instance:
    return Instance(name, ("glucose",), TIMES, np.array([values]), np.array([seen]))


def told(*instances: Instance, kind: str = "glucose") -> str:
    negatives = Negatives(build_system({"kind": kind, "outputs": ["glucose"]}))
    for one in instances:
        negatives.add([one])
    return negatives.notice()


def test_negative_glucose_is_told_with_its_count_and_place() -> None:
    notice = told(patient("A", 90, -1, 110, 100), patient("B", 90, -1, -3.5, 100))
    begin = "3 of 8 values of 'glucose' (down to -3.5, in 'B') are negative, and no output of glucose can be."
    assert notice.startswith(begin)
    assert "Leave a cell empty where nothing was observed" in notice


@pytest.mark.parametrize(
    ("instance", "kind"),
    [
        (patient("A", 0, 1, 110, 100), "glucose"),
        (patient("A", 90, -1, 110, 100, seen=(True, False, True, True)), "glucose"),
        (patient("A", 90, -1, 110, 100), "transcription"),
        (replace(patient("A", 90, -1, 110, 100), truth=Truth(TIMES, force=np.ones((1, 4)))), "glucose"),
    ],
    ids=["zeros", "not observed", "other equation", "simulated"],
)
def test_nothing_is_told_where_nothing_is_negative_or_it_may_be(instance: Instance, kind: str) -> None:
    assert told(instance, kind=kind) == ""


def test_a_fit_tells_it_with_its_answers() -> None:
    config: dict[str, Any] = {
        "mechanism": {"kind": "glucose"},
        "force": {"kernel": {"kind": "matern52"}},
        "inference": {"method": "preestimate", "preestimate": {"draws": 4}},
    }
    values = 110 + 10 * np.sin(np.arange(12.0))
    values[5] = -1
    ones = np.ones((1, 12), dtype=bool)
    run = fit(build(FitConfig, config), data=[Instance("A", ("glucose",), 15 * np.arange(12.0), values[None], ones)])
    assert sum("1 of 12 values of 'glucose' (down to -1, in 'A') are negative" in notice for notice in run.notices) == 1
