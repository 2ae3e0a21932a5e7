"""Pictures of an operator's answers: what it was given, the force it found with bands, and the parameters.

Colours mean what they mean in the figures of fits: blue is inferred, black is measured, dashed vermilion is the truth.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from distlfm.inference.estimates import Estimate
from distlfm.inference.result import Band
from distlfm.instance import FloatArray, Instance
from distlfm.lfo import Answer, OperatorSchema
from distlfm.report.curves import MAX_PANELS, Layout, draw_band
from distlfm.report.forest import draw_forest, forest_height, grouped
from distlfm.report.lfo_fields import plot_field_answer
from distlfm.report.style import (
    DASHED,
    MEASURED,
    TRUTH,
    handles,
    house,
    new_figure,
    plain,
    quantity,
)
from distlfm.store.files import put_quickly, storing

PIXELS_PER_INCH = 200
FORMATS: dict[str, dict[str, Any]] = {
    "png": {"dpi": PIXELS_PER_INCH},
    "svg": {"metadata": {"Date": None, "Creator": None}},
}
"""Of the files of a picture, with what is said to matplotlib; a date would make each file another."""


def plot_answer(
    instance: Instance, answer: Answer, schema: OperatorSchema, true: dict[str, float] | None = None
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


def band_of(answer: Answer) -> Band:
    """The answer's bands [L, n] as those of a fit."""
    shape = (len(answer.forces), -1)
    return Band(*(getattr(answer, name).reshape(shape) for name in Band.__dataclass_fields__))


def true_curve(instance: Instance, force: int) -> tuple[FloatArray, FloatArray] | None:
    """Times and values of a true force, where known."""
    truth = instance.truth
    if truth is None or truth.force is None or force >= len(truth.force):
        return None
    return truth.times, truth.force[force]


def _draw_curves(canvas: SubFigure, instance: Instance, answer: Answer, schema: OperatorSchema, layout: Layout) -> None:
    grid = canvas.add_gridspec(len(layout.heights), layout.columns, height_ratios=layout.heights)
    time = quantity("time", schema.known_unit("time"))
    panels: list[Axes] = []
    for p in range(layout.num_outputs):
        row, column = divmod(p, layout.columns)
        axes = canvas.add_subplot(grid[row, column])
        seen = instance.mask[p]
        size = 3.0 if seen.sum() <= 60 else 1.6
        axes.plot(instance.times[seen], instance.values[p, seen], "o", color=MEASURED, markersize=size)
        axes.set_title(plain(instance.outputs[p]), fontweight="bold")
        axes.set_ylabel(quantity("observed", schema.known_unit(instance.outputs[p])) if not column else "")
        if p + layout.columns >= layout.num_outputs:
            axes.set_xlabel(time)
        panels.append(axes)
    band, known = band_of(answer), False
    for i in range(layout.num_forces):
        row, column = divmod(i, layout.columns)
        place = grid[layout.output_rows + i, :] if layout.wide_forces else grid[layout.output_rows + row, column]
        axes = canvas.add_subplot(place)
        draw_band(axes, answer.times, band, i)
        true = true_curve(instance, i)
        if true is not None:
            axes.plot(*true, color=TRUTH, linestyle=DASHED, linewidth=1.2, zorder=3)
            known = True
        axes.set_ylabel(quantity(answer.forces[i], schema.known_unit(answer.forces[i])))
        axes.set_title("Latent force", fontweight="bold")
        axes.set_xlabel(time)
        panels.append(axes)
    first = min(answer.times[0], instance.times[0])
    last = max(answer.times[-1], instance.times[-1])
    margin = 0.02 * (last - first)
    for axes in panels:
        axes.set_xlim(first - margin, last + margin)
        axes.yaxis.set_major_locator(MaxNLocator(4))
    canvas.legend(handles=handles(data=True, truth=known), loc="outside upper center", ncols=5)
    if len(instance.outputs) > MAX_PANELS:
        canvas.supxlabel(f"The first {MAX_PANELS} of {len(instance.outputs)} outputs are shown.", fontsize=8)


def _rows(answer: Answer) -> list[Estimate]:
    """The answer's parameters as those of a fit, split into name and element."""
    found = []
    for one in answer.parameters:
        name, _, label = one.name.partition("[")
        numbers = (one.mean, one.sd, one.lower68, one.upper68, one.lower95, one.upper95)
        found.append(Estimate(name, label.removesuffix("]"), one.kind, *numbers, float("nan")))
    return found
