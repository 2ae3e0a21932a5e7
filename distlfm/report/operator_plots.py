"""Pictures of an operator's answers: what it was given, the force it found with bands, and the parameters.

Colours mean what they mean in the figures of fits: blue is inferred, black is measured, dashed vermilion is the truth.
A field is shown as maps of input, force and its deviation, and of truth and error where the truth is known: on a line
as images over time and position, in more dimensions as rows of snapshots, of the middle layer in space. `plot_beside`
shows an operator's answer and a full fit of the same instance in one picture.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from distlfm.answer import Band
from distlfm.inference.findings.estimates import Estimate
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray, Instance
from distlfm.lfo import GridDim, OperatorAnswer, OperatorSchema
from distlfm.lfo.answer import Estimate as AnswerEstimate
from distlfm.lfo.grid import to_grid
from distlfm.report.field_maps import ERROR_MAP, LEVEL_MAP, MAP_DPI, SPREAD_MAP
from distlfm.report.page import PIXELS_PER_INCH
from distlfm.report.panels import MAX_PANELS, WIDE_HEIGHT, Layout, draw_band, draw_forest, forest_height, grouped
from distlfm.report.style import BAND95, DASHED, INFERRED, MEASURED, TRUTH, handles, house, new_figure, plain, quantity
from distlfm.store.files import put_quickly, storing

SNAPSHOTS = 4
IMAGE_HEIGHT, SNAPSHOT_HEIGHT = 1.75, 1.6


@dataclass(frozen=True)
class Panel:
    """One map on the grid: values [*grid]."""

    title: str
    label: str
    values: FloatArray
    colours: str
    limits: Normalize


def plot_field_answer(instance: Instance, answer: OperatorAnswer, schema: OperatorSchema) -> Figure:
    """Maps of the first output and of the first force."""
    panels = _panels(instance, answer, schema)
    with house():
        labels = [quantity(name, schema.known_unit(name)) for name in answer.dims]
        return (_images if len(answer.dims) == 2 else _snapshots)(answer, panels, labels)


def _panels(instance: Instance, answer: OperatorAnswer, schema: OperatorSchema) -> list[Panel]:
    output, force = instance.outputs[0], plain(answer.forces[0])
    value, label = (quantity(name, schema.known_unit(name)) for name in (output, answer.forces[0]))
    points = _points(instance.times, instance.positions)
    seen, _ = to_grid(points, instance.values[:1], instance.mask[:1], _grid(answer), answer.shape)
    mean, sd = answer.mean[0], answer.sd[0]
    true = true_map(instance, answer)
    found = [Panel(f"{plain(output)}: observed", value, seen[0].astype(np.float64), LEVEL_MAP, _limits(seen[0]))]
    shared = _limits(mean if true is None else np.concatenate([mean, true]))
    found.append(Panel(f"{force}: mean", label, mean, LEVEL_MAP, shared))
    found.append(Panel(f"{force}: sd", label, sd, SPREAD_MAP, Normalize(0.0, float(np.nanquantile(sd, 0.97)) or 1.0)))
    if true is not None:
        end = float(np.nanmax(np.abs(mean - true))) or 1.0
        found.append(Panel(f"{force}: truth", label, true, LEVEL_MAP, shared))
        found.append(Panel(f"{force}: mean − truth", label, mean - true, ERROR_MAP, Normalize(-end, end)))
    return found


def true_map(instance: Instance, answer: OperatorAnswer) -> FloatArray | None:
    """The first true force on the answer's grid, where known."""
    truth = instance.truth
    if truth is None or truth.force is None:
        return None
    known = np.isfinite(truth.force[:1])
    points = _points(truth.times, truth.positions)
    values, _ = to_grid(points, np.where(known, truth.force[:1], 0.0), known, _grid(answer), answer.shape)
    found: FloatArray = values[0].astype(np.float64)
    return found


def _grid(answer: OperatorAnswer) -> tuple[GridDim, ...]:
    """The answer's own grid: that of a fit begins with the data, which may be later than the operator's does."""
    named = zip(answer.dims, answer.axes, strict=True)
    return tuple(GridDim(name=name, size=len(axis), start=axis[0], stop=axis[-1]) for name, axis in named)


def _images(answer: OperatorAnswer, panels: list[Panel], labels: list[str]) -> Figure:
    rows = -(-len(panels) // 2)
    figure = new_figure(IMAGE_HEIGHT * rows + 0.2, dpi=MAP_DPI)
    places = figure.subplots(rows, 2, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, panel in zip(places, panels, strict=False):
        _draw(axes, panel.values.T, answer.axes[0], answer.axes[1], panel)
        figure.colorbar(
            ScalarMappable(panel.limits, panel.colours), ax=axes, label=panel.label, fraction=0.05, aspect=16
        )
        axes.set(xlabel=labels[0], ylabel=labels[1])
    for axes in places[len(panels) :]:
        axes.remove()
    return figure


def _snapshots(answer: OperatorAnswer, panels: list[Panel], labels: list[str]) -> Figure:
    chosen = np.unique(np.linspace(0, len(answer.axes[0]) - 1, SNAPSHOTS + 1).round().astype(int)[1:])
    figure = new_figure(SNAPSHOT_HEIGHT * len(panels) + 0.2, dpi=MAP_DPI)
    places = figure.subplots(len(panels), len(chosen), squeeze=False, sharex=True, sharey=True)
    for row, panel in zip(places, panels, strict=True):
        for axes, at in zip(row, chosen, strict=True):
            layer = panel.values[at]
            while layer.ndim > 2:
                layer = layer[..., layer.shape[-1] // 2]
            _draw(axes, layer.T, answer.axes[1], answer.axes[2], panel)
            axes.set_title(f"{panel.title}, t = {answer.axes[0][at]:.3g}", fontsize=6.5)
        row[0].set_ylabel(labels[2])
        bar = ScalarMappable(panel.limits, panel.colours)
        figure.colorbar(bar, ax=list(row), label=panel.label, fraction=0.03, aspect=16)
    for axes in places[-1]:
        axes.set_xlabel(labels[1])
    return figure


def _draw(axes: Axes, values: FloatArray, across: FloatArray, up: FloatArray, panel: Panel) -> None:
    axes.pcolormesh(across, up, values, cmap=panel.colours, norm=panel.limits, shading="gouraud", rasterized=True)
    axes.set_title(panel.title, fontweight="bold", loc="left")


def _limits(values: NDArray[np.floating[Any]]) -> Normalize:
    low, high = np.nanmin(values).item(), np.nanmax(values).item()
    return Normalize(low, high) if high > low else Normalize(low - 0.5, high + 0.5)


def _points(times: FloatArray, positions: FloatArray | None) -> FloatArray:
    return times[:, None] if positions is None else np.concatenate([times[:, None], positions], -1)


FORMATS: dict[str, dict[str, Any]] = {
    "png": {"dpi": PIXELS_PER_INCH},
    "svg": {"metadata": {"Date": None, "Creator": None}},
}
"""Of the files of a picture, with what is said to matplotlib; a date would make each file another."""


def plot_answer(
    instance: Instance, answer: OperatorAnswer, schema: OperatorSchema, true: dict[str, float] | None = None
) -> Figure:
    """What was observed, and what the operator says. true: known values of parameters."""
    if len(answer.dims) > 1:
        return plot_field_answer(instance, answer, schema)
    layout = Layout(len(instance.outputs), len(answer.forces))
    groups = grouped(_rows(answer))
    with house():
        heights = [layout.height, *([forest_height(groups)] if groups else [])]
        figure = new_figure(sum(heights))
        places = figure.add_gridspec(len(heights), 1, height_ratios=heights)
        _draw_curves(figure.add_subfigure(places[0]), instance, answer, schema, layout)
        if groups:
            parameters = figure.add_subfigure(places[1])
            draw_forest(parameters, groups, true or {}, schema.known_unit)
        return settled(figure)


def settled(figure: Figure) -> Figure:
    """The figure with its layout found once: it is saved in several formats, and finding it takes longest."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    figure.set_layout_engine("none")
    return figure


def picture_names(index: int, name: str) -> dict[str, str]:
    """The files of a picture and their formats, named by its place among the instances and by an id."""
    stem = f"{index:05d}_{re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:60]}"
    return {f"{stem}.{form}": form for form in FORMATS}


def save_figure(figure: Figure, folder: Path, index: int, name: str) -> None:
    """A picture as .png and .svg."""
    with house(), storing("a picture", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for file, form in picture_names(index, name).items():
            buffer = io.BytesIO()
            figure.savefig(buffer, format=form, **FORMATS[form])
            put_quickly(folder / file, buffer.getvalue())


def band_of(answer: OperatorAnswer) -> Band:
    """The answer's bands [L, n] as those of a fit."""
    shape = (len(answer.forces), -1)
    return Band(*(getattr(answer, name).reshape(shape) for name in Band.__dataclass_fields__))


def true_curve(instance: Instance, force: int) -> tuple[FloatArray, FloatArray] | None:
    """Times and values of a true force, where known."""
    truth = instance.truth
    if truth is None or truth.force is None or force >= len(truth.force):
        return None
    return truth.times, truth.force[force]


def _draw_curves(
    canvas: SubFigure, instance: Instance, answer: OperatorAnswer, schema: OperatorSchema, layout: Layout
) -> None:
    outputs, forces = layout.axes(canvas, quantity("time", schema.known_unit("time")))
    for p, axes in enumerate(outputs):
        seen = instance.mask[p]
        size = 3.0 if seen.sum() <= 60 else 1.6
        axes.plot(instance.times[seen], instance.values[p, seen], "o", color=MEASURED, markersize=size)
        axes.set_title(plain(instance.outputs[p]), fontweight="bold")
        unit = schema.known_unit(instance.outputs[p])
        axes.set_ylabel("" if p % layout.columns else quantity("observed", unit))
    band, known = band_of(answer), False
    for i, axes in enumerate(forces):
        draw_band(axes, answer.times, band, i)
        true = true_curve(instance, i)
        if true is not None:
            axes.plot(*true, color=TRUTH, linestyle=DASHED, linewidth=1.2, zorder=3)
            known = True
        axes.set_ylabel(quantity(answer.forces[i], schema.known_unit(answer.forces[i])))
        axes.set_title("Latent force", fontweight="bold")
    first = min(answer.times[0], instance.times[0])
    last = max(answer.times[-1], instance.times[-1])
    margin = 0.02 * (last - first)
    for axes in (*outputs, *forces):
        axes.set_xlim(first - margin, last + margin)
        axes.yaxis.set_major_locator(MaxNLocator(4))
    canvas.legend(handles=handles(data=True, truth=known), loc="outside upper center", ncols=5)
    if len(instance.outputs) > MAX_PANELS:
        canvas.supxlabel(f"The first {MAX_PANELS} of {len(instance.outputs)} outputs are shown.", fontsize=8)


def _rows(answer: OperatorAnswer) -> list[Estimate]:
    """The answer's parameters as those of a fit, split into name and element."""
    found = []
    for one in answer.estimates:
        name, _, label = one.name.partition("[")
        numbers = (one.mean, one.sd, one.lower68, one.upper68, one.lower95, one.upper95)
        found.append(Estimate(name, label.removesuffix("]"), one.kind, *numbers, float("nan")))
    return found


FITTED = "#00664B"
"""Green of Okabe and Ito, darker: told from the operator's blue by its dots and its outline too, and in grey print."""

DOTS = (0, (5, 1, 1, 1))


def as_answer(result: FitResult, axes: Sequence[FloatArray], schema: OperatorSchema) -> OperatorAnswer:
    """A fit in the form of an operator's answer, on the same grid as far as the data have begun."""
    times = axes[0][axes[0] >= result.instance.times[0]]
    if len(times) < 2:  # the data lie outside of the operator's span
        times = np.linspace(result.instance.times[0], result.instance.times[-1], len(axes[0]))
    grid = (times, *axes[1:])
    points = np.stack([one.ravel() for one in np.meshgrid(*grid, indexing="ij")], -1)
    places = points[:, 1:] if points.shape[1] > 1 else None
    band = result.predict(points[:, 0], places).force
    shape = (len(result.force_names), *(len(axis) for axis in grid))
    curves = {name: getattr(band, name).reshape(shape) for name in Band.__dataclass_fields__}
    numbers = AnswerEstimate._fields[2:]
    parameters = tuple(
        AnswerEstimate(p.name, p.kind, *(getattr(p, name) for name in numbers)) for p in result.estimates
    )
    dims = tuple(dim.name for dim in schema.dims)
    return OperatorAnswer(
        id=result.id,
        forces=result.force_names,
        dims=dims,
        axes=grid,
        **curves,
        estimates=parameters,
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
        truth = False
        for i, (axes, force) in enumerate(zip(panels, forces, strict=True)):
            draw_band(axes, answer.times, band_of(answer), i)
            if force in fitted.forces:
                _outline(axes, fitted, fitted.forces.index(force))
            known = true_curve(instance, i)
            if known is not None:
                axes.plot(*known, color=TRUTH, linestyle=DASHED, linewidth=1.2, zorder=3)
                truth = True
            axes.set_ylabel(quantity(force, schema.known_unit(force)))
            axes.set_xlabel(quantity("time", schema.known_unit("time")))
            axes.set_title(f"Latent force {plain(force)}" if len(forces) > 1 else "Latent force", fontweight="bold")
            axes.yaxis.set_major_locator(MaxNLocator(4))
        figure.legend(handles=_legend(truth), loc="outside upper center", ncols=3)
    return figure


def _outline(axes: Any, fitted: OperatorAnswer, row: int) -> None:
    for side in ("lower95", "upper95"):
        axes.plot(fitted.times, getattr(fitted, side)[row], color=FITTED, linewidth=0.8, zorder=4)
    axes.plot(fitted.times, fitted.mean[row], color=FITTED, linestyle=DOTS, linewidth=1.4, zorder=5)


def _legend(truth: bool) -> list[Any]:
    found: list[Any] = [
        Line2D([], [], color=INFERRED, label="operator: mean"),
        Patch(color=BAND95, linewidth=0, label="operator: 95 % interval (68 % darker)"),
        Line2D([], [], color=FITTED, linestyle=DOTS, label="full fit: mean"),
        Line2D([], [], color=FITTED, linewidth=0.8, label="full fit: ends of its 95 % interval"),
    ]
    return [*found, *([Line2D([], [], color=TRUTH, linestyle=DASHED, label="truth")] if truth else [])]
