"""Score the answers of an operator: the figures of a fit, by the same names, and how honest the intervals are.

Where a fit stands for the truth, bands are compared with draws from its posterior (`DrawnTruths`), made point by point
as for the calibration. An operator comes nearer to a fit's mean than the truth is to either, so bands that hold the
truth as often as they promise hold the means of fits far more often.

Shapes: `L` forces, `K` parameters, `n` points at which the truth is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from scipy.stats import norm

from distlfm.answer import Band
from distlfm.inference.findings.scores import AVERAGED, Figures, coverage, q2
from distlfm.instance import BoolArray, FloatArray, Instance, Truth
from distlfm.lfo import Operator, OperatorAnswer, OperatorSchema
from distlfm.lfo.calibrate import SEED
from distlfm.lfo.grid import joined_points
from distlfm.store import Store
from distlfm.store.block import named_parameters

ANSWERED, UNLIKE = "answered", "unlike_training"
"""Statuses of answers: those to trust as far as their intervals go, and those that come with a warning."""

LEVELS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.68, 0.7, 0.8, 0.9, 0.95)
"""Central intervals whose coverage is looked at."""

_WIDTHS = norm.ppf(0.5 + np.array(LEVELS)[:, None] / 2)
_SHARE = np.clip((np.array(LEVELS)[:, None] - 0.68) / (0.95 - 0.68), 0.0, 1.0)
_NORMAL68, _NORMAL95 = norm.ppf(0.84), norm.ppf(0.975)

EDGE = 1e-9
"""As a share of a dimension's length: the truth this close to the domain is inside of it."""


def row_of(
    answer: OperatorAnswer, instance: Instance, schema: OperatorSchema, seconds: float, drawn: Instance | None = None
) -> Figures:
    """What is known of one answer. Figures are those of a fit; what an operator does not give, or no truth tells, is
    None: it predicts no outputs and has no bound.

    drawn: the instance with a draw from its posterior for the truth, where that is a fit's mean: bands are held against
    it.
    """
    status = ANSWERED if answer.warning is None else UNLIKE
    row: Figures = {"id": answer.id, "status": status, **dict.fromkeys(AVERAGED), "parameter_mae": {}}
    truth = instance.truth
    compared = at_truth(answer, truth)
    if compared is not None:
        band, true, here = compared
        row["latent_q2"] = q2(band.mean, true, here)
        row["latent_correlation"] = _correlation(band.mean, true, here)
        held = compared if drawn is None else at_truth(answer, drawn.truth) or compared
        for level in (68, 95):
            row[f"latent_coverage_{level}"] = coverage(held[0], held[1], level, held[2])
    if truth is not None and truth.parameters:
        errors = parameter_errors(answer, instance, schema)
        row["parameter_mae"] = errors
        kinds = {_base(name): kind for name, kind in zip(schema.parameters, schema.parameter_kinds, strict=True)}
        # Kernel and noise have other units than the equation's parameters: they are listed, and not added.
        own = [error for name, error in errors.items() if kinds.get(name, "mechanism") not in ("kernel", "noise")]
        row["parameter_mae_sum"] = float(sum(own)) if own else None
    novelty = answer.novelty if np.isfinite(answer.novelty) else None
    row["seconds"], row["novelty"], row["warning"] = seconds, novelty, answer.warning
    return row


def failed_answer(name: str, reason: str) -> Figures:
    """The row of an instance that the operator cannot take."""
    nothing: Figures = {**dict.fromkeys(AVERAGED), "parameter_mae": {}, "novelty": None, "warning": None}
    return {"id": name, "status": "failed", **nothing, "advice": reason, "undetermined": []}


def at_truth(answer: OperatorAnswer, truth: Truth | None) -> tuple[Band, FloatArray, BoolArray] | None:
    """The answer where the truth is: bands [L, n], the true force [L, n], and where both are known [L, n]."""
    if truth is None or truth.force is None or len(truth.force) != len(answer.forces):
        return None
    points = joined_points(truth.times, truth.positions)
    if points.shape[1] != len(answer.axes):
        return None
    low, high = (np.array([axis[i] for axis in answer.axes]) for i in (0, -1))
    margin = EDGE * (high - low)
    inside = ((points >= low - margin) & (points <= high + margin)).all(-1)
    here = inside & np.isfinite(truth.force)
    if not here.any():
        return None
    if points.shape == answer.points.shape and (np.abs(points - answer.points) <= margin).all():
        band = answer.force
    else:
        band = Band(**answer.at(truth.times, truth.positions))
    return band, np.where(here, truth.force, 0.0), here


def true_elements(instance: Instance, schema: OperatorSchema) -> dict[str, float]:
    """The true value of every element of a parameter, by its whole name (`decay[p21]`), where known."""
    truth = instance.truth
    found: dict[str, float] = {}
    for name, values in ({} if truth is None else truth.parameters).items():
        wanted = np.ravel(values).astype(np.float64).tolist()
        fitting = (elements for elements in _candidates(name, instance, schema) if len(elements) == len(wanted))
        found |= dict(zip(next(fitting, []), wanted, strict=False))
    return {name: value for name, value in found.items() if np.isfinite(value)}


def parameter_errors(answer: OperatorAnswer, instance: Instance, schema: OperatorSchema) -> dict[str, float]:
    """Mean absolute error of each parameter whose truth is known, over its elements; known elements count too."""
    given = {**schema.fixed, **{one.name: one.mean for one in answer.estimates}}
    learned = {_base(one.name) for one in answer.estimates}
    errors: dict[str, list[float]] = {}
    for element, true in true_elements(instance, schema).items():
        if element in given and _base(element) in learned:
            errors.setdefault(_base(element), []).append(abs(given[element] - true))
    return {name: float(np.mean(of_name)) for name, of_name in errors.items()}


@dataclass
class CoverageCounts:
    """How often the truth is inside central intervals of each level; add answers one by one."""

    force: FloatArray = field(default_factory=lambda: np.zeros(len(LEVELS)))
    parameters: FloatArray = field(default_factory=lambda: np.zeros(len(LEVELS)))
    num_force: int = 0
    num_parameters: int = 0

    def add(self, operator: Operator, answer: OperatorAnswer, instance: Instance) -> None:
        compared = at_truth(answer, instance.truth)
        if compared is not None:
            band, true, here = compared
            halves = [(getattr(band, f"upper{k}") - getattr(band, f"lower{k}")) / 2 for k in (68, 95)]
            self.force += _inside((true - band.mean)[here], halves[0][here], halves[1][here])
            self.num_force += int(here.sum())
        off, *halves = parameter_scores(operator, answer, instance)
        known = np.isfinite(off)
        self.parameters += _inside(off[known], halves[0][known], halves[1][known])
        self.num_parameters += int(known.sum())

    def curve(self) -> dict[str, Any]:
        """levels, and the shares of the truth inside; None where no truth is known."""
        force = (self.force / self.num_force).tolist() if self.num_force else None
        parameters = (self.parameters / self.num_parameters).tolist() if self.num_parameters else None
        return {"levels": list(LEVELS), "force": force, "parameters": parameters}


def parameter_scores(
    operator: Operator, answer: OperatorAnswer, instance: Instance
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Truth − estimate, and half the intervals of 68 and 95 %, each [K], in the space in which parameters are learned.

    NaN where no truth is known.
    """
    true = true_elements(instance, operator.schema)
    sides = ("mean", "lower68", "upper68", "lower95", "upper95")
    rows = [[true.get(one.name, 1.0), *(getattr(one, side) for side in sides)] for one in answer.estimates]
    natural = torch.tensor(rows, dtype=torch.float32).reshape(-1, 1 + len(sides)).T
    true_z, mean, low68, high68, low95, high95 = operator.model.normal.standardised(natural).double().numpy()
    known = np.array([one.name in true for one in answer.estimates], bool)
    return np.where(known, true_z - mean, np.nan), (high68 - low68) / 2, (high95 - low95) / 2


def _inside(off: FloatArray, half68: FloatArray, half95: FloatArray) -> FloatArray:
    """How many errors are inside the interval of each level; between and below the two that are given, normal ones."""
    unit = (1 - _SHARE) * half68 / _NORMAL68 + _SHARE * half95 / _NORMAL95
    counts: FloatArray = (np.abs(off) <= _WIDTHS * unit * (1 + EDGE)).sum(-1).astype(np.float64)
    return counts


def _correlation(predicted: FloatArray, true: FloatArray, here: BoolArray) -> float:
    pairs = [
        np.corrcoef(guess[seen], truth[seen])[0, 1]
        for guess, truth, seen in zip(predicted, true, here, strict=True)
        if seen.sum() > 1 and np.ptp(truth[seen]) > 0 and np.ptp(guess[seen]) > 0
    ]
    return float(np.mean(pairs)) if pairs else float("nan")


def _base(element: str) -> str:
    return element.partition("[")[0]


def _candidates(name: str, instance: Instance, schema: OperatorSchema) -> list[list[str]]:
    """Which elements the true values of a parameter may be, the likeliest first."""
    kept = [element for element in (*schema.parameters, *schema.fixed) if _base(element) == name]
    learned = [element for element in kept if element in schema.parameters]
    labelled = [f"{name}[{output}]" for output in schema.outputs]
    if kept and set(kept) <= set(labelled):
        own = [f"{name}[{output}]" for output in instance.outputs]
        return [own, [element for element in labelled if element in kept], learned]
    return [kept, learned]


def novelty_of(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Share of answers with a warning, and quantiles of the score."""
    scores = np.array([row["novelty"] for row in rows if row.get("novelty") is not None], dtype=np.float64)
    warned = sum(row.get("warning") is not None for row in rows)
    quantiles = np.quantile(scores, (0.5, 0.95, 1.0)).tolist() if len(scores) else [None] * 3
    share = warned / len(scores) if len(scores) else None
    return {"warned": warned, "share": share, **dict(zip(("median", "quantile_95", "highest"), quantiles, strict=True))}


class DrawnTruths:
    """The instances of a store of fits, with a draw from each one's posterior for the truth."""

    def __init__(self, operator: Operator, store: Store) -> None:
        self.operator, self.store = operator, store
        self._row = {str(name): row for row, name in enumerate(store.read("id"))}
        self._held: dict[tuple[str, int], FloatArray] = {}

    def of(self, instance: Instance) -> Instance:
        """The same draw of the same instance, whatever else is looked at."""
        truth, row = instance.truth, self._row[instance.id]
        if truth is None or truth.force is None:
            return instance
        random = np.random.default_rng([SEED, row])
        spread = self._read("force_var", row).reshape(len(self.store.spec.forces), len(self._times(row)), -1)
        spread = spread[:, np.isfinite(self._times(row))].reshape(truth.force.shape)
        force = truth.force + np.sqrt(np.nan_to_num(spread).clip(0.0)) * random.standard_normal(truth.force.shape)
        return replace(instance, truth=replace(truth, force=force, parameters=self._parameters(row, random)))

    def _parameters(self, row: int, random: np.random.Generator) -> dict[str, FloatArray]:
        """Those that are learned are drawn where they are learned, as some are by their logarithm."""
        spec, normal = self.store.spec, self.operator.model.normal
        mean, variance = (self._read(name, row) for name in ("params_mean", "params_var"))
        names = [name for name in self.operator.schema.parameters if name in spec.parameters]
        at = [spec.parameters.index(name) for name in names]
        learned = [self.operator.schema.parameters.index(name) for name in names]
        every = torch.full((2, 1, len(self.operator.schema.parameters)), torch.nan)
        every[:, 0, learned] = torch.from_numpy(np.stack([mean[at], variance[at]])).to(every)
        sd = normal.standardised_variance(every[0], every[1]).sqrt()
        noise = torch.from_numpy(random.standard_normal(sd.shape)).to(sd)
        drawn = normal.physical(normal.standardised(every[0]) + sd * noise)[0, learned]
        values = mean.copy()
        values[at] = np.where(variance[at] > 0, drawn.double().numpy(), mean[at])
        return named_parameters(spec, values)

    def _times(self, row: int) -> FloatArray:
        return self._read("time", row) if self.store.spec.times is None else np.array(self.store.spec.times)

    def _read(self, name: str, row: int) -> FloatArray:
        block, place = divmod(row, self.store.spec.block)
        if (name, block) not in self._held:
            rows = self.store.block_range(block)
            self._held = {key: array for key, array in self._held.items() if key[1] == block}
            self._held[name, block] = np.asarray(self.store.read(name, rows.start, rows.stop), dtype=np.float64)
        values: FloatArray = self._held[name, block][place]
        return values
