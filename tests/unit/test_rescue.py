"""One bad row costs itself and no neighbour; what nobody can be blamed for changes nothing."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from distlfm.cluster.blocks.job import Failure, death, failure_of
from distlfm.cluster.blocks.rescue import START_TRIES, WHOLE_TRIES, Action, Attempt, Phase, Rescue, Run
from distlfm.errors import (
    DataError,
    DistlfmError,
    MissingExtra,
    Problem,
    StartError,
    StorageError,
    UsageError,
    WorkError,
)

RAISED = failure_of(ValueError("bad"))
DIED = death("killed")


def outcome(action: Action, count: int, bad: Mapping[int, Failure]) -> Failure | None:
    """What a world does in which these rows fail."""
    rows = action.rows if isinstance(action, Attempt) else [row for row in range(count) if row not in action.left_out]
    return next((bad[row] for row in rows if row in bad), None)


def rescued(count: int, bad: Mapping[int, Failure], killed: int = -1, proven: bool = False) -> tuple[Rescue, int]:
    """A block brought to its end, and the number of actions; the action number `killed` is killed from outside."""
    rescue, actions = Rescue(7, count), 0
    while not rescue.finished and rescue.phase is not Phase.DOUBT:
        failure = DIED if actions == killed else outcome(rescue.action, count, bad)
        rescue.feed(failure, proven)
        actions += 1
    return rescue, actions


failures = st.sampled_from([RAISED, DIED, failure_of(UsageError("No such output.", "Name it."))])


@given(st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.dictionaries(st.integers(0, n - 1), failures))))
def test_exactly_the_bad_rows_are_set_aside(case: tuple[int, dict[int, Failure]]) -> None:
    count, bad = case
    rescue, _ = rescued(count, bad, proven=True)
    assert rescue.phase is Phase.DONE
    assert set(rescue.left_out) == set(bad)
    assert all(rescue.left_out[row] == failure.reason for row, failure in bad.items())


@settings(max_examples=50)
@given(st.integers(1, 12).flatmap(lambda n: st.tuples(st.just(n), st.dictionaries(st.integers(0, n - 1), failures))))
def test_a_kill_from_outside_at_any_moment_changes_nothing(case: tuple[int, dict[int, Failure]]) -> None:
    count, bad = case
    expected, actions = rescued(count, bad, proven=True)
    for moment in range(actions):
        rescue, _ = rescued(count, bad, killed=moment, proven=True)
        assert set(rescue.left_out) == set(expected.left_out), moment


@pytest.mark.parametrize("count", [2, 16, 100, 1024])
def test_one_bad_row_is_found_by_halves(count: int) -> None:
    _, actions = rescued(count, {count // 3: RAISED})
    assert actions <= 2 + 2 * math.ceil(math.log2(count)) + 1 + 1


def test_a_good_block_is_done_at_once() -> None:
    assert rescued(5, {})[1] == 1


def test_a_row_that_once_raises_and_once_dies_is_tried_a_third_time() -> None:
    rescue = Rescue(0, 1)
    for failure in (RAISED, RAISED, RAISED, DIED):
        rescue.feed(failure, proven=False)
    assert rescue.action == Attempt(0, (0,))
    rescue.feed(None, proven=False)
    assert rescue.action == Run(0, {})


def test_asking_for_the_action_twice_changes_nothing() -> None:
    rescue = Rescue(0, 4)
    rescue.feed(RAISED, proven=False)
    rescue.feed(RAISED, proven=False)
    assert rescue.action == rescue.action == Attempt(0, (0, 1))


def test_a_block_that_fails_whole_and_in_no_row_is_given_up_with_the_reason() -> None:
    rescue = Rescue(0, 3)
    while rescue.phase is not Phase.GIVEN_UP:
        rescue.feed(RAISED if isinstance(rescue.action, Run) else None, proven=True)
    action = rescue.action
    assert isinstance(action, Run)
    assert set(action.left_out) == {0, 1, 2}
    assert all("fails as a whole" in why and "ValueError: bad" in why for why in action.left_out.values())
    rescue.feed(None, proven=True)
    assert rescue.phase is Phase.DONE


def test_a_block_that_dies_whole_and_in_no_row_is_tried_alone_and_then_lost_with_nothing_stored() -> None:
    rescue, actions = Rescue(3, 2), []
    while not rescue.finished:
        actions.append((type(rescue.action), rescue.alone))
        rescue.feed(DIED if isinstance(rescue.action, Run) else None, proven=True)
    among, alone = [(Run, False)] * 2 + [(Attempt, False)] * 2 + [(Run, False)] * 2, [(Run, True)] * 2
    assert actions == among + alone
    assert (rescue.phase, rescue.left_out) == (Phase.LOST, {})
    assert rescue.error is not None
    told = str(rescue.error.error())
    assert told.startswith("Block 3 fails as a whole, though none of its rows does alone: killed. Nothing of it is")


def test_a_block_that_dies_among_others_and_works_alone_is_done_whole() -> None:
    rescue = Rescue(3, 2)
    while not rescue.finished:
        rescue.feed(DIED if isinstance(rescue.action, Run) and not rescue.alone else None, proven=True)
    assert (rescue.phase, rescue.left_out) == (Phase.DONE, {})


@pytest.mark.parametrize("failure", [death("no memory", starved=True), failure_of(MemoryError("a terabyte"))])
def test_what_runs_out_of_memory_is_done_again_alone_before_anything_is_held_against_it(failure: Failure) -> None:
    rescue = Rescue(0, 4)
    rescue.feed(failure, proven=True)
    assert (rescue.alone, rescue.action) == (True, Run(0, {}))
    rescue.feed(failure, proven=True)
    assert rescue.action == Run(0, {}), "the first time has counted"
    rescue.feed(None, proven=True)
    assert (rescue.phase, rescue.left_out) == (Phase.DONE, {})


def test_torchs_want_of_memory_is_known_as_such() -> None:
    with pytest.raises(RuntimeError) as raised:
        torch.empty(10**15)
    assert failure_of(raised.value).starved
    assert not failure_of(RuntimeError("shapes differ")).starved


def test_a_block_that_fails_without_any_row_ends_the_run() -> None:
    rescue = Rescue(0, 2)
    while not rescue.finished:
        rescue.feed(RAISED, proven=True)
    assert rescue.error is not None
    assert isinstance(rescue.error.error(), WorkError)
    assert "all its rows left out" in rescue.error.cause


@pytest.mark.parametrize(
    ("error", "tries"),
    [
        (StorageError("The disk is full.", "Free some space."), 1),
        (MissingExtra("FEniCS is not installed.", "Install it."), 1),
        (StartError("The ranks did not start.", "Mend it."), START_TRIES),
    ],
)
@pytest.mark.parametrize("before", [0, WHOLE_TRIES])
def test_a_failure_that_no_row_is_to_blame_for_ends_the_run_and_sets_none_aside(
    error: DistlfmError, tries: int, before: int
) -> None:
    rescue = Rescue(0, 4)
    for _ in range(before):  # its bad rows are looked for already
        rescue.feed(RAISED, proven=True)
    for left in reversed(range(tries)):
        assert not rescue.finished, f"{left + 1} tries are left"
        rescue.feed(failure_of(error), proven=True)
    assert (rescue.phase, rescue.left_out) == (Phase.FATAL, {})
    assert rescue.error is not None
    assert type(rescue.error.error()) is type(error)
    assert str(rescue.error.error()) == str(error)


def test_processes_that_fail_to_start_once_cost_nothing() -> None:
    rescue, late = Rescue(0, 4), failure_of(StartError("The ranks did not start in time."))
    for failure in (late, RAISED, late):
        rescue.feed(failure, proven=True)
        assert rescue.action == Run(0, {}), "the same once more"
    rescue.feed(None, proven=True)
    assert (rescue.phase, rescue.left_out) == (Phase.DONE, {})


def test_a_call_that_may_be_wrong_for_every_row_waits_for_others_to_prove_it_right() -> None:
    error = UsageError("No such key.", "Mend it.")
    wrong = failure_of(error)
    rescue, _ = rescued(4, dict.fromkeys(range(4), wrong))
    assert (rescue.phase, rescue.finished) == (Phase.DOUBT, False)
    assert rescue.error is not None
    assert type(rescue.error.error()) is type(error)
    assert str(rescue.error.error()) == str(error)
    rescue.trust()
    assert rescue.action == Run(7, dict.fromkeys(range(4), wrong.reason))
    rescue.feed(None, proven=True)
    assert (rescue.phase, rescue.error) == (Phase.DONE, None)


def test_a_usage_error_after_a_block_has_worked_costs_only_its_rows() -> None:
    wrong = failure_of(UsageError("No such key.", "Mend it."))
    rescue, _ = rescued(4, dict.fromkeys(range(4), wrong), proven=True)
    assert rescue.phase is Phase.DONE
    assert set(rescue.left_out) == set(range(4))


def test_a_usage_error_of_some_rows_costs_only_those() -> None:
    rescue, _ = rescued(4, {1: failure_of(UsageError("No such key.", "Mend it."))})
    assert (rescue.phase, set(rescue.left_out)) == (Phase.DONE, {1})


@pytest.mark.parametrize("count", [1, 2, 5, 16])
def test_an_input_that_is_refused_is_never_tried_twice(count: int) -> None:
    wrong, rescue, actions = failure_of(UsageError("No such key.", "Mend it.")), Rescue(7, count), list[Action]()
    while rescue.phase is not Phase.DOUBT:
        actions.append(rescue.action)
        rescue.feed(wrong, proven=False)
    asked = [action.rows if isinstance(action, Attempt) else tuple(range(count)) for action in actions]
    assert len(set(asked)) == len(asked)
    assert len(asked) == 2 * count - 1, "the whole, its halves, theirs, and each row"


def test_a_block_that_is_refused_whole_and_in_no_row_is_given_up_at_once() -> None:
    rescue, runs = Rescue(0, 2), 0
    while rescue.phase is not Phase.GIVEN_UP:
        runs += isinstance(rescue.action, Run)
        refused = failure_of(UsageError("They differ.", "Mend it.")) if isinstance(rescue.action, Run) else None
        rescue.feed(refused, proven=True)
    assert runs == 2
    assert all("They differ. Mend it." in why for why in rescue.left_out.values())


def test_an_exception_crosses_as_plain_text() -> None:
    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert failure_of(Rude()).reason.startswith("Rude: ")
    assert len(failure_of(ValueError("x" * 10**6)).reason) < 3000
    data = failure_of(DataError(Problem("No number.", "Give one.", file="a.csv", row=3))).error()
    assert isinstance(data, UsageError)
    assert "a.csv, row 3: No number. Give one." in str(data)
