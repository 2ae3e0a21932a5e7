"""Figures of an operator as a whole: how it learned, how its scores spread, how honest its intervals are, and how its
answers change with the resolution of what it is given.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distlfm.instance import FloatArray, Instance
from distlfm.lfo import OperatorAnswer, OperatorSchema
from distlfm.report.operator_plots import band_of, true_curve, true_map
from distlfm.report.panels import draw_band
from distlfm.report.style import (
    BAND68,
    DASHED,
    INFERRED,
    LOWEST_Q2,
    MEASURED,
    QUIET,
    TRUTH,
    handles,
    house,
    new_figure,
    q2_bins,
    quantity,
    say_instead,
)

Line = Mapping[str, Any]


def plot_learning(lines: Sequence[Line]) -> Figure:
    """Losses, the force's Q² on the validation split, and the learning rate, against the step.

    lines: as in metrics.jsonl; those of steps have `loss` and `lr`, those of epochs `train_total` and `validation_…`.
    """
    with house():
        figure = new_figure(2.2)
        loss, score, rate = figure.subplots(1, 3)
        _draw_line(loss, lines, "loss", BAND68, "step")
        _draw_line(loss, lines, "train_total", MEASURED, "training, mean of an epoch")
        _draw_line(loss, lines, "validation_loss", INFERRED, "validation")
        loss.set_ylabel("loss")
        if loss.get_legend_handles_labels()[0]:
            loss.legend(fontsize=6.5)
        _draw_line(score, lines, "validation_q2", INFERRED, "validation")
        score.set_ylabel("Q² of the force, validation")
        if score.lines:
            score.set_ylim(max(LOWEST_Q2, score.get_ylim()[0]), 1.0)
        _draw_line(rate, lines, "lr", MEASURED, "learning rate")
        rate.set_ylabel("learning rate")
        for axes in (loss, score, rate):
            axes.set_xlabel("step")
            axes.xaxis.set_major_locator(MaxNLocator(4, integer=True))
            if not axes.lines:
                say_instead(axes, "not recorded")
    return figure


def plot_scores(rows: Sequence[Line]) -> Figure:
    """How force Q², parameter errors and the score of novelty spread over instances."""
    with house():
        figure = new_figure(2.1)
        q2, error, novelty = figure.subplots(1, 3)
        values = _known(rows, "latent_q2")
        _histogram(q2, values, q2_bins(values), "Q² of the latent force")
        values = _known(rows, "parameter_mae_sum")
        _histogram(error, values, np.linspace(0.0, _top(values), 21), "sum of the parameters' errors")
        values = _known(rows, "novelty")
        _histogram(novelty, values, np.linspace(0.0, max(1.25, _top(values)), 21), "unlike the training data")
        novelty.axvline(1.0, color=TRUTH, linewidth=1.0, label="limit")
        novelty.legend(fontsize=6.5)
    return figure


def plot_calibration(curve: Mapping[str, Any]) -> Figure:
    """Share of the truth inside central intervals, against what it should be."""
    levels = np.array(curve["levels"])
    with house():
        figure = new_figure(2.9, 3.4)
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=QUIET, linewidth=0.8, label="honest")
        for name, colour, mark in (("force", INFERRED, "o"), ("parameters", MEASURED, "s")):
            if curve[name] is not None:
                axes.plot(levels, curve[name], mark, linestyle="-", color=colour, markersize=3, label=name)
        axes.set(xlabel="central interval", ylabel="share of the truth inside", xlim=(0, 1), ylim=(0, 1))
        axes.set_aspect("equal")
        axes.legend(loc="upper left")
    return figure


def plot_resolutions(instance: Instance, answers: Sequence[OperatorAnswer], schema: OperatorSchema) -> Figure:
    """One instance answered on the trained grid and on a finer one: curves, or maps at the last time."""
    with house():
        if len(answers[0].dims) == 1:
            figure = new_figure(1.9)
            row = figure.subplots(1, len(answers), squeeze=False, sharey=True)[0]
            for axes, answer in zip(row, answers, strict=True):
                _draw_curve(axes, instance, answer, schema)
            row[0].set_ylabel(quantity(answers[0].forces[0], schema.known_unit(answers[0].forces[0])))
            known = true_curve(instance, 0) is not None
            figure.legend(handles=handles(data=False, truth=known), loc="outside upper center", ncols=4)
            return figure
        figure = new_figure(2.3)
        true = true_map(instance, answers[-1])
        shown = [(f"{'×'.join(map(str, one.shape))} points", one.mean[0], one) for one in answers]
        if true is not None:
            shown.append(("truth", true, answers[-1]))
        row = figure.subplots(1, len(shown), squeeze=False)[0]
        low, high = (f([f(values) for _, values, _ in shown]) for f in (np.min, np.max))
        for axes, (title, values, answer) in zip(row, shown, strict=True):
            image, across, up = _plane(values, answer)
            drawn = axes.pcolormesh(across, up, image.T, vmin=low, vmax=high, shading="nearest", rasterized=True)
            axes.set_title(title, fontweight="bold")
            across_name = answer.dims[len(answer.dims) > 2]
            axes.set_xlabel(quantity(across_name, schema.known_unit(across_name)))
        up_name, force = answers[0].dims[min(2, len(answers[0].dims) - 1)], answers[0].forces[0]
        row[0].set_ylabel(quantity(up_name, schema.known_unit(up_name)))
        figure.colorbar(drawn, ax=list(row), label=quantity(force, schema.known_unit(force)), fraction=0.03)
    return figure


def _draw_curve(axes: Axes, instance: Instance, answer: OperatorAnswer, schema: OperatorSchema) -> None:
    draw_band(axes, answer.times, band_of(answer), 0)
    axes.plot(answer.times, answer.mean[0], ".", color=INFERRED, markersize=2)
    true = true_curve(instance, 0)
    if true is not None:
        axes.plot(*true, color=TRUTH, linestyle=DASHED, linewidth=1.2, zorder=3)
    axes.set_title(f"{len(answer.times)} points", fontweight="bold")
    axes.set_xlabel(quantity("time", schema.known_unit("time")))
    axes.yaxis.set_major_locator(MaxNLocator(4))


def _plane(values: FloatArray, answer: OperatorAnswer) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The plane that is shown of a field and its axes: time and place on a line, else the last time's middle layer."""
    if values.ndim == 2:
        return values, answer.axes[0], answer.axes[1]
    values = values[-1]
    while values.ndim > 2:
        values = values[..., values.shape[-1] // 2]
    return values, answer.axes[1], answer.axes[2]


def _draw_line(axes: Axes, lines: Sequence[Line], key: str, colour: str, label: str) -> None:
    found = [(line["step"], line[key]) for line in lines if line.get(key) is not None and "step" in line]
    found = [(step, value) for step, value in found if np.isfinite(value)]
    if found:
        width = 0.6 if colour == BAND68 else 1.3
        axes.plot(*zip(*found, strict=True), color=colour, linewidth=width, label=label)


def _histogram(axes: Axes, values: FloatArray, edges: FloatArray, label: str) -> None:
    axes.set(xlabel=label, ylabel="instances")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(4))
    if not len(values):
        say_instead(axes, "not known")
        return
    axes.hist(np.clip(values, edges[0], edges[-1]), bins=list(edges), color=BAND68, edgecolor="white", linewidth=0.5)
    middle = float(np.median(values))
    if edges[0] <= middle <= edges[-1]:
        axes.axvline(middle, color=MEASURED, linewidth=1.0, linestyle=(0, (4, 2)))
    axes.set_title(f"median {middle:.3g}, n = {len(values)}".replace("-", "−"), loc="right")


def _known(rows: Sequence[Line], key: str) -> FloatArray:
    values = np.array([row[key] for row in rows if row.get(key) is not None], dtype=np.float64)
    finite: FloatArray = values[np.isfinite(values)]
    return finite


def _top(values: FloatArray) -> float:
    return float(np.quantile(values, 0.99)) or 1.0 if len(values) else 1.0
