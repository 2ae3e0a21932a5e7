"""The figures of a fleet, row by row: means and extremes, and the few rows that are worth showing.

What is kept of an instance is one number a figure; its row is kept only while it is among the worst, best or slowest.
"""

from __future__ import annotations

import heapq
import itertools
import math
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from distlfm.inference.estimates import Direction
from distlfm.inference.metrics import AVERAGED, LOW_IS_WORSE, Figures, figures
from distlfm.inference.result import FAILED, FitResult
from distlfm.instance import FloatArray

MAX_ROWS = 50
"""Fleets up to this size are listed whole."""

MAX_FAILURES = 1000
"""Failures that are told with their reason."""

NUM_WORST, NUM_BEST, NUM_SLOWEST = 25, 5, 5
SCORES = ("latent_q2", "output_q2")

Row = Mapping[str, Any]


def row_of(result: FitResult) -> Figures:
    """What is kept of an instance in a fleet: its figures, its advice, and what its data leave open."""
    return {**figures(result), **words_of(result)}


def words_of(result: FitResult) -> Figures:
    """The part of a row that is no score."""
    open_ones = [{"spread": one.spread, "parts": [list(part) for part in one.parts]} for one in result.undetermined]
    return {"method": result.method, "advice": result.advice, "undetermined": open_ones}


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
        self.first: list[Row] = []
        self.kept: dict[str, Row] = {}
        self.open: dict[str, list[float]] = {}
        self._columns = {name: array("d") for name in AVERAGED}
        self._errors: dict[str, list[float]] = {}
        self._order = itertools.count()
        self._worst = {score: _Extreme(NUM_WORST, _badness(score)) for score in SCORES}
        self._best = {score: _Extreme(NUM_BEST, _goodness(score)) for score in SCORES}
        self._slowest = _Extreme(NUM_SLOWEST, _slowness)
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
        if status in FAILED and len(self.failures) < MAX_FAILURES:
            self.failures.append({"id": str(row["id"]), "status": status, "reason": str(row.get("advice") or "")})
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
        return self.count - self.failed - self.statuses["converged"]

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
            return sorted(self.first, key=_badness(self.score), reverse=True)
        return self._worst[self.score].rows()

    def best(self) -> list[Row]:
        """The best rows of a large fleet, the best last."""
        return self._best[self.score].rows()[::-1]

    def slowest(self) -> list[Row]:
        """Those that took longest, the slowest first."""
        return self._slowest.rows()

    def told(self) -> dict[str, Any]:
        """What summaries of fits and of queries say alike: scores, what failed, and what could not be read."""
        mean, worst = self.overall()
        return {"mean": mean, "worst": worst, "failures": self.failures, "set_aside": self.set_aside}

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
        if key is None:
            return
        entry = (key, -place, row)
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, entry)
        elif entry[:2] > self._heap[0][:2]:
            heapq.heapreplace(self._heap, entry)

    def rows(self) -> list[Row]:
        """Largest key first."""
        return [row for _, _, row in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]


def _badness(score: str) -> Callable[[Row], tuple[float, ...]]:
    def key(row: Row) -> tuple[float, ...]:
        value = row.get(score)
        return float(row.get("status") in FAILED), math.inf if value is None or math.isnan(value) else -float(value)

    return key


def _goodness(score: str) -> Callable[[Row], tuple[float, ...] | None]:
    def key(row: Row) -> tuple[float, ...] | None:
        value = row.get(score)
        known = value is not None and math.isfinite(value) and row.get("status") not in FAILED
        return (float(value),) if known and value is not None else None

    return key


def _slowness(row: Row) -> tuple[float, ...] | None:
    value = row.get("seconds")
    return (float(value),) if value is not None and math.isfinite(value) else None
