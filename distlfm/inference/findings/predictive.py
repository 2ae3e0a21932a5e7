"""Whether curves drawn from a posterior describe the data, by the likelihood itself: counts and normal noise alike.

The discrepancy is minus the log-likelihood of the data under a draw, compared with what data made by the same draw have
(Gelman, Meng & Stern 1996). For normal noise its law is known. Shapes: `S` draws, `P` outputs, `T` times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from scipy.special import ndtri
from torch import Tensor

from distlfm.inference.base import Posterior
from distlfm.inference.observations import Observations
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray
from distlfm.likelihoods import Likelihood
from distlfm.mechanisms.priors import Values

DRAWS, REPLICATES = 64, 12

FAR = 5.0
"""Deviations by which the discrepancy may exceed what is expected of it."""

LEAST_VALUES = 6


def drawn(posterior: Posterior, row: Tensor) -> tuple[Values, Tensor, Observations]:
    """Parameters, each [S, K], outputs [S, P, T] at the data, and the data of one instance."""
    data = posterior.observations.rows(row)
    with torch.no_grad():
        _, outputs, z = posterior.draw(row, data.times, min(DRAWS, len(posterior.unknowns().weights)), 0)
        return posterior.model.space.unpack(z[:, 0]), outputs[:, 0], data


def replicated(likelihood: Likelihood, values: Values, outputs: Tensor, seed: int = 0) -> Tensor:
    """Data [R, S, P, T] made by each draw, whose noise is not of a known law."""
    generator = np.random.default_rng(seed)
    each = [({name: one[s].numpy() for name, one in values.items()}, outputs[s].numpy()) for s in range(len(outputs))]
    made = [[likelihood.sample(own, curve, generator) for own, curve in each] for _ in range(REPLICATES)]
    return torch.from_numpy(np.array(made))


def excess(likelihood: Likelihood, values: Values, outputs: Tensor, data: Observations, made: Tensor | None) -> float:
    """By how many of its deviations the discrepancy of the data exceeds that of data the draws made; the median's.

    made: [R, S, P, T], of likelihoods that are not Gaussian.
    """
    here = -likelihood.log_prob(values, outputs, data)
    if made is None:
        level = data.values.abs() if data.level is None else data.level
        count = int(data.mask.sum())
        best = -likelihood.log_prob(values, outputs, replace(data, values=outputs, level=level))
        return float(2 * (here - best).median() - count) / math.sqrt(2 * count)
    other = torch.stack([-likelihood.log_prob(values, outputs, replace(data, values=one)) for one in made])
    scale = float((other - other.mean(0)).square().mean().sqrt())
    return float((here - other.mean(0)).median()) / max(scale, 1e-300)


def scores(made: Tensor, data: Observations) -> FloatArray:
    """Normal scores [P, T] of data among what was made of them, [R, S, P, T]; of equals the middle counts."""
    pool, own = made.flatten(0, 1), data.values[0]
    below = (pool < own).sum(0) + 0.5 * (pool == own).sum(0)
    found: FloatArray = ndtri(((below + 0.5) / (len(pool) + 1)).numpy())
    return found


def missed(result: FitResult, excess: float) -> Iterator[str]:
    """That draws miss the data by so many deviations, in words, if they do."""
    if excess <= FAR:
        return
    if result.posterior.model.likelihood.gaussian:
        yield (
            f"Curves drawn from the posterior miss the data, by {excess:.0f} deviations of what their noise allows: "
            "the draws do not describe the data, or the noise that is given is too small. Set inference.restarts=4, or "
            "likelihood.noise=both where variances are given."
        )
        return
    yield (
        f"Data scatter around the curves drawn from the posterior by more than the likelihood allows ({excess:.0f} "
        "deviations): set likelihood.kind=negative_binomial for counts, or inference.restarts=4 if curves are wrong."
    )
