"""Trajectories of PDEs on the real FEniCS: second order in space and time, and gradients that are right."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.fem_programs import answer_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return answer_of("fem_trajectories_program.py")


@pytest.mark.parametrize("refined", ["space", "time", "both"])
@pytest.mark.parametrize("case", ["fixed", "flux"])
def test_a_manufactured_solution_is_approached_at_second_order(found: dict[str, Any], case: str, refined: str) -> None:
    """`fixed` has Dirichlet conditions, `flux` a Neumann and a Robin one."""
    assert found[case][refined] == [pytest.approx(2.0, abs=0.06)] * 2


@pytest.mark.parametrize("part", ["theta", "initial", "force"])
def test_gradients_of_fisher_kpp_pass_the_taylor_test(found: dict[str, Any], part: str) -> None:
    taylor = found["taylor cached"][part]
    assert taylor["orders"] == [pytest.approx(2.0, abs=0.1)] * 2
    assert abs(taylor["slope"]) > 0.01, "too small for the comparison to mean anything"


def test_gradients_of_a_linear_equation_are_exact_in_force_and_start(found: dict[str, Any]) -> None:
    taylor = found["taylor linear"]
    assert taylor["theta"]["orders"] == [pytest.approx(2.0, abs=0.1)] * 2
    for part in ("initial", "force"):
        assert max(taylor[part]["remainders"]) < 1e-13
        assert abs(taylor[part]["slope"]) > 0.01


def test_fixed_nodes_have_no_gradient_by_the_start(found: dict[str, Any]) -> None:
    assert found["taylor cached"]["initial_at_fixed"] == 0.0


@pytest.mark.parametrize("equation", ["FisherKpp", "ReactionDiffusion"])
def test_forms_derived_once_give_the_gradients_of_dolfin_adjoint(found: dict[str, Any], equation: str) -> None:
    assert max(found[f"same {equation}"].values()) < 1e-12


def test_recorded_trajectories_equal_plain_stepping_with_the_operators(found: dict[str, Any]) -> None:
    assert found["numpy"]["observed"] < 1e-10
    assert found["numpy"]["whole"] < 1e-10


def test_trajectories_of_one_stepper_keep_their_own_tapes(found: dict[str, Any]) -> None:
    assert found["tapes"]["same"] == 0.0
    assert found["tapes"]["doubled"] < 1e-13


def test_a_step_that_cannot_be_solved_says_so_and_leaves_no_tape(found: dict[str, Any]) -> None:
    assert found["tapes"]["said"].startswith("The trajectory failed in step 1, 0.1 after its start")
    assert found["tapes"]["recorded"] is False
