"""What a simulation says: of its rounds, and of a federation's worth, as means over patients with standard errors."""

from __future__ import annotations

import io
import math

import numpy as np
import pytest

from distlfm.federated.simulation.compare import (
    Comparison,
    Scores,
    _advantage,
    _elsewhere,
    _errors,
    _means,
    _own,
    of_others,
    standard_error,
)
from distlfm.federated.simulation.run import counted
from distlfm.runtime.reporting import Plain

SITES = ["north", "south"]


def test_a_lost_round_does_not_count_on_the_bar() -> None:
    log = io.StringIO()
    with Plain(log).task("rounds", 2) as task:
        after = counted(task, 3)
        for number, sites in ((1, 2), (1, 2), (1, 4), (2, 4)):
            after({"round": number, "sites": sites, "loss": 1.25})
    assert log.getvalue().splitlines()[-1].startswith("rounds: 2/2")
    assert log.getvalue().endswith("loss 1.250\n")


def scores(north: list[float], south: list[float]) -> Scores:
    return {"north": {"loss": np.array(north)}, "south": {"loss": np.array(south)}}


def found() -> Comparison:
    """The common model is better by 1 for every patient, who differ much among each other."""
    common = scores([1.0, 11.0], [2.0, 22.0, math.nan])
    alone = scores([2.0, 12.0], [3.0, 23.0, 4.0])
    return Comparison(alone, {"north": alone, "south": alone}, common, common, common)


def test_patients_that_differ_alike_in_both_models_leave_no_doubt_of_an_advantage() -> None:
    elsewhere = _elsewhere(found(), SITES, "loss")
    assert _advantage(elsewhere)["south"] == {"mean": 1.0, "standard_error": 0.0}
    assert _errors(elsewhere)["federated"]["south"] == pytest.approx(5.0)


def test_means_are_those_of_the_patients_whose_figure_is_known() -> None:
    elsewhere, own = _elsewhere(found(), SITES, "loss"), _own(found(), SITES, "loss")
    assert _means(elsewhere)["federated"] == {"north": 12.0, "south": 6.0}
    assert _means(own)["federated"] == {"north": 6.0, "south": 12.0}
    assert _means(elsewhere)["local"]["south"] == np.nanmean(of_others(found().local["south"], "south", "loss"))
    assert _means(own)["personal"] == {"north": 6.0, "south": 12.0}


def test_one_patient_has_no_standard_error() -> None:
    assert standard_error(np.array([3.0, math.nan])) is None
    assert standard_error(np.array([3.0, 5.0])) == pytest.approx(1.0)
