"""Whether an answer keeps what it claims: checked before a fit is called converged, whatever the method.

Draws must stand for a posterior (few large weights do not), the curve must be as near to the data as the noise that is
claimed, the start that the equation holds fast must be where the data are, and what is left over must have no shape. An
answer that fails a check is `unreliable`, with the reason and what to do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from distlfm.inference.findings.equation import not_linear
from distlfm.inference.findings.estimates import strain
from distlfm.inference.findings.innovations import Note, innovations, surprises
from distlfm.inference.findings.mirror import mirrored
from distlfm.inference.findings.predictive import drawn, excess, missed, replicated, scores
from distlfm.inference.findings.residuals import HELD_FAST, residuals, structure
from distlfm.inference.findings.values import doubtful_values
from distlfm.inference.findings.wander import wandering
from distlfm.inference.marginal import Marginal
from distlfm.inference.result import UNRELIABLE, FitResult
from distlfm.inference.series.forward import SolvedPosterior
from distlfm.instance import BoolArray, FloatArray

HEAVIEST = 1.0
"""Shape of the weights' tail at which their mean is infinite (Vehtari et al. 2024)."""

FEWEST = 10
"""Independent draws that a posterior must be worth."""

FAR = 5.0
"""Standard errors by which the mean squared residual, in units of the noise, may exceed one."""

OFF = 5.0
"""Deviations of the noise by which a value that the equation holds fast may lie beside it."""

EXCLUDED = 6.0
"""Deviations of its prior beyond which an unknown is where no value of the prior ever is."""

UNEVEN = 0.4
"""Moran's I of the residuals' sizes from which a series' bands are wrong. Noise whose deviation varies by 78 % of its
mean has it: bands of 95 % for a constant one then still hold 93 %, and 0.6 stands for noise that has no scale."""

LEAST_VALUES, MOST_DRAWS = 6, 256


def checked(result: FitResult) -> FitResult:
    """The result, `unreliable` with the reasons in its advice if it fails a check."""
    if not result.ok:
        return result
    result = replace(result, misfit=structure(result))
    doubts = [doubt for doubt in _doubts(result) if doubt not in result.advice]
    if not doubts:
        return result
    status = result.status if all(isinstance(one, Note) for one in doubts) else UNRELIABLE
    return replace(result, status=status, advice=" ".join(filter(None, [result.advice, *doubts])))


def _doubts(result: FitResult) -> Iterator[str]:
    yield from _of_draws(result)
    posterior, row = result.posterior, torch.tensor([result.row])
    model, unknowns = posterior.model, posterior.unknowns()
    middle = (unknowns.weights.unsqueeze(-1) * unknowns.proposals).sum(0)[row]
    if strain(model.space.free_names, middle[0], EXCLUDED):
        yield (
            "The data ask for what the priors exclude: the answer lies between both, and its bands know nothing of "
            "that. Check units, and widen the priors."
        )
    yield from doubtful_values(result.instance)
    if not _closed(result):
        yield from _of_solved(result, row)
    if isinstance(posterior, SolvedPosterior):
        yield from mirrored(result)
    if not model.likelihood.gaussian:
        return
    yield from _of_residuals(result)
    if _closed(result) and not model.is_field:
        yield from not_linear(result, middle)
    if (white := innovations(result)) is not None:
        yield from surprises(white, result)
        yield from wandering(result)
    misfit = result.misfit
    if misfit is None or misfit.overstated or not misfit.flagged:
        return
    wanders = model.likelihood.drift is not None  # bands are wide by the drift, not by the white noise
    if misfit.alike or misfit.in_space or (misfit.size_statistic > UNEVEN and not wanders):
        yield misfit.sentence()


def _closed(result: FitResult) -> bool:
    """Whether the force is integrated out in closed form, and not solved for."""
    return isinstance(getattr(result.posterior, "marginal", None), Marginal)


def _of_solved(result: FitResult, row: torch.Tensor) -> Iterator[str]:
    """What draws through the solver say."""
    likelihood = result.posterior.model.likelihood
    values, outputs, data = drawn(result.posterior, row)
    size = len(result.instance.times)
    made = None if likelihood.gaussian else replicated(likelihood, values, outputs)
    if int(data.mask.sum()) >= LEAST_VALUES:
        yield from missed(result, excess(likelihood, values, outputs, data, made))
    if made is not None:
        yield from surprises(scores(made, data)[None, :, :size], result, both_ways=False)
    elif (left := residuals(result)) is not None:
        white = np.full((len(result.output_names), size), np.nan)
        white[left.output, np.searchsorted(result.instance.times, left.times)] = left.values
        yield from surprises(white[None], result, both_ways=False)


def _of_draws(result: FitResult) -> Iterator[str]:
    count = len(result.posterior.unknowns().weights)
    if result.tail > HEAVIEST or result.effective_draws < min(FEWEST, count):
        yield (
            f"The draws of the parameters are worth {result.effective_draws:.0f} independent ones, and their weights "
            f"have a heavy tail (Pareto k {result.tail:.2f}): bands may be far too narrow. Give the parameters "
            "narrower priors, raise inference.posterior.stages, or set inference.restarts=4."
        )


def _of_residuals(result: FitResult) -> Iterator[str]:
    noise, seen = _noise(result)
    fitted, observed = result.at_data.outputs, result.posterior.observations.values[result.row].numpy()
    observed = observed[:, : noise.shape[-1]]
    held = seen & (fitted.sd**2 <= HELD_FAST * noise)
    off = np.abs(observed - fitted.mean) / np.sqrt(noise)
    if held.any() and off[held].max() > OFF:
        yield (
            f"The equation holds an output fast that was observed {off[held].max():.0f} deviations of the noise beside "
            "it: the start or the boundary is wrong. Let the start be learned (mechanism.initial=free), or correct it."
        )
    if not _closed(result):
        return
    free = seen & ~held
    square = (off**2 + fitted.sd**2 / noise)[free]
    if len(square) >= LEAST_VALUES and square.mean() > 1 + FAR * math.sqrt(2 / len(square)):
        yield (
            f"Curves drawn from the posterior miss the data by {math.sqrt(square.mean()):.1f} deviations of the noise: "
            "the draws do not describe the data, or the noise that is given is too small. Set inference.restarts=4, or "
            "likelihood.noise=both where variances are given."
        )


def _noise(result: FitResult) -> tuple[FloatArray, BoolArray]:
    """Noise variance of the data, averaged over the posterior, and what was observed, [P, T]."""
    size, posterior = len(result.instance.times), result.posterior
    data, unknowns = posterior.observations.rows(torch.tensor([result.row])), posterior.unknowns()
    weights, order = unknowns.weights[:, result.row].sort(descending=True)
    z = unknowns.proposals[order[:MOST_DRAWS], result.row]
    share = weights[:MOST_DRAWS] / weights[:MOST_DRAWS].sum()
    outputs = torch.zeros_like(data.values)
    outputs[0, :, :size] = torch.from_numpy(result.at_data.outputs.mean)
    with torch.no_grad():
        values = posterior.model.space.unpack(z)
        each = posterior.model.likelihood.total_variance(values, data, outputs)
    noise = (share[:, None, None] * each).sum(0)[:, :size]
    seen = data.mask[0, :, :size].numpy() & np.isfinite(result.at_data.outputs.mean)
    return noise.clamp_min(1e-300).numpy(), seen
