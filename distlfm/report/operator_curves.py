"""Figures of an operator as a whole: how it learned, how its scores spread, how honest its intervals are, and how its
answers change with the resolution of what it is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from distlfm.instance import FloatArray, Instance
from distlfm.lfo import OperatorAnswer, OperatorSchema
from distlfm.report import style
from distlfm.report.operator_plots import middle_layer, true_map
from distlfm.report.panels import draw_band, draw_histogram, draw_truth
from distlfm.report.words import true_curve

Line = Mapping[str, Any]


def plot_learning(lines: Sequence[Line]) -> Figure:
    """Losses, the force's Q² on the validation split, and the learning rate, against the step.

    lines: as in metrics.jsonl; those of steps have `loss` and `lr`, those of epochs `train_total` and `validation_…`.
    """
    with style.house():
        figure = style.new_figure(2.2)
        loss, score, rate = figure.subplots(1, 3)
        _draw_line(loss, lines, "loss", style.BAND68, "step")
        _draw_line(loss, lines, "train_total", style.MEASURED, "training, mean of an epoch")
        _draw_line(loss, lines, "validation_loss", style.INFERRED, "validation")
        loss.set_ylabel("loss")
        if loss.get_legend_handles_labels()[0]:
            loss.legend(fontsize=6.5)
        _draw_line(score, lines, "validation_q2", style.INFERRED, "validation")
        score.set_ylabel("Q² of the force, validation")
        if score.lines:
            score.set_ylim(max(style.LOWEST_Q2, score.get_ylim()[0]), 1.0)
        _draw_line(rate, lines, "lr", style.MEASURED, "learning rate")
        rate.set_ylabel("learning rate")
        for axes in (loss, score, rate):
            axes.set_xlabel("step")
            style.set_ticks(axes, x=4, integer=True)
            if not axes.lines:
                style.show_message(axes, "not recorded")
    return figure


def plot_scores(rows: Sequence[Line]) -> Figure:
    """How force Q², parameter errors and the score of novelty spread over instances."""
    with style.house():
        figure = style.new_figure(2.1)
        q2, error, novelty = figure.subplots(1, 3)
        for axes, key, label, bins in (
            (q2, "latent_q2", "Q² of the latent force", style.q2_bins),
            (error, "parameter_mae_sum", "sum of the parameters' errors", _bins(0.0)),
            (novelty, "novelty", "unlike the training data", _bins(1.25)),
        ):
            values = np.array([row.get(key) for row in rows], dtype=np.float64)
            draw_histogram(axes, values, label, "not known", bins)
        novelty.axvline(1.0, color=style.TRUTH, linewidth=1.0, label="limit")
        novelty.legend(fontsize=6.5)
    return figure


def plot_calibration(curve: Mapping[str, Any]) -> Figure:
    """Share of the truth inside central intervals, against what it should be."""
    levels = np.array(curve["levels"])
    with style.house():
        figure = style.new_figure(2.9, 3.4)
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=style.QUIET, linewidth=0.8, label="honest")
        for name, colour, mark in (("force", style.INFERRED, "o"), ("parameters", style.MEASURED, "s")):
            if curve[name] is not None:
                axes.plot(levels, curve[name], mark, linestyle="-", color=colour, markersize=3, label=name)
        axes.set(xlabel="central interval", ylabel="share of the truth inside", xlim=(0, 1), ylim=(0, 1))
        axes.set_aspect("equal")
        axes.legend(loc="upper left")
    return figure


def plot_resolutions(instance: Instance, answers: Sequence[OperatorAnswer], schema: OperatorSchema) -> Figure:
    """One instance answered on the trained grid and on a finer one: curves, or maps at the last time."""
    with style.house():
        if len(answers[0].dims) == 1:
            figure = style.new_figure(1.9)
            row = figure.subplots(1, len(answers), squeeze=False, sharey=True)[0]
            for axes, answer in zip(row, answers, strict=True):
                _draw_curve(axes, instance, answer, schema)
            row[0].set_ylabel(style.quantity(answers[0].forces[0], schema.known_unit(answers[0].forces[0])))
            known = true_curve(instance, 0) is not None
            figure.legend(handles=style.handles(data=False, truth=known), loc="outside upper center", ncols=4)
            return figure
        figure = style.new_figure(2.3)
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
            axes.set_xlabel(style.quantity(across_name, schema.known_unit(across_name)))
        up_name, force = answers[0].dims[min(2, len(answers[0].dims) - 1)], answers[0].forces[0]
        row[0].set_ylabel(style.quantity(up_name, schema.known_unit(up_name)))
        figure.colorbar(drawn, ax=list(row), label=style.quantity(force, schema.known_unit(force)), fraction=0.03)
    return figure


def _draw_curve(axes: Axes, instance: Instance, answer: OperatorAnswer, schema: OperatorSchema) -> None:
    draw_band(axes, answer.times, answer.force, 0)
    axes.plot(answer.times, answer.mean[0], ".", color=style.INFERRED, markersize=2)
    draw_truth(axes, true_curve(instance, 0))
    axes.set_title(f"{len(answer.times)} points", fontweight="bold")
    axes.set_xlabel(style.quantity("time", schema.known_unit("time")))
    style.set_ticks(axes, y=4)


def _plane(values: FloatArray, answer: OperatorAnswer) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The plane that is shown of a field and its axes: time and place on a line, else the last time's middle layer."""
    if values.ndim == 2:
        return values, answer.axes[0], answer.axes[1]
    return middle_layer(values[-1]), answer.axes[1], answer.axes[2]


def _draw_line(axes: Axes, lines: Sequence[Line], key: str, colour: str, label: str) -> None:
    points = [(line["step"], line[key]) for line in lines if line.get(key) is not None and "step" in line]
    points = [(step, value) for step, value in points if np.isfinite(value)]
    if points:
        width = 0.6 if colour == style.BAND68 else 1.3
        axes.plot(*zip(*points, strict=True), color=colour, linewidth=width, label=label)


def _bins(least: float) -> Callable[[Axes, FloatArray], FloatArray]:
    """Edges of bars from 0 to where nearly all values are, and at least to `least`."""
    return lambda _, values: np.linspace(0.0, max(least, float(np.quantile(values, 0.99)) or 1.0), 21)
