"""The operator of reaction and diffusion, learned on 41 x 41 points and asked on 81 x 81."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.interpolate import RectBivariateSpline

from benchmarks.goals import at_most
from benchmarks.lfo_shared import FRESH, TRAINING, Workshop, scored
from distlfm.instance import FloatArray, Instance
from distlfm.lfo import Operator

INSTANCES, OTHERS = 1500, 128
COARSE, FINE = 41, 81


def run(quick: bool = False) -> dict[str, Any]:
    """The same draws are seen at both resolutions, and the parameters found at both are compared.

    Of the same functions at both: the fields without noise, and noisy ones as splines through their 41 x 41 points. And
    of fields with noise at each of 81 x 81 points, against each second of these: there, four times as many observations
    say more, and estimates move by that too. How far in units of their own standard deviations is told beside it.
    """
    shop = Workshop(quick)
    store = shop.generated("reaction_diffusion", "fields-train", INSTANCES, TRAINING)
    operator = shop.operator("reaction_diffusion", "fields", store)
    coarse = shop.generated("reaction_diffusion", "fields-coarse", OTHERS, FRESH)
    grid = [f"points={FINE}", f"places={FINE}"]
    fine = shop.generated("reaction_diffusion", "fields-fine", OTHERS, FRESH, grid)
    at_trained, at_fine = scored(operator, coarse.instances()), scored(operator, fine.instances())
    solution = fine.read("solution_mean")
    clean = [replace(one, values=solution[i].reshape(1, -1)) for i, one in enumerate(fine.instances())]
    moved = {
        "without noise": changes(operator, [thinned(one) for one in clean], clean),
        "of a noisy field": changes(operator, coarse.instances(), [splined(one) for one in coarse.instances()]),
        "with new noise": changes(operator, [thinned(one) for one in fine.instances()], fine.instances()),
    }
    told = {
        f"change of {name} with the resolution, {what}, mean": at_most(moved[what][name], 0.02)
        for what in moved
        for name in operator.schema.parameters
        if kind_of(operator, name) == "mechanism"
    }
    return {
        "figures": {
            "force Q² at 41 x 41 minus that at 81 x 81": at_most(at_trained["latent Q²"] - at_fine["latent Q²"], 0.02),
            **told,
        },
        "at 41 x 41": at_trained,
        "at 81 x 81": at_fine,
        "change of parameters": moved,
        "change with new noise, in standard deviations": in_deviations(operator, fine.instances()),
        "training": {key: operator.training[key] for key in ("seconds", "best", "coverage", "instances")},
    }


def kind_of(operator: Operator, name: str) -> str:
    return operator.schema.parameter_kinds[operator.schema.parameters.index(name)]


def changes(operator: Operator, coarse: Sequence[Instance], fine: Sequence[Instance]) -> dict[str, float]:
    """Mean difference of each parameter's estimates at two resolutions, over the mean estimate at the first."""
    first, second = estimates(operator, coarse), estimates(operator, fine)
    found = np.abs(second - first).mean(0) / np.abs(first).mean(0)
    return dict(zip(operator.schema.parameters, found.tolist(), strict=True))


def in_deviations(operator: Operator, fine: Sequence[Instance]) -> dict[str, float]:
    """Mean difference of estimates from all and from each second point, in standard deviations of the latter."""
    coarse = [thinned(one) for one in fine]
    off = np.abs(estimates(operator, fine) - estimates(operator, coarse)) / estimates(operator, coarse, "sd")
    return dict(zip(operator.schema.parameters, off.mean(0).tolist(), strict=True))


def splined(one: Instance) -> Instance:
    """The cubic spline through a field on COARSE x COARSE points, at FINE x FINE points."""
    assert one.positions is not None
    at = [np.linspace(axis.min(), axis.max(), COARSE) for axis in (one.times, one.positions[:, 0])]
    wanted = [np.linspace(axis[0], axis[-1], FINE) for axis in at]
    values = RectBivariateSpline(at[0], at[1], one.values.reshape(COARSE, COARSE))(wanted[0], wanted[1])
    times, places = (axis.ravel() for axis in np.meshgrid(*wanted, indexing="ij"))
    return Instance(one.id, one.outputs, times, values.reshape(1, -1), np.ones((1, FINE**2), bool), places[:, None])


def estimates(operator: Operator, instances: Sequence[Instance], side: str = "mean") -> FloatArray:
    """Parameters [instances, K]."""
    answers = operator([one.blind() for one in instances])
    return np.array([[getattr(estimate, side) for estimate in answer.parameters] for answer in answers])


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
