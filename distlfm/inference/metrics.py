"""How good a fit is: Q², coverage and parameter errors, against the truth where it is known.

No figure here is ever seen by a fit. A figure whose truth is unknown is None.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from distlfm.inference.residuals import structure
from distlfm.inference.result import Band, FitResult, Prediction
from distlfm.instance import BoolArray, FloatArray

Figures = dict[str, Any]
AVERAGED = (
    "output_q2",
    "latent_q2",
    "latent_correlation",
    "latent_coverage_68",
    "latent_coverage_95",
    "output_coverage_68",
    "output_coverage_95",
    "parameter_mae_sum",
    "elbo",
    "seconds",
)
LOW_IS_WORSE = frozenset({"output_q2", "latent_q2", "latent_correlation", "elbo"})


def q2(predicted: FloatArray, true: FloatArray, mask: BoolArray | None = None) -> float:
    """1 − squared error / variance around the mean, of each row [..., n], averaged over rows; 1 is perfect."""
    rows_predicted, rows_true = np.atleast_2d(predicted), np.atleast_2d(true)
    seen = np.ones(rows_true.shape, bool) if mask is None else np.atleast_2d(mask)
    scores = []
    for guess, truth, here in zip(rows_predicted, rows_true, seen, strict=True):
        if here.sum() < 2:
            continue
        spread = ((truth[here] - truth[here].mean()) ** 2).sum()
        scores.append(1 - ((guess[here] - truth[here]) ** 2).sum() / max(spread, 1e-300))
    return float(np.mean(scores)) if scores else float("nan")


def coverage(band: Band, true: FloatArray, level: int, mask: BoolArray | None = None) -> float:
    """Share of `true`, in the shape of the band, within its central interval of `level` percent (68 or 95)."""
    lower, upper = getattr(band, f"lower{level}"), getattr(band, f"upper{level}")
    inside = (true >= lower) & (true <= upper)
    return float(inside.mean() if mask is None else inside[mask].mean())


def figures(result: FitResult) -> Figures:
    """All figures of one instance."""
    truth = result.instance.truth
    at_truth: Prediction | None = None
    if truth is not None and (truth.force is not None or truth.outputs is not None) and result.ok:
        at_truth = result.at_truth or result.predict(truth.times, truth.positions)
    found: Figures = {"id": result.id, "status": result.status, **dict.fromkeys(AVERAGED), "parameter_mae": {}}
    if result.ok:
        found.update(_output_figures(result, at_truth))
    if at_truth is not None and truth is not None and truth.force is not None:
        found["latent_q2"] = q2(at_truth.force.mean, truth.force)
        found["latent_correlation"] = _correlation(at_truth.force.mean, truth.force)
        for level in (68, 95):
            found[f"latent_coverage_{level}"] = coverage(at_truth.force, truth.force, level)
    if truth is not None and truth.parameters:
        errors = parameter_errors(result, truth.parameters)
        found["parameter_mae"] = errors
        # Kernel and noise have other units than the equation's parameters: they are listed, and not added.
        space = result.posterior.model.space
        own = [error for name, error in errors.items() if space[name].kind not in ("kernel", "noise")]
        found["parameter_mae_sum"] = float(sum(own)) if own else None
    misfit = structure(result) if result.ok else None
    found["residual_structure"] = None if misfit is None else misfit.flagged
    found["elbo"], found["seconds"] = result.bound, result.seconds
    return found


def _output_figures(result: FitResult, at_truth: Prediction | None) -> Figures:
    instance, truth = result.instance, result.instance.truth
    # Predictions have the mechanism's outputs in its order; an instance has its own, perhaps fewer.
    known = result.posterior.observations.outputs
    rows = [known.index(name) for name in instance.outputs]
    if at_truth is not None and truth is not None and truth.outputs is not None:
        here = np.isfinite(truth.outputs) & (True if truth.scored is None else truth.scored)
        if truth.measured:
            return _against_data(result, at_truth.outputs, truth.outputs, here, rows)
        band = Band(*(getattr(at_truth.outputs, name)[rows] for name in Band.__dataclass_fields__))
        found = {"output_q2": q2(band.mean, truth.outputs, here)}
        for level in (68, 95):
            found[f"output_coverage_{level}"] = coverage(band, truth.outputs, level, here)
        return found
    return _against_data(result, result.at_data.outputs, instance.values, instance.mask, rows)


def _against_data(result: FitResult, band: Band, values: FloatArray, mask: BoolArray, rows: list[int]) -> Figures:
    """Figures against measurements [P, n], whose noise widens the bands."""
    mean = band.mean[rows]
    found: Figures = {"output_q2": q2(mean, values, mask)}
    noise = _noise_sd(result, rows)
    if noise is not None and noise.shape[-1] in (1, values.shape[-1]):
        if result.relative_noise is not None:
            share = result.relative_noise[rows] if len(result.relative_noise) > 1 else result.relative_noise
            noise = np.sqrt(noise**2 + (share[:, None] * mean) ** 2)
        sd = np.sqrt(band.sd[rows] ** 2 + noise**2)
        off = np.abs(values - mean)[mask]
        for level, width in ((68, 0.9945), (95, 1.96)):
            found[f"output_coverage_{level}"] = float((off <= width * sd[mask]).mean())
    return found


def _noise_sd(result: FitResult, rows: list[int]) -> FloatArray | None:
    """Standard deviation of the measurement noise of the instance's outputs, broadcastable to [P, N]."""
    given, learned = result.instance.variance, result.noise_sd
    if learned is not None:
        learned = np.sqrt(learned**2 + result.posterior.model.likelihood.floor**2)
    if learned is not None and len(learned) > 1:
        learned = learned[rows]
    if given is not None and result.posterior.model.likelihood.noise != "learned":
        extra = 0.0 if learned is None else learned[:, None] ** 2
        return np.sqrt(given + extra)
    return None if learned is None else learned[:, None]


def _correlation(predicted: FloatArray, true: FloatArray) -> float:
    pairs = zip(np.atleast_2d(predicted), np.atleast_2d(true), strict=True)
    return float(np.mean([np.corrcoef(guess, truth)[0, 1] for guess, truth in pairs]))


def parameter_errors(result: FitResult, true: Mapping[str, FloatArray]) -> dict[str, float]:
    """Mean absolute error of each parameter whose truth is known, over its elements; known elements count as exact."""
    space = result.posterior.model.space
    errors: dict[str, float] = {}
    for name, values in true.items():
        estimates = [one for one in result.parameters if one.parameter == name]
        if not estimates:
            continue
        labels = space[name].labels
        found = dict(space[name].fixed)
        found.update({one.label or labels[0]: one.mean for one in estimates})
        if set(result.instance.outputs) <= set(labels):
            labels = result.instance.outputs
        wanted = np.ravel(values)
        if len(wanted) == len(estimates) < len(labels):  # a store keeps only those that are not known
            labels = tuple(one.label or space[name].labels[0] for one in estimates)
        if len(wanted) != len(labels):
            continue
        errors[name] = float(np.mean([abs(found[label] - x) for label, x in zip(labels, wanted, strict=True)]))
    return errors
