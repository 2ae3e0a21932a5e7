"""Weights within a policy's bounds that read one patient's record from full sums: spies among decoys.

Four sites of eight patients, one step of gradient descent. Some hidden units are on for one patient of 32 alone, one
after another in time; the others are as ever, so that each tensor as a whole has its patients and its strength.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from distlfm.federated.drill.weights import likeness, spied, spying, target_of
from distlfm.federated.refused import Reason
from distlfm.federated.site.contract import FEW
from distlfm.federated.site.work import Site, codec_of
from distlfm.lfo import Operator
from tests.federated.test_hostile_coordinator import asked, set_policy
from tests.support.site_toy import make_federation

LATE = (-0.25, 0.25)
WIDE = {"drift": 10.0}
"""Room enough for the weights of the attack, so that the effect on patients is what refuses them."""


@pytest.fixture
def federation(tmp_path: Path) -> tuple[Operator, dict[str, Site]]:
    """Four sites with the bounds of a policy that lets updates leave without noise."""
    operator, sites = make_federation(tmp_path, batch_seed=None, min_cohort=4)
    set_policy(sites, min_examples=5, task={})
    return operator, sites


def attacked(operator: Operator, sites: dict[str, Site]) -> tuple[float | None, set[str]]:
    """How like the patient's series the recovered one is, None if no sum was opened, and the sites' reasons."""
    target = target_of(operator, sites.values())
    moved, times, told = [], [], set()
    for number, late in enumerate(LATE):
        model, task, at = spying(operator, target, late)
        replies, grid, sent = asked(sites, model, task, run=20 + number)
        told |= set(grid.reports[-1].dropped.values())
        opened = [one for one in replies if not one.has_error()]
        if opened:
            moved.append(opened[0].content["arrays"]["shared"].numpy() - sent)
            times.append(at)
    if not moved:
        return None, told
    return likeness(target, spied(operator, task, moved, times, len(target.series))), told


def test_the_attack_would_read_a_record_at_sites_that_let_it(federation: tuple[Operator, dict[str, Site]]) -> None:
    """So the other tests here fail if their defence does. A prior's guess, the mean of all series, has about 0.6."""
    operator, sites = federation
    set_policy(sites, task={**WIDE, "effective": 1.0})
    like, told = attacked(operator, sites)
    assert told == set()
    assert like is not None
    assert like > 0.9


@pytest.mark.parametrize("task", [{}, WIDE], ids=["as policies are", "by their effect on patients alone"])
def test_spies_among_decoys_are_refused(federation: tuple[Operator, dict[str, Site]], task: dict[str, float]) -> None:
    operator, sites = federation
    set_policy(sites, task=task)
    like, told = attacked(operator, sites)
    assert like is None
    assert Reason.TASK.value in told


def test_each_site_sees_units_that_few_patients_or_nobody_switch_on(
    federation: tuple[Operator, dict[str, Site]],
) -> None:
    """Whether or not the patient is one of its own: a site without the patient would be silent in these units."""
    operator, sites = federation
    model, task, _ = spying(operator, target_of(operator, sites.values()), 0.0)
    vector = codec_of(model, task).encode(model.state_dict())
    for site in sites.values():
        found = site.effect(vector, task)
        assert found.few > FEW
        assert np.isfinite(found.strongest)
