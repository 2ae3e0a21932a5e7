"""Pages of an operator: of its training, of an evaluation, of the answers to a query, and of a sweep.

The page of a sweep says which settings were tried, what they gave, and how the figure changes with each of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from distlfm.inference.findings.scores import MAX_ROWS, Tally
from distlfm.instance import Instance
from distlfm.lfo import OperatorAnswer, OperatorSchema
from distlfm.report.operator_curves import plot_calibration, plot_learning, plot_resolutions, plot_scores
from distlfm.report.operator_plots import plot_answer
from distlfm.report.page import Cell, Provenance, Section, Table, embed, number, write_page
from distlfm.report.style import INFERRED, MEASURED, house, log_scale, new_figure, plain, set_ticks

_COLUMNS = {
    "latent_q2": "force Q²",
    "latent_correlation": "correlation",
    "latent_coverage_68": "force in 68 %",
    "latent_coverage_95": "force in 95 %",
    "parameter_mae_sum": "parameter error",
    "novelty": "unlike training",
    "seconds": "seconds",
}
_LEGEND = (
    "Q² is 1 for a perfect answer and 0 for a constant one; “in 68 %” is the share of true values inside the interval, "
    "which should be 0.68; parameter error is the sum of the mean absolute errors; “unlike training” is beyond 1 where "
    "the input is unlike the data that the operator learned from, and its answer is not to be trusted; – is not known."
)


@dataclass(frozen=True)
class Example:
    """An instance with its answer and figures. place: why it is shown. true: known values of parameters."""

    instance: Instance
    answer: OperatorAnswer
    row: Mapping[str, Any]
    place: str = ""
    true: dict[str, float] = field(default_factory=dict)
    figure: Figure | None = None
    """Its picture, if it is drawn already."""


@dataclass(frozen=True)
class Resolutions:
    """One instance answered on the trained grid and on a finer one, and what changed."""

    instance: Instance
    answers: tuple[OperatorAnswer, OperatorAnswer]
    figures: Mapping[str, Any]


@dataclass(frozen=True)
class Scores:
    """Figures on instances with a known truth: rows, the calibration curve, and everything else as summary.json."""

    tally: Tally
    rows: Sequence[Mapping[str, Any]]
    curve: Mapping[str, Any]
    overall: Mapping[str, Any]
    what: str


def query_page(
    path: str | Path,
    tally: Tally,
    rows: Sequence[Mapping[str, Any]],
    examples: Sequence[Example],
    schema: OperatorSchema,
    config_text: str,
    origin: Mapping[str, Any],
    notices: Sequence[str] = (),
) -> Path:
    """The page of a query's answers. notices: what to know of the operator before its answers are relied on."""
    warned = sum(row.get("warning") is not None for row in rows)
    text = f"{tally.count - tally.failed} of {tally.count} instances were answered. "
    if warned:
        text += f"{warned} of them {'is' if warned == 1 else 'are'} unlike the training data: not to be trusted."
    else:
        text += "None was found to be unlike the training data."
    text = "\n\n".join([text, *notices, _LEGEND])
    sections = [Section("Summary", text, tables=_score_tables(tally, rows)), *_aside(tally)]
    sections += [_example(one, schema) for one in examples]
    return write_page(path, "Answers of a latent force operator", sections, Provenance.of(config_text, origin))


def evaluation_page(
    path: str | Path,
    scores: Scores,
    examples: Sequence[Example],
    resolutions: Sequence[Resolutions],
    schema: OperatorSchema,
    config_text: str,
    origin: Mapping[str, Any],
) -> Path:
    """The page of an evaluation."""
    notices = scores.overall.get("notices", ())
    sections = [*_score_sections(scores, notices), *_resolution_sections(resolutions, schema)]
    sections += [_example(one, schema) for one in examples]
    return write_page(path, "A latent force operator, evaluated", sections, Provenance.of(config_text, origin))


def training_page(
    path: str | Path,
    lines: Sequence[Mapping[str, Any]],
    scores: Scores | None,
    examples: Sequence[Example],
    resolutions: Sequence[Resolutions],
    schema: OperatorSchema,
    config_text: str,
    origin: Mapping[str, Any],
    notices: Sequence[str] = (),
) -> Path:
    """The page of a training run. lines: those of metrics.jsonl. notices: as of a query's page."""
    sections = [_learning(lines, schema, notices)]
    sections += _score_sections(scores) if scores is not None else []
    sections += _resolution_sections(resolutions, schema)
    sections += [_example(one, schema) for one in examples]
    return write_page(path, "Training of a latent force operator", sections, Provenance.of(config_text, origin))


def _learning(lines: Sequence[Mapping[str, Any]], schema: OperatorSchema, notices: Sequence[str]) -> Section:
    epochs = [line for line in lines if math.isfinite(_standing(line))]
    grid = " × ".join(f"{dim.size} ({dim.name})" for dim in schema.dims)
    text = f"From {', '.join(schema.outputs)} on a grid of {grid} points to {', '.join(schema.forces)}"
    text += f" and {len(schema.parameters)} parameters of the equation of {schema.mechanism.get('kind', '?')}."
    tables = []
    if epochs:
        best = min(epochs, key=_standing)
        last = epochs[-1]
        keys = [key for key in best if key in last and isinstance(best[key], int | float)]
        rows: list[list[Cell]] = [[key.replace("_", " "), best[key], last[key]] for key in keys]
        tables.append(Table("The epoch that was kept, and the last.", ("figure", "best epoch", "last epoch"), rows))
    alt = f"Loss, validation Q² and learning rate over {max((int(x.get('step', 0)) for x in lines), default=0)} steps."
    figure = embed(plot_learning(lines), "How it learned: losses of steps and epochs, Q², learning rate.", alt)
    return Section("Training", "\n\n".join([text, *notices]), [figure], tables)


def _standing(line: Mapping[str, Any]) -> float:
    """By what the epoch was chosen, less is better; infinite where nothing was validated."""
    names = ("validation_standing", "validation_calibrated", "validation_loss")
    return next((float(line[name]) for name in names if line.get(name) is not None), math.inf)


def _score_sections(scores: Scores, notices: Sequence[str] = ()) -> list[Section]:
    text = "\n\n".join([scores.what, *notices, _LEGEND])
    alt = f"Histograms over {scores.tally.count} instances: Q² of the force, parameter errors, novelty."
    spread = embed(plot_scores(scores.rows), "How scores spread over instances; dashed lines are medians.", alt)
    tables = _score_tables(scores.tally, scores.rows)
    speed = scores.overall.get("speed")
    if speed:
        rows = [[key.replace("_", " "), float(value)] for key, value in speed.items() if value is not None]
        tables.append(Table("Time for answers.", ("what", "value"), rows))
    curve = scores.curve
    columns = [[number(x) for x in curve[name] or [None] * len(curve["levels"])] for name in ("force", "parameters")]
    shown = [[f"{100 * level:.0f} %", *origin] for level, *origin in zip(curve["levels"], *columns, strict=True)]
    table = Table("Share of the truth inside.", ("central interval", "force", "parameters"), shown)
    words = "Points above the diagonal mean intervals that are wider than need be, points below it too narrow ones."
    alt = "Share of the truth inside central intervals against their nominal share."
    honest = embed(plot_calibration(curve), "Calibration of the intervals.", alt)
    return [Section("Scores", text, [spread], tables), Section("Calibration", words, [honest], [table])]


def _score_tables(tally: Tally, rows: Sequence[Mapping[str, Any]]) -> list[Table]:
    order = sorted(rows, key=lambda row: (row.get("latent_q2") or 0.0, -(row.get("novelty") or 0.0)))
    caption = "Every instance, worst first." if len(rows) <= MAX_ROWS else f"The {MAX_ROWS} worst of {len(rows)}."
    return [*Table.over_all(tally, _COLUMNS), Table.by_instance(caption, order[:MAX_ROWS], _COLUMNS)]


def _resolution_sections(resolutions: Sequence[Resolutions], schema: OperatorSchema) -> list[Section]:
    if not resolutions:
        return []
    figures = []
    for one in resolutions:
        sizes = " and ".join("×".join(map(str, answer.shape)) for answer in one.answers)
        alt = f"Instance {one.instance.id}: the force on grids of {sizes} points."
        figures.append(embed(plot_resolutions(one.instance, one.answers, schema), f"Instance {one.instance.id}.", alt))
    names = list(resolutions[0].figures)
    rows = [[one.instance.id, *(number(one.figures[name]) for name in names)] for one in resolutions]
    table = Table("The same instances at both resolutions.", ("instance", *names), rows)
    text = "The operator was trained on the coarser grid, and asked on both without being trained again."
    return [Section("Super-resolution", text, figures, [table])]


def _aside(tally: Tally) -> list[Section]:
    rows: list[list[Cell]] = [[failure["id"], failure["reason"]] for failure in tally.failures[:MAX_ROWS]]
    rows += [["–", problem] for problem in tally.set_aside[:MAX_ROWS]]
    return [Section("Not answered", tables=[Table("Why not.", ("instance", "reason"), rows)])] if rows else []


def _example(one: Example, schema: OperatorSchema) -> Section:
    answer = one.answer
    title = f"Instance {answer.id}" + (f" ({one.place})" if one.place else "")
    score = f"{answer.novelty:.2f}, where 1 is the limit" if math.isfinite(answer.novelty) else "not known"
    text = f"Unlike the training data: {score}. {answer.warning or ''}"
    caption = "What was observed, and what the operator gives: force and parameters with their uncertainty."
    if one.instance.truth is not None:
        mark = "Dashed: the" if len(answer.dims) == 1 else "The"
        caption += f" {mark} truth was not seen by the operator."
    alt = f"Instance {answer.id}: {len(one.instance.outputs)} outputs, {', '.join(answer.forces)} with bands."
    table = Table.of_parameters("Parameters.", answer.estimates, one.true, schema.known_unit)
    figure = embed(one.figure or plot_answer(one.instance, answer, schema, one.true), caption, alt)
    return Section(title, text, [figure], [table] if table.rows else [])


MAX_KEYS = 6
"""Settings that have a panel of their own."""

COLUMNS = 3
WIDE_RANGE = 20.0
"""Positive values over a range of this factor have a logarithmic axis."""


RUNNING, STOPPED, FINISHED, FAILED = "running", "stopped", "finished", "failed"


@dataclass
class Trial:
    """One training of a sweep. name: of its folder. best: the best figure so far, of epoch `at`; None without any."""

    name: str
    values: dict[str, Any]
    status: str = RUNNING
    epochs: int = 0
    best: float | None = None
    at: int | None = None
    failure: str = ""

    @property
    def done(self) -> bool:
        return self.status != RUNNING


def ranked(trials: Sequence[Trial], mode: str) -> list[Trial]:
    """The best first; those without a figure last."""
    sign = 1 if mode == "min" else -1
    return sorted(trials, key=lambda one: math.inf if one.best is None else sign * one.best)


def tune_page(path: Path, metric: str, mode: str, trials: Sequence[Trial], provenance: Provenance) -> Path:
    """Write the page. trials: in the order in which they began; mode: whether the least or the most is best."""
    sections = [_trials(metric, mode, trials)]
    rows: list[list[Cell]] = [[one.name, one.failure] for one in trials if one.failure]
    if rows:
        sections.append(Section("Failed trials", tables=[Table("Why.", ("trial", "reason"), rows)]))
    return write_page(path, "Settings of a latent force operator, searched", sections, provenance)


def _trials(metric: str, mode: str, trials: Sequence[Trial]) -> Section:
    keys = list(trials[0].values)
    word = "least" if mode == "min" else "most"
    text = (
        f"{len(trials)} trainings were tried; the {word} {metric} is best. It is that of the best epoch on the "
        "validation split, by which the settings were chosen: expect a little worse on data that no trial saw. Trials "
        "that did badly were stopped early, so that figures of few epochs are not those of a whole training."
    )
    rows: list[list[Cell]] = [
        [one.name, one.status, one.epochs, one.best, *(one.values[key] for key in keys)] for one in ranked(trials, mode)
    ]
    table = Table("Every trial, the best first.", ("trial", "status", "epochs", metric, *keys), rows)
    if not any(one.best is not None for one in trials):
        return Section("Trials", text, tables=[table])
    alt = f"{metric} of each trial in the order of the trials, and against the values of {', '.join(keys[:MAX_KEYS])}."
    caption = f"{metric} as the search went on, with the best so far as a line; and against each setting."
    return Section("Trials", text, [embed(plot_trials(metric, mode, trials), caption, alt)], [table])


def plot_trials(metric: str, mode: str, trials: Sequence[Trial]) -> Figure:
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
        set_ticks(places[0], 4, integer=True)
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
