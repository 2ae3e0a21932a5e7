"""How good fits are: Q², coverage and parameter errors of one, against the truth where it is known, and of a fleet.

No figure here is ever seen by a fit. A figure whose truth is unknown is None. `Tally` takes the figures of a fleet row
by row: means and extremes, and the few rows that are worth showing. What it keeps of an instance is one number per
figure; its row is kept only while it is among the worst, best or slowest.
"""

from __future__ import annotations

import heapq
import itertools
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np

from distlfm.answer import Band
from distlfm.inference.findings.estimates import Direction
from distlfm.inference.findings.residuals import structure
from distlfm.inference.result import UNRELIABLE, FitResult, Prediction
from distlfm.instance import BoolArray, FloatArray
from distlfm.store.layout import FAILED

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
    noise = _deviation(result, mean, rows)
    if noise is not None:
        sd = np.sqrt(band.sd[rows] ** 2 + noise**2)
        off = np.abs(values - mean)[mask]
        for level, width in ((68, 0.9945), (95, 1.96)):
            found[f"output_coverage_{level}"] = float((off <= width * sd[mask]).mean())
    return found


def _deviation(result: FitResult, mean: FloatArray, rows: list[int]) -> FloatArray | None:
    """Standard deviation of measurements around outputs [P, N], broadcastable to them; None where it is not known."""
    likelihood, given = result.posterior.model.likelihood, result.instance.variance
    if given is not None and likelihood.takes_variances and given.shape[-1] not in (1, mean.shape[-1]):
        return None
    drift = np.array([one.mean for one in result.estimates if one.parameter == "drift"] or [0.0])
    own = {name: one[rows] if len(one) > 1 else one for name, one in {**result.noise, "drift": drift}.items()}
    return likelihood.deviation(own, mean, given)


def _correlation(predicted: FloatArray, true: FloatArray) -> float:
    pairs = zip(np.atleast_2d(predicted), np.atleast_2d(true), strict=True)
    return float(np.mean([np.corrcoef(guess, truth)[0, 1] for guess, truth in pairs]))


def parameter_errors(result: FitResult, true: Mapping[str, FloatArray]) -> dict[str, float]:
    """Mean absolute error of each parameter whose truth is known, over its elements; known elements count as exact."""
    space = result.posterior.model.space
    errors: dict[str, float] = {}
    for name, values in true.items():
        estimates = [one for one in result.estimates if one.parameter == name]
        if not estimates:
            continue
        labels = space[name].labels
        found = {**space[name].fixed, **{one.label or labels[0]: one.mean for one in estimates}}
        if set(result.instance.outputs) <= set(labels):
            labels = result.instance.outputs
        wanted = np.ravel(values)
        if len(wanted) == len(estimates) < len(labels):  # a store keeps only those that are not known
            labels = tuple(one.label or space[name].labels[0] for one in estimates)
        if len(wanted) != len(labels):
            continue
        errors[name] = float(np.mean([abs(found[label] - x) for label, x in zip(labels, wanted, strict=True)]))
    return errors


MAX_ROWS = 50
"""Fleets up to this size are listed whole."""

MAX_FAILURES = 1000
"""Failures that are reported with their reason."""

NUM_WORST, NUM_BEST, NUM_SLOWEST = 25, 5, 5
SCORES = ("latent_q2", "output_q2")

Row = Mapping[str, Any]


def row_of(result: FitResult) -> Figures:
    """What is kept of an instance in a fleet: its figures, its advice, and what its data leave open."""
    return {**figures(result), **words_of(result)}


def words_of(result: FitResult) -> Figures:
    """The part of a row that is not a score."""
    open_ones = [{"spread": one.spread, "parts": [list(part) for part in one.parts]} for one in result.undetermined]
    start = result.instance.metadata.get("window_start")
    cut = {} if start is None else {"window_start": float(start)}
    return {"method": result.method, "advice": result.advice, "undetermined": open_ones, **cut}


def failed_row(name: str, reason: str) -> Figures:
    """The row of an instance that could not be fitted at all."""
    nothing = dict.fromkeys(AVERAGED)
    return {"id": name, "status": "failed", **nothing, "parameter_mae": {}, "advice": reason, "undetermined": []}


def figures_of(row: Row) -> Figures:
    """A row as a summary lists it."""
    return {key: value for key, value in row.items() if key not in ("undetermined", "kept", "method", "advice")}


def directions_of(row: Row) -> tuple[Direction, ...]:
    """What the data of a row's instance leave open."""
    return tuple(
        Direction(one["spread"], tuple((str(name), float(weight)) for name, weight in one["parts"]))
        for one in row.get("undetermined") or ()
    )


class Tally:
    """Add rows one by one; ask at any time. set_aside: sentences on data that were never fitted."""

    def __init__(self, rows: Iterable[Row] = (), set_aside: Iterable[str] = ()) -> None:
        self.set_aside = list(set_aside)
        self.statuses: Counter[str] = Counter()
        self.troubled: list[Row] = []
        self.num_troubled = 0
        self.failures: list[dict[str, str]] = []
        self.doubted: list[dict[str, str]] = []
        self.first: list[Row] = []
        self.kept: dict[str, Row] = {}
        self.open: dict[str, list[float]] = {}
        self._columns = {name: array("d") for name in AVERAGED}
        self._errors: dict[str, list[float]] = {}
        self._order = itertools.count()
        self._worst = {score: _Extreme(NUM_WORST, partial(_badness, score)) for score in SCORES}
        self._best = {score: _Extreme(NUM_BEST, partial(_height, score)) for score in SCORES}
        self._slowest = _Extreme(NUM_SLOWEST, partial(_height, "seconds"))
        for row in rows:
            self.add(row)

    def add(self, row: Row) -> None:
        """Take one more instance in."""
        place = next(self._order)
        status = str(row.get("status") or "unknown")
        self.statuses[status] += 1
        for name, column in self._columns.items():
            value = row.get(name)
            column.append(math.nan if value is None else float(value))
        for name, error in (row.get("parameter_mae") or {}).items():
            entry = self._errors.setdefault(name, [0.0, 0.0, -math.inf])
            entry[0], entry[1], entry[2] = entry[0] + 1, entry[1] + error, max(entry[2], error)
        if place < MAX_ROWS:
            self.first.append(row)
        if status != "converged" or row.get("advice"):
            self.num_troubled += 1
            if len(self.troubled) < MAX_ROWS:
                self.troubled.append(row)
        told = {"id": str(row["id"]), "status": status, "reason": str(row.get("advice") or "")}
        if status in FAILED and len(self.failures) < MAX_FAILURES:
            self.failures.append(told)
        if status == UNRELIABLE and len(self.doubted) < MAX_FAILURES:
            self.doubted.append(told)
        if row.get("kept"):
            self.kept[str(row["id"])] = row
        for direction in directions_of(row):
            name = " with ".join(sorted(part for part, _ in direction.parts)) or "many parameters"
            found = self.open.setdefault(name, [0.0, 0.0])
            found[0], found[1] = found[0] + 1, found[1] + direction.spread
        for extreme in (*self._worst.values(), *self._best.values(), self._slowest):
            extreme.offer(row, place)

    @property
    def count(self) -> int:
        return self.statuses.total()

    @property
    def failed(self) -> int:
        return sum(self.statuses[status] for status in FAILED)

    @property
    def unsettled(self) -> int:
        return self.count - self.failed - self.statuses["converged"] - self.unreliable

    @property
    def unreliable(self) -> int:
        return self.statuses[UNRELIABLE]

    @property
    def score(self) -> str:
        """What rows are ranked by: the force's score where it is known for all that were fitted."""
        known = int(np.isfinite(self.column("latent_q2")).sum())
        return "latent_q2" if known and known == self.count - self.failed else "output_q2"

    def column(self, name: str) -> FloatArray:
        """One figure of all instances [N], NaN where it is not known."""
        return np.array(self._columns[name], dtype=np.float64)

    def worst(self) -> list[Row]:
        """Rows worst first, failed ones before all: every one of a small fleet, `NUM_WORST` of a large one."""
        if self.count <= MAX_ROWS:
            return sorted(self.first, key=partial(_badness, self.score), reverse=True)
        return self._worst[self.score].rows()

    def best(self) -> list[Row]:
        """The best rows of a large fleet, the best last."""
        return self._best[self.score].rows()[::-1]

    def slowest(self) -> list[Row]:
        """Those that took longest, the slowest first."""
        return self._slowest.rows()

    def to_summary(self) -> dict[str, Any]:
        """What summaries of fits and of queries say alike: scores, what failed, and what could not be read."""
        mean, worst = self.overall()
        told = {"statuses": dict(self.statuses), "failures": self.failures, "unreliable": self.doubted}
        return {"mean": mean, "worst": worst, **told, "set_aside": self.set_aside}

    def overall(self) -> tuple[Figures, Figures]:
        """Mean and worst of every figure over instances; None where no instance has it."""
        mean: Figures = {}
        worst: Figures = {}
        for name in AVERAGED:
            column = self.column(name)
            known = column[np.isfinite(column)]
            mean[name] = float(known.mean()) if len(known) else None
            if not len(known):
                worst[name] = None
            elif "coverage" in name:
                level = float(name.rsplit("_", 1)[1]) / 100
                worst[name] = float(known[np.argmax(np.abs(known - level))])
            else:
                worst[name] = float(known.min() if name in LOW_IS_WORSE else known.max())
        names = sorted(self._errors)
        mean["parameter_mae"] = {name: self._errors[name][1] / self._errors[name][0] for name in names}
        worst["parameter_mae"] = {name: self._errors[name][2] for name in names}
        return mean, worst


class _Extreme:
    """The `size` rows with the largest keys; the earlier of equal ones."""

    def __init__(self, size: int, key: Callable[[Row], tuple[float, ...] | None]) -> None:
        self._size, self._key = size, key
        self._heap: list[tuple[tuple[float, ...], int, Row]] = []

    def offer(self, row: Row, place: int) -> None:
        key = self._key(row)
        if key is not None:
            heapq.heappush(self._heap, (key, -place, row))
        if len(self._heap) > self._size:
            heapq.heappop(self._heap)

    def rows(self) -> list[Row]:
        """Largest key first."""
        return [row for _, _, row in sorted(self._heap, reverse=True)]


def _badness(score: str, row: Row) -> tuple[float, ...]:
    value = row.get(score)
    return float(row.get("status") in FAILED), math.inf if value is None or math.isnan(value) else -float(value)


def _height(name: str, row: Row) -> tuple[float, ...] | None:
    """A figure of a row that has it; one that failed has no score."""
    value = row.get(name)
    return (float(value),) if value is not None and math.isfinite(value) else None
