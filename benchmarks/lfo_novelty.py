"""Inputs unlike the training data: AUROC of the operator's score for five kinds of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.goals import at_least
from benchmarks.lfo_shared import CALM, Workshop
from benchmarks.lfo_transcription import trained
from distlfm.instance import FloatArray, Instance
from distlfm.lfo import Operator

COUNT = 300
LATER = 30
"""Steps of the grid by which times are shifted."""


def run(quick: bool = False) -> dict[str, Any]:
    shop = Workshop(quick)
    operator = trained(shop)
    usual = shop.generated("transcription", "genes-usual", COUNT, CALM).instances()
    longer = [f"stop={11.0 + LATER * 0.1:g}", f"points={111 + LATER}"]
    late = shop.generated("transcription", "genes-late", COUNT, CALM + 1, longer).instances()
    random = np.random.default_rng(CALM)
    kinds = {
        "other mechanism": [oscillating(one, random) for one in usual],
        "10 x amplitude": [replace(one, values=10 * one.values) for one in usual],
        "pure noise": [noisy(one, random) for one in usual],
        "shifted time, by its clock": [replace(one, times=one.times + LATER * 0.1) for one in usual],
        "shifted time, a late start whose clock says nothing of it": [shifted(one) for one in late],
    }
    ordinary = scores(operator, usual)
    found = {
        f"AUROC of novelty, {name}": at_least(auroc(scores(operator, them), ordinary), 0.95)
        for name, them in kinds.items()
    }
    return {
        "figures": found,
        "false alarms": float((ordinary > 1).mean()),
        "median score": {"usual": float(np.median(ordinary)), **thinner(operator, usual, random)},
    }


def thinner(operator: Operator, usual: Sequence[Instance], random: np.random.Generator) -> dict[str, float]:
    """Median scores of usual instances of which fewer points, at other times than those of the grid, were observed."""
    found = {}
    for count in (100, 50, 25, 12):
        them = []
        for one in usual:
            times = np.sort(random.uniform(one.times[0], one.times[-1], count))
            values = np.stack([np.interp(times, one.times, row) for row in one.values])
            them.append(Instance(one.id, one.outputs, times, values, np.ones(values.shape, bool)))
        found[f"{count} irregular times"] = float(np.median(scores(operator, them)))
    return found


def scores(operator: Operator, instances: Sequence[Instance]) -> FloatArray:
    return np.array([answer.novelty for answer in operator(list(instances))])


def auroc(strange: FloatArray, usual: FloatArray) -> float:
    """The chance that a strange instance scores above a usual one."""
    return float((strange[:, None] > usual).mean() + 0.5 * (strange[:, None] == usual).mean())


def oscillating(one: Instance, random: np.random.Generator) -> Instance:
    """Damped oscillators, ÿ + c ẏ + k y = s f, from rest: driven by the force of the instance, as large as it is."""
    assert one.truth is not None
    assert one.truth.force is not None
    force, step = one.truth.force[0], float(one.times[1] - one.times[0])
    damping, stiffness = random.uniform(0.1, 0.6, 5), random.uniform(1.0, 6.0, 5)
    y, v = np.zeros(5), np.zeros(5)
    found = [y]
    for i in range(len(one.times) - 1):
        v = v + step * (force[i] - damping * v - stiffness * y)
        y = y + step * v
        found.append(y)
    path = np.array(found).T
    size = one.values.std() / max(path.std(), 1e-9)
    noise = 0.01 * random.standard_normal(path.shape)
    return replace(one, values=one.values[:, :1] + size * path + noise)


def noisy(one: Instance, random: np.random.Generator) -> Instance:
    """Nothing but noise, with the mean and the size of each output."""
    mean, sd = one.values.mean(-1, keepdims=True), one.values.std(-1, keepdims=True)
    return replace(one, values=mean + sd * random.standard_normal(one.values.shape))


def shifted(one: Instance) -> Instance:
    """Observed from a later time on, with a clock that starts then: not at rest at its start, but perhaps near it."""
    return replace(
        one,
        times=one.times[:-LATER],
        values=one.values[:, LATER:],
        mask=one.mask[:, LATER:],
        truth=None,
    )
