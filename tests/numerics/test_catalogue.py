"""No answer is wrong in silence: each case of a catalogue ends right, or is said to be unreliable, with what to do."""

from __future__ import annotations

from contextlib import suppress

import pytest

from distlfm.errors import UsageError
from distlfm.inference.result import UNRELIABLE, FitResult
from tests.support.catalogue import fields, linear, nonlinear
from tests.support.catalogue.case import Case, held, right

QUICK = [case for case in linear.CASES if not case.slow]
SLOW = [case for case in (*linear.CASES, *nonlinear.CASES, *fields.CASES) if case.slow]


def check(case: Case) -> None:
    results: list[FitResult] = []
    with suppress(UsageError):  # refused, with the fix, before anything was fitted
        results = case.fits()
    for result in results:
        assert not case.told or result.status == UNRELIABLE, result.id
        if result.status == "converged":
            assert right(result), (result.id, held(result))
        else:
            assert result.advice.strip(), result.id


@pytest.mark.parametrize("case", QUICK, ids=lambda case: case.name)
def test_a_linear_case_is_right_or_unreliable(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW, ids=lambda case: case.name)
def test_a_case_through_solver_or_mesh_is_right_or_unreliable(case: Case) -> None:
    check(case)


def test_there_are_many_cases() -> None:
    assert len(QUICK) + len(SLOW) >= 40
