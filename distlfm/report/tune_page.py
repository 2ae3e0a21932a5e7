"""The page of a sweep: which settings were tried, what they gave, and how the figure changes with each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distlfm.report.page import Cell, Provenance, Section, Table, embed, write_page
from distlfm.report.style import INFERRED, MEASURED, house, log_scale, new_figure, plain

MAX_KEYS = 6
"""Settings that have a panel of their own."""

COLUMNS = 3
WIDE_RANGE = 20.0
"""Positive values over a range of so many times have a logarithmic axis."""


@dataclass(frozen=True)
class Tried:
    """One trial. best: the best figure that it had, None if it gave none."""

    name: str
    status: str
    epochs: int
    best: float | None
    values: Mapping[str, Any]
    failure: str = ""


def tune_page(path: Path, metric: str, mode: str, trials: Sequence[Tried], provenance: Provenance) -> Path:
    """Write the page. trials: in the order in which they began; mode: whether the least or the most is best."""
    sections = [_trials(metric, mode, trials), *_failed(trials)]
    return write_page(path, "Settings of a latent force operator, searched", sections, provenance)


def _trials(metric: str, mode: str, trials: Sequence[Tried]) -> Section:
    sign = 1.0 if mode == "min" else -1.0
    order = sorted(trials, key=lambda one: np.inf if one.best is None else sign * one.best)
    keys = list(trials[0].values)
    word = "least" if mode == "min" else "most"
    text = (
        f"{len(trials)} trainings were tried; the {word} {metric} is best. It is that of the best epoch on the "
        "validation split, by which the settings were chosen: expect a little worse on data that no trial saw. Trials "
        "that did badly were stopped early, so that figures of few epochs are not those of a whole training."
    )
    rows: list[list[Cell]] = [
        [one.name, one.status, one.epochs, one.best, *(_cell(one.values[key]) for key in keys)] for one in order
    ]
    table = Table("Every trial, the best first.", ("trial", "status", "epochs", metric, *keys), rows)
    if not any(one.best is not None for one in trials):
        return Section("Trials", text, tables=[table])
    alt = f"{metric} of each trial in the order of the trials, and against the values of {', '.join(keys[:MAX_KEYS])}."
    caption = f"{metric} as the search went on, with the best so far as a line; and against each setting."
    return Section("Trials", text, [embed(plot_trials(metric, mode, trials), caption, alt)], [table])


def plot_trials(metric: str, mode: str, trials: Sequence[Tried]) -> Figure:
    """The figure by trial, and by each of the first settings."""
    known = [(number, one) for number, one in enumerate(trials, 1) if one.best is not None]
    figures = np.array([one.best for _, one in known], dtype=np.float64)
    keys = list(trials[0].values)[:MAX_KEYS]
    rows = -(-(len(keys) + 1) // COLUMNS)
    with house():
        figure = new_figure(1.9 * rows)
        places = figure.subplots(rows, COLUMNS, squeeze=False, sharey=True).ravel()
        numbers = [number for number, _ in known]
        places[0].plot(numbers, figures, "o", color=MEASURED, markersize=3)
        so_far = np.minimum.accumulate(figures) if mode == "min" else np.maximum.accumulate(figures)
        places[0].step(numbers, so_far, where="post", color=INFERRED, label="best so far")
        places[0].set_xlabel("trial")
        places[0].xaxis.set_major_locator(MaxNLocator(4, integer=True))
        places[0].legend()
        for axes, key in zip(places[1:], keys, strict=False):
            values = [one.values[key] for _, one in known]
            numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)
            axes.plot(
                values if numeric else [str(value) for value in values], figures, "o", color=MEASURED, markersize=3
            )
            axes.set_xlabel(plain(key))
            if numeric and min(values) > 0 and max(values) > WIDE_RANGE * min(values):
                log_scale(axes, float(min(values)), float(max(values)))
        for axes in places[len(keys) + 1 :]:
            axes.remove()
        for row in range(rows):
            places[row * COLUMNS].set_ylabel(plain(metric))
    return figure


def _failed(trials: Sequence[Tried]) -> list[Section]:
    rows: list[list[Cell]] = [[one.name, one.failure] for one in trials if one.failure]
    return [Section("Failed trials", tables=[Table("Why.", ("trial", "reason"), rows)])] if rows else []


def _cell(value: Any) -> Cell:
    return value if isinstance(value, str | float | int) and not isinstance(value, bool) else str(value)
