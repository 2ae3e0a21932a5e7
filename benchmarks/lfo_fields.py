"""The operator of reaction and diffusion, learned on 41 x 41 points and asked on 81 x 81."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.interpolate import RectBivariateSpline

from benchmarks.goals import at_most
from benchmarks.lfo_shared import FRESH, TRAINING, Workshop, scored
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.lfo import Operator

INSTANCES, OTHERS = 1500, 128
COARSE, FINE = 41, 81
SPLINED = ((81, 81), (57, 73), (41, 100))


def run(quick: bool = False) -> dict[str, Any]:
    """The same fields are seen at both resolutions, and the parameters found at both are compared.

    Of the same functions at both: the fields without noise, and noisy ones as splines through their 41 x 41 points,
    also on grids that share few points with the trained one. And of fields with noise at each of 81 x 81 points,
    against each second of these. An operator takes parameters from the trained points alone; how far its network would
    move by all of them, and how far by other noise at the trained ones, is told beside it.
    """
    shop = Workshop(quick)
    store = shop.generated("reaction_diffusion", "fields-train", INSTANCES, TRAINING)
    operator = shop.operator("reaction_diffusion", "fields", store)
    grid = [f"points={FINE}", f"places={FINE}"]
    store = shop.generated("reaction_diffusion", "fields-fine", OTHERS, FRESH, grid)
    fine = store.instances()
    coarse = [thinned(one) for one in fine]
    clean = [
        replace(one, values=values.reshape(1, -1))
        for one, values in zip(fine, store.read("solution_mean"), strict=True)
    ]
    at_trained, at_fine = scored(operator, coarse), scored(operator, fine)
    moved = {
        "without noise": changes(operator, [thinned(one) for one in clean], clean),
        **{
            f"of a noisy field at {n} x {m}": changes(operator, coarse, [splined(one, n, m) for one in coarse])
            for n, m in SPLINED
        },
        "with new noise": changes(operator, coarse, fine),
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
        "change by other noise at 41 x 41": changes(
            operator,
            coarse,
            [renoised(a, thinned(b).values, i) for i, (a, b) in enumerate(zip(coarse, clean, strict=True))],
        ),
        "of the network by all points, with new noise": by_all_points(operator, coarse, fine),
        "training": {key: operator.training[key] for key in ("seconds", "best", "coverage", "instances")},
    }


def kind_of(operator: Operator, name: str) -> str:
    return operator.schema.parameter_kinds[operator.schema.parameters.index(name)]


def changes(operator: Operator, coarse: Sequence[Instance], fine: Sequence[Instance]) -> dict[str, float]:
    """Mean difference of each parameter's estimates at two resolutions, over the mean estimate at the first."""
    first, second = estimates(operator, coarse), estimates(operator, fine)
    found = np.abs(second - first).mean(0) / np.abs(first).mean(0)
    return dict(zip(operator.schema.parameters, found.tolist(), strict=True))


def by_all_points(
    operator: Operator, coarse: Sequence[Instance], fine: Sequence[Instance]
) -> dict[str, dict[str, float]]:
    """The same, of a network that is given all points and not the trained ones alone, and in standard deviations."""
    some, every = (operator.model(*operator.arrays(each, operator.grid_of(each[0]))) for each in (coarse, fine))
    at = [operator.model.normal.physical(one.params) for one in (some, every)]
    moved = (at[1] - at[0]).abs().mean(0) / at[0].abs().mean(0)
    off = ((every.params - some.params).abs() / (0.5 * some.params_logvar).exp()).mean(0)
    names = operator.schema.parameters
    return {
        "mean": dict(zip(names, moved.tolist(), strict=True)),
        "in standard deviations": dict(zip(names, off.tolist(), strict=True)),
    }


def splined(one: Instance, times_wanted: int, places_wanted: int) -> Instance:
    """The cubic spline through a field on COARSE x COARSE points, on a finer grid."""
    assert one.positions is not None
    at = [np.linspace(axis.min(), axis.max(), COARSE) for axis in (one.times, one.positions[:, 0])]
    wanted = [np.linspace(axis[0], axis[-1], n) for axis, n in zip(at, (times_wanted, places_wanted), strict=True)]
    values = RectBivariateSpline(at[0], at[1], one.values.reshape(COARSE, COARSE))(wanted[0], wanted[1])
    times, places = (axis.ravel() for axis in np.meshgrid(*wanted, indexing="ij"))
    return Instance(one.id, one.outputs, times, values.reshape(1, -1), np.ones((1, len(times)), bool), places[:, None])


def estimates(operator: Operator, instances: Sequence[Instance]) -> FloatArray:
    """Parameters [instances, K]."""
    answers = operator([one.blind() for one in instances])
    return np.array([[estimate.mean for estimate in answer.estimates] for answer in answers])


def thinned(one: Instance) -> Instance:
    """Each second point of a field on FINE x FINE points, in time and space, also of the truth."""
    assert one.positions is not None
    keep = np.arange(FINE * FINE).reshape(FINE, FINE)[::2, ::2].ravel()
    truth = one.truth
    assert truth is not None
    assert truth.positions is not None
    assert truth.force is not None
    known = Truth(truth.times[keep], truth.force[:, keep], None, truth.positions[keep], truth.parameters)
    return replace(
        one,
        times=one.times[keep],
        positions=one.positions[keep],
        values=one.values[:, keep],
        mask=one.mask[:, keep],
        truth=known,
    )


def renoised(one: Instance, clean: FloatArray, seed: int) -> Instance:
    """A field with other noise of the same size."""
    noise = np.random.default_rng(seed).standard_normal(clean.shape)
    return replace(one, values=clean + noise * np.sqrt(np.mean((one.values - clean) ** 2)))
