"""What a helper group answers, on one rank and on three."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fem_programs import answer_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def serial() -> dict[str, Any]:
    return answer_of("fem_service_program.py")


def test_an_opened_problem_is_described(serial: dict[str, Any]) -> None:
    assert serial["about"] == {
        "affine": False,
        "reason": "The form is not linear in the state y.",
        "coefficients": ["sensitivity", "growth", "capacity", "diffusion"],
    }
    assert serial["shapes"] == {
        "nodes": [36, 2],
        "cells": [50, 3],
        "fixed": [6],
        "fixed_values": [6],
        "observed": [2, 2, 5, 5],
        "theta": [2, 4],
        "initial": [2, 2, 36],
        "force": [2, 2, 3, 36],
    }


def test_a_failed_trajectory_stops_no_other(serial: dict[str, Any]) -> None:
    (failure,) = serial["failures"]
    assert failure["index"] == [1, 1]
    assert "could not be solved" in failure["cause"]
    assert serial["failed"] is True
    assert serial["failed_gradient"] == 0.0


def test_three_ranks_answer_as_one(serial: dict[str, Any]) -> None:
    parallel = answer_of("fem_service_program.py", ranks=3)
    assert parallel["about"] == serial["about"]
    assert parallel["failures"] == serial["failures"]
    for name in ("observed", "theta", "initial", "force"):
        assert parallel[name] == pytest.approx(serial[name], rel=1e-10, abs=1e-12), name


def test_what_is_not_held_or_does_not_fit_is_refused(serial: dict[str, Any]) -> None:
    assert serial["said"]["dropped"].startswith("The forward solve of this adjoint is no longer held.")
    assert "do not fit 36 nodes, 4 coefficients and 4 steps" in serial["said"]["wrong"]
    assert serial["said"]["closed"].startswith("The helper group holds no problem 'toy'.")
    assert serial["unkept"] is None
