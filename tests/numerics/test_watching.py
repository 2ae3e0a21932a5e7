"""Whoever waits for a fit is told where it is, and the fit is the same as without."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest

from distlfm.config import build
from distlfm.inference.fit import fit_instances
from distlfm.runs.settings import FitConfig
from distlfm.runtime import reporting
from distlfm.runtime.reporting import Plain, Step, during, stepped, watched
from distlfm.verbs.fit import fit
from tests.support.fit_toy import make_instances, make_model, quick

STAGES = {
    "collapsed": {"search step", "curvature", "proposal", "prediction"},
    "nested": {"search step", "curvature", "proposal", "draws of the force", "prediction"},
    "variational": {
        "search step",
        "curvature",
        "variational step",
        "parabola",
        "proposal",
        "draws of the force",
        "prediction",
    },
    "preestimate": {"search step", "curvature", "prediction"},
}


def test_a_step_is_told_with_the_stages_around_it_to_all_who_listen() -> None:
    first: list[str] = []
    second: list[str] = []
    stepped("unheard")
    with watched(lambda step: first.append(str(step))):
        stepped("mesh")
        with watched(lambda step: second.append(str(step))), during("linearisation", 3, 15), during("start", 1, 1):
            stepped("search step", 12, 80)
        stepped("search step", 1, 80)
    stepped("unheard")
    assert first == ["mesh", "linearisation 3/15, search step 12/80", "search step 1/80"]
    assert second == first[1:2]


def test_what_fails_inside_a_stage_leaves_it() -> None:
    heard: list[Step] = []
    with pytest.raises(ZeroDivisionError), during("round", 1, 5):
        raise ZeroDivisionError
    with watched(heard.append):
        stepped("mesh")
    assert heard == [Step("mesh")]


@pytest.mark.parametrize("method", STAGES)
def test_a_fit_tells_its_stages_and_no_number_depends_on_who_listens(method: str) -> None:
    model, instances, options = make_model(), make_instances(2), quick(method=method)
    heard: list[Step] = []
    alone = fit_instances(model, instances, options, seed=3)
    with watched(heard.append):
        told = fit_instances(model, instances, options, seed=3)
    assert {step.stage for step in heard} == STAGES[method]
    assert all(step.done <= step.of for step in heard)
    for one, other in zip(alone, told, strict=True):
        assert one.bound == other.bound
        np.testing.assert_array_equal(one.trace, other.trace)
        np.testing.assert_array_equal(one.grid.force.mean, other.grid.force.mean)
        np.testing.assert_array_equal(one.grid.force.upper95, other.grid.force.upper95)


@pytest.mark.parametrize("kept", [False, True])
def test_one_long_fit_shows_progress_before_it_ends(
    kept: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a folder for the run and without one."""
    monkeypatch.setattr(reporting, "PLAIN_SECONDS", 0.0)
    monkeypatch.setattr(reporting, "TOLD_SECONDS", 0.0)
    run = {"dir": tmp_path / "run", "executor": "serial"} if kept else {}
    inference = {"posterior": {"stages": [8], "draws": 4}, "optimiser": {"rounds": 1}}
    config = build(FitConfig, {"mechanism": {"kind": "transcription"}, "inference": inference, "run": run})
    stream = io.StringIO()
    fit(config, make_instances(1), reporter=Plain(stream))
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("fit: ")]
    assert lines[0] == "fit: 0/1 after 0 s, search step 1/80"
    assert lines[-1].startswith("fit: 1/1, ")
    assert [line for line in lines if ", proposal 0/" in line]
