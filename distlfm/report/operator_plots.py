"""Pictures of an operator's answers: what it was given, the force it found with bands, and the parameters.

Colours mean what they mean in the figures of fits: blue is inferred, black is measured, dashed vermilion is the truth.
A field is shown as maps of input, force and its deviation, and of truth and error where the truth is known: on a line
as images over time and position, in more dimensions as rows of snapshots, of the middle layer in space. `plot_beside`
shows an operator's answer and a full fit of the same instance in one picture.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from distlfm.answer.parameters import COLUMNS
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray, Instance
from distlfm.lfo import GridDim, OperatorAnswer, OperatorSchema
from distlfm.lfo.grid import joined_points, lattice, to_grid
from distlfm.report.field_maps import LEVEL_MAP, MAP_DPI, Panel, band_panels, colour_bar, draw_images, levels
from distlfm.report.field_view import Cloud
from distlfm.report.page import FORMATS, picture
from distlfm.report.panels import MAX_PANELS, WIDE_HEIGHT, Layout, curves_and_forest, draw_data, draw_force, set_scales
from distlfm.report.style import BAND95, DASHED, INFERRED, TRUTH, handles, house, new_figure, plain, quantity, set_ticks
from distlfm.report.words import true_curve
from distlfm.store.files import put_quickly, storing

SNAPSHOTS = 4
SNAPSHOT_HEIGHT = 1.6


def plot_field_answer(instance: Instance, answer: OperatorAnswer, schema: OperatorSchema) -> Figure:
    """Maps of the first output and of the first force."""
    panels = _panels(instance, answer, schema)
    with house():
        labels = [quantity(name, schema.known_unit(name)) for name in answer.dims]
        return draw_images(panels, *labels)[0] if len(labels) == 2 else _snapshots(answer, panels, labels)


def _panels(instance: Instance, answer: OperatorAnswer, schema: OperatorSchema) -> list[Panel]:
    def cloud(values: FloatArray) -> Cloud:
        return Cloud(answer.points[:, 0], answer.points[:, 1:], values.ravel())

    output, force = instance.outputs[0], answer.forces[0]
    points = joined_points(instance.times, instance.positions)
    seen, _ = to_grid(points, instance.values[:1], instance.mask[:1], _grid(answer), answer.shape)
    observed, label = seen[0].astype(np.float64), quantity(output, schema.known_unit(output))
    first = Panel(f"{plain(output)}: observed", label, cloud(observed), LEVEL_MAP, levels(observed))
    mean, sd, true = answer.mean[0], cloud(answer.sd[0]), true_map(instance, answer)
    known = None if true is None else (cloud(true), cloud(mean - true))
    return [first, *band_panels(force, schema.known_unit(force), ("mean", cloud(mean)), sd, "truth", known)]


def true_map(instance: Instance, answer: OperatorAnswer) -> FloatArray | None:
    """The first true force on the answer's grid, where known."""
    truth = instance.truth
    if truth is None or truth.force is None:
        return None
    known = np.isfinite(truth.force[:1])
    points = joined_points(truth.times, truth.positions)
    values, _ = to_grid(points, np.where(known, truth.force[:1], 0.0), known, _grid(answer), answer.shape)
    return np.asarray(values[0], dtype=np.float64)


def _grid(answer: OperatorAnswer) -> tuple[GridDim, ...]:
    """The answer's own grid: that of a fit begins with the data, which may be later than the operator's does."""
    named = zip(answer.dims, answer.axes, strict=True)
    return tuple(GridDim(name=name, size=len(axis), start=axis[0], stop=axis[-1]) for name, axis in named)


def _snapshots(answer: OperatorAnswer, panels: list[Panel], labels: list[str]) -> Figure:
    chosen = np.unique(np.linspace(0, len(answer.axes[0]) - 1, SNAPSHOTS + 1).round().astype(int)[1:])
    figure = new_figure(SNAPSHOT_HEIGHT * len(panels) + 0.2, dpi=MAP_DPI)
    places = figure.subplots(len(panels), len(chosen), squeeze=False, sharex=True, sharey=True)
    for row, panel in zip(places, panels, strict=True):
        style: dict[str, Any] = {"cmap": panel.colours, "norm": panel.limits, "rasterized": True}
        values = panel.cloud.values.reshape(answer.shape)
        for axes, at in zip(row, chosen, strict=True):
            axes.pcolormesh(*answer.axes[1:3], middle_layer(values[at]).T, shading="gouraud", **style)
            axes.set_title(f"{panel.title}, t = {answer.axes[0][at]:.3g}", fontsize=6.5)
        row[0].set_ylabel(labels[2])
        colour_bar(figure, list(row), panel, fraction=0.03, aspect=16)
    for axes in places[-1]:
        axes.set_xlabel(labels[1])
    return figure


def middle_layer(values: FloatArray) -> FloatArray:
    """The plane [X, Y] in the middle of a field in space; one in the plane is whole."""
    while values.ndim > 2:
        values = values[..., values.shape[-1] // 2]
    return values


def plot_answer(
    instance: Instance, answer: OperatorAnswer, schema: OperatorSchema, true: dict[str, float] | None = None
) -> Figure:
    """What was observed, and what the operator says. true: known values of parameters."""
    if len(answer.dims) > 1:
        return plot_field_answer(instance, answer, schema)
    layout = Layout(len(instance.outputs), len(answer.forces))
    draw = partial(_draw_curves, instance=instance, answer=answer, schema=schema, layout=layout)
    figure = curves_and_forest(layout, draw, answer.estimates, true or {}, schema.known_unit)
    # Its layout is found once: it is saved in several formats, and finding it takes longest.
    engine = figure.get_layout_engine()
    assert engine is not None
    with house():
        engine.execute(figure)
    figure.set_layout_engine("none")
    return figure


def picture_names(index: int, name: str) -> dict[str, str]:
    """The files of a picture and their formats, named by its place among the instances and by an id."""
    stem = f"{index:05d}_{re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:60]}"
    return {f"{stem}.{form}": form for form in FORMATS}


def save_figure(figure: Figure, folder: Path, index: int, name: str) -> None:
    """A picture as .png and .svg."""
    with storing("a picture", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file, form in picture_names(index, name).items():
            put_quickly(folder / file, picture(figure, form))


def _draw_curves(
    canvas: SubFigure, instance: Instance, answer: OperatorAnswer, schema: OperatorSchema, layout: Layout
) -> None:
    outputs, forces = layout.axes(canvas, quantity("time", schema.known_unit("time")))
    for p, axes in enumerate(outputs):
        draw_data(axes, instance, p)
        axes.set_title(plain(instance.outputs[p]), fontweight="bold")
        unit = schema.known_unit(instance.outputs[p])
        axes.set_ylabel("" if p % layout.columns else quantity("observed", unit))
    band, known = answer.force, [true_curve(instance, i) for i in range(len(forces))]
    for i, axes in enumerate(forces):
        draw_force(axes, answer.times, band, i, known[i])
        axes.set_ylabel(quantity(answer.forces[i], schema.known_unit(answer.forces[i])))
    set_scales((*outputs, *forces), answer.times, instance)
    canvas.legend(handles=handles(data=True, truth=any(known)), loc="outside upper center", ncols=5)
    if len(instance.outputs) > MAX_PANELS:
        canvas.supxlabel(f"The first {MAX_PANELS} of {len(instance.outputs)} outputs are shown.", fontsize=8)


FITTED = "#00664B"
"""Green of Okabe and Ito, darker: told from the operator's blue by its dots and its outline too, and in grey print."""

DOTS = (0, (5, 1, 1, 1))


def as_answer(result: FitResult, axes: Sequence[FloatArray], schema: OperatorSchema) -> OperatorAnswer:
    """A fit in the form of an operator's answer, on the same grid as far as the data have begun."""
    times = axes[0][axes[0] >= result.instance.times[0]]
    if len(times) < 2:  # the data lie outside of the operator's span
        times = np.linspace(result.instance.times[0], result.instance.times[-1], len(axes[0]))
    grid = (times, *axes[1:])
    points = lattice(grid)
    band = result.predict(points[:, 0], points[:, 1:] if points.shape[1] > 1 else None).force
    shape = (len(result.force_names), *(len(axis) for axis in grid))
    return OperatorAnswer(
        id=result.id,
        forces=result.force_names,
        dims=tuple(dim.name for dim in schema.dims),
        axes=grid,
        **{name: getattr(band, name).reshape(shape) for name in COLUMNS},
        estimates=result.estimates,
        novelty=0.0,
        warning=None,
        output_names=result.output_names,
        instance=result.instance,
    )


def plot_beside(instance: Instance, answer: OperatorAnswer, fitted: OperatorAnswer, schema: OperatorSchema) -> Figure:
    """Forces of both on the same axes; of a field, the maps of the fit, to be read beside the operator's."""
    if len(answer.dims) > 1:
        return plot_field_answer(instance, fitted, schema)
    forces = answer.forces[:MAX_PANELS]
    with house():
        figure = new_figure(WIDE_HEIGHT * 1.3 * len(forces) + 0.4)
        panels = figure.subplots(len(forces), 1, squeeze=False)[:, 0]
        known = [true_curve(instance, i) for i in range(len(forces))]
        for i, (axes, force) in enumerate(zip(panels, forces, strict=True)):
            draw_force(axes, answer.times, answer.force, i, known[i])
            if force in fitted.forces:
                _outline(axes, fitted, fitted.forces.index(force))
            time = quantity("time", schema.known_unit("time"))
            axes.set(xlabel=time, ylabel=quantity(force, schema.known_unit(force)))
            if len(forces) > 1:
                axes.set_title(f"Latent force {plain(force)}", fontweight="bold")
            set_ticks(axes, y=4)
        shown = [
            Line2D([], [], color=INFERRED, label="operator: mean"),
            Patch(color=BAND95, linewidth=0, label="operator: 95 % interval (68 % darker)"),
            Line2D([], [], color=FITTED, linestyle=DOTS, label="full fit: mean"),
            Line2D([], [], color=FITTED, linewidth=0.8, label="full fit: ends of its 95 % interval"),
            *([Line2D([], [], color=TRUTH, linestyle=DASHED, label="truth")] if any(known) else []),
        ]
        figure.legend(handles=shown, loc="outside upper center", ncols=3)
    return figure


def _outline(axes: Axes, fitted: OperatorAnswer, row: int) -> None:
    for side in ("lower95", "upper95"):
        axes.plot(fitted.times, getattr(fitted, side)[row], color=FITTED, linewidth=0.8, zorder=4)
    axes.plot(fitted.times, fitted.mean[row], color=FITTED, linestyle=DOTS, linewidth=1.4, zorder=5)
