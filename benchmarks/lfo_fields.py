"""The operator of reaction and diffusion, learned on 41 x 41 points and asked on 81 x 81."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.goals import at_most
from benchmarks.lfo_shared import FRESH, TRAINING, Workshop, scored
from distlfm.instance import FloatArray, Instance
from distlfm.lfo import Operator
from distlfm.store import Store

INSTANCES, OTHERS = 1500, 128
FINE = 81


def run(quick: bool = False) -> dict[str, Any]:
    """The same draws are seen at both resolutions. Parameters are compared for the same fields without noise.

    With noise, four times as many observations say more, and estimates move by that too: this is told beside it.
    """
    shop = Workshop(quick)
    store = shop.generated("reaction_diffusion", "fields-train", INSTANCES, TRAINING)
    operator = shop.operator("reaction_diffusion", "fields", store)
    coarse = shop.generated("reaction_diffusion", "fields-coarse", OTHERS, FRESH)
    grid = [f"points={FINE}", f"places={FINE}"]
    fine = shop.generated("reaction_diffusion", "fields-fine", OTHERS, FRESH, grid)
    at_trained, at_fine = scored(operator, coarse.instances()), scored(operator, fine.instances())
    clean, noisy = changes(operator, fine, noise=False), changes(operator, fine, noise=True)
    told = {
        f"change of {name} with the resolution, mean": at_most(change, 0.02)
        for name, change in clean.items()
        if kind_of(operator, name) == "mechanism"
    }
    return {
        "figures": {
            "force Q² at 41 x 41 minus that at 81 x 81": at_most(at_trained["latent Q²"] - at_fine["latent Q²"], 0.02),
            **told,
        },
        "at 41 x 41": at_trained,
        "at 81 x 81": at_fine,
        "change of parameters, without noise": clean,
        "change of parameters, each second observation against all, with noise": noisy,
        "training": {key: operator.training[key] for key in ("seconds", "best", "coverage", "instances")},
    }


def kind_of(operator: Operator, name: str) -> str:
    return operator.schema.parameter_kinds[operator.schema.parameters.index(name)]


def changes(operator: Operator, store: Store, noise: bool) -> dict[str, float]:
    """Mean difference of each parameter's estimates from all and from each second point, over the mean estimate."""
    instances = store.instances()
    if not noise:
        solution = store.read("solution_mean")
        instances = [replace(one, values=solution[i].reshape(1, -1)) for i, one in enumerate(instances)]
    fine, coarse = estimates(operator, instances), estimates(operator, [thinned(one) for one in instances])
    found = np.abs(fine - coarse).mean(0) / np.abs(coarse).mean(0)
    return dict(zip(operator.schema.parameters, found.tolist(), strict=True))


def estimates(operator: Operator, instances: Sequence[Instance]) -> FloatArray:
    """Parameters [instances, K]."""
    answers = operator([one.blind() for one in instances])
    return np.array([[estimate.mean for estimate in answer.parameters] for answer in answers])


def thinned(one: Instance) -> Instance:
    """Each second point of a field on FINE x FINE points, in time and space."""
    assert one.positions is not None
    keep = np.arange(FINE * FINE).reshape(FINE, FINE)[::2, ::2].ravel()
    return replace(
        one,
        times=one.times[keep],
        positions=one.positions[keep],
        values=one.values[:, keep],
        mask=one.mask[:, keep],
        truth=None,
    )
