"""How the acts of the demonstration follow on each other."""

from __future__ import annotations

import io
import signal

import pytest

from distlfm.errors import Stopped, WorkError
from distlfm.pipeline.demo import Act, play
from distlfm.runtime.reporting import reporter_for


def failing() -> str:
    raise WorkError("There is no FEniCS.", "Install it.")


def stopped() -> str:
    raise Stopped(1, 2, "distlfm resume runs/demo/fit", signal.SIGTERM)


def played(*acts: Act) -> tuple[int, str]:
    said = io.StringIO()
    return play(acts, reporter_for(said)), said.getvalue()


def test_a_failed_act_says_what_to_do_and_the_rest_goes_on() -> None:
    failed, said = played(("one", failing), ("two", lambda: "the answer is 42"))
    assert failed == 1
    assert "There is no FEniCS. Install it." in said
    assert "[2/2] two" in said
    assert "the answer is 42" in said


def test_a_signal_ends_the_whole_demonstration() -> None:
    with pytest.raises(Stopped):
        played(("one", stopped), ("two", lambda: pytest.fail("it went on")))
