"""Whether a force that is as quick as the data come is an error of the sensor in disguise.

A flexible force can follow an error that wanders as well as the signal, and innovations are white then. What tells them
apart is the density of the data under a model that has both: where a slow force with such an error is more likely than
a quick force without, by far, the quick one's bands are those of the error.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from distlfm.inference.collapsed import Starts, best_of_starts
from distlfm.inference.model import Model
from distlfm.inference.optimise import OptimiserConfig, Status
from distlfm.inference.result import FitResult
from distlfm.inference.series.linear import MAX_NODES, LinearGaussian, choose_quadrature
from distlfm.mechanisms.priors import LogNormal

QUICK = 1.5
"""Gaps between times below which a force's lengthscale is looked at."""

LEAST_VALUES, MOST_VALUES = 20, 600

FAVOURED = 3.0
"""Logarithm of the odds, at the modes, by which an error that wanders must be the better explanation."""

SIZE, GAPS, SPREAD = 0.3, 3.0, 1.0
"""Of such an error, before data: its size as a share of the data's deviation, its time in gaps; and their spread."""

ROUGH = OptimiserConfig(iterations=60, rounds=2, gradient=1e-2, change=1e-5, distance=0.2)


def wandering(result: FitResult) -> Iterator[str]:
    """That the errors wander, in words, if that is by far the better explanation."""
    posterior, instance = result.posterior, result.instance
    model, seen = posterior.model, instance.mask
    counts = seen.sum(-1)
    usable = counts.min() >= LEAST_VALUES and counts.sum() <= MOST_VALUES
    if model.likelihood.drift is not None or len(seen) > len(result.force_names) or not usable:
        return
    gap = float(np.median(np.diff(instance.times)))
    lengths = [one.mean for one in result.estimates if one.parameter.endswith(".lengthscale")]
    if not lengths or min(lengths) > QUICK * gap:
        return
    gain = _gain(result, gap)
    if gain > FAVOURED:
        yield (
            "A slower force and an error of the sensor that wanders explain the data better by far (odds of "
            f"{math.exp(min(gain, 20)):.0f} to 1) than this force, which changes as quickly as the data come: its "
            "bands hold the error too. Set likelihood.drift={}, or a larger noise."
        )


def _gain(result: FitResult, gap: float) -> float:
    """By how much the log joint density at the mode is larger with an error that wanders."""
    old, row = result.posterior.model, torch.tensor([result.row])
    data = result.posterior.observations.rows(row)
    values = result.instance.values[result.instance.mask]
    size, time = LogNormal(SIZE * max(float(values.std()), 1e-300), SPREAD), LogNormal(GAPS * gap, SPREAD)
    options = old.likelihood.with_drift(size, time)
    model = Model(old.system, old.force, options, old.kernel)
    rule = choose_quadrature(model, data, model.linearity)
    if rule.num_nodes(data.times.shape[-1]) > MAX_NODES:
        return -math.inf
    marginal = LinearGaussian(model, data, model.linearity, rule)
    found = best_of_starts(marginal.negative, [0], model.space.num_free, ROUGH, Starts())
    return -math.inf if found.status[0] == Status.DIVERGED else -float(found.value[0]) - result.bound
