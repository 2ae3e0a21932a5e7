"""An attack on noised sums with canaries proves no more than is paid for, and notices where more could be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.federated_audit import DELTA, attacked, refuted
from distlfm.federated.settings import RoundTask, SharedNoise
from distlfm.federated.site.accounting import Cost, epsilon, noise_for
from distlfm.federated.site.cohort import groups
from distlfm.federated.site.privacy import summed_updates
from distlfm.federated.site.work import open_operator
from distlfm.lfo.tail import adapter_parameters
from tests.support.site_toy import make_federation


@pytest.mark.parametrize("target", [1.0, 4.0])
def test_what_an_attack_on_a_sum_proves_is_below_what_is_paid_for(target: float) -> None:
    """At 95 % confidence; the seed is fixed, so that the test is the same each time."""
    multiplier = noise_for(target, DELTA, 1.0, 1)
    found = attacked(multiplier, 20_000, np.random.default_rng(5).bytes)
    assert 0.3 * target < found <= epsilon([Cost(multiplier, 1.0, 1)], DELTA)


def test_the_attack_notices_noise_that_is_half_of_what_is_paid_for() -> None:
    multiplier = noise_for(1.0, DELTA, 1.0, 1)
    assert attacked(multiplier / 2, 20_000, np.random.default_rng(5).bytes) > 1.0


def test_coins_prove_nothing_and_certain_guesses_prove_much() -> None:
    assert refuted(1000, 100, 55, DELTA, 0.05) == 0.0
    assert refuted(1000, 100, 100, 0.0, 0.05) == pytest.approx(np.log(0.05**0.01 / (1 - 0.05**0.01)), abs=1e-3)


def test_a_patient_more_moves_a_sum_of_updates_by_the_clip_at_most(tmp_path: Path) -> None:
    """The mechanism `shared` itself, with a patient whose values are a hundred times those of the others."""
    _, sites = make_federation(tmp_path)
    site = next(iter(sites.values()))
    operator, batch = open_operator(site.folder / "model/base.pt"), site.windows()
    rows = list(groups(batch.ids).values())
    for one in rows[0]:
        batch.values[one] *= 100
    task, noise = RoundTask(steps=2, adapter="shift", lr=0.1), SharedNoise(multiplier=1.0, clip=0.05)
    names = adapter_parameters(operator.model, "shift")
    others = batch.at([row for one in rows[1:] for row in one])
    change = summed_updates(operator, names, batch, task, noise) - summed_updates(operator, names, others, task, noise)
    assert 0.01 < np.linalg.norm(change) <= 0.05 * (1 + 2.0**-12)
