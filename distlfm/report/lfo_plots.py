"""Pictures of an operator's answers: what it was given, the force it found with bands, and the parameters.

Colours mean what they mean in the figures of fits: blue is inferred, black is measured, dashed vermilion is the truth.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator

from distlfm.inference.estimates import Estimate as Row
from distlfm.inference.result import Band
from distlfm.instance import FloatArray, Instance
from distlfm.lfo import Answer, OperatorSchema
from distlfm.report.curves import MAX_PANELS, Layout, draw_band
from distlfm.report.forest import LOG_FROM, Group, forest_rows, grouped
from distlfm.report.lfo_fields import known_unit, plot_field_answer
from distlfm.report.style import (
    BAND68,
    BAND95,
    INFERRED,
    MEASURED,
    TRUTH,
    handles,
    house,
    log_scale,
    new_figure,
    plain,
    quantity,
    truth_mark,
)
from distlfm.store.files import put_quickly, storing

DASHES = (0, (3, 1.5))
HEAD = 0.3
PIXELS_PER_INCH = 200


def plot_answer(
    instance: Instance, answer: Answer, schema: OperatorSchema, true: dict[str, float] | None = None
) -> Figure:
    """What was observed, and what the operator says. true: known values of parameters."""
    if len(answer.dims) > 1:
        return plot_field_answer(instance, answer, schema)
    layout = Layout(len(instance.outputs), len(answer.forces))
    groups = grouped(_rows(answer))
    with house():
        heights = [layout.height, *([sum(forest_rows(groups)) + HEAD] if groups else [])]
        figure = new_figure(sum(heights))
        places = figure.add_gridspec(len(heights), 1, height_ratios=heights)
        _draw_curves(figure.add_subfigure(places[0]), instance, answer, schema, layout)
        if groups:
            _draw_parameters(figure.add_subfigure(places[1]), groups, true or {}, schema)
        return settled(figure)


def settled(figure: Figure) -> Figure:
    """The figure with its layout found once: it is saved in several formats, and finding it takes longest."""
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.execute(figure)
    figure.set_layout_engine("none")
    return figure


def save_figure(figure: Figure, folder: Path, index: int, name: str) -> None:
    """A picture as .png and .svg, named by its place among the instances and by an id."""
    stem = f"{index:05d}_{re.sub(r'[^A-Za-z0-9._-]+', '_', name)[:60]}"
    with house(), storing("a picture", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for form, more in (("png", {"dpi": PIXELS_PER_INCH}), ("svg", {"metadata": {"Date": None, "Creator": None}})):
            buffer = io.BytesIO()
            figure.savefig(buffer, format=form, **more)
            put_quickly(folder / f"{stem}.{form}", buffer.getvalue())


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
    time = quantity("time", known_unit(schema, "time"))
    panels: list[Axes] = []
    for p in range(layout.num_outputs):
        row, column = divmod(p, layout.columns)
        axes = canvas.add_subplot(grid[row, column])
        seen = instance.mask[p]
        size = 3.0 if seen.sum() <= 60 else 1.6
        axes.plot(instance.times[seen], instance.values[p, seen], "o", color=MEASURED, markersize=size)
        axes.set_title(plain(instance.outputs[p]), fontweight="bold")
        axes.set_ylabel(quantity("observed", known_unit(schema, instance.outputs[p])) if not column else "")
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
            axes.plot(*true, color=TRUTH, linestyle=DASHES, linewidth=1.2, zorder=3)
            known = True
        axes.set_ylabel(quantity(answer.forces[i], known_unit(schema, answer.forces[i])))
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


def _draw_parameters(canvas: SubFigure, groups: list[Group], true: dict[str, float], schema: OperatorSchema) -> None:
    heights = forest_rows(groups)
    columns = -(-len(groups) // len(heights))
    grid = canvas.add_gridspec(len(heights), columns, height_ratios=heights)
    for i, group in enumerate(groups):
        _draw_group(canvas.add_subplot(grid[i // columns, i % columns]), group, true, schema)
    if any(one.name in true for group in groups for one in group.estimates):
        canvas.legend(handles=[truth_mark("true value")], loc="outside upper right")
    canvas.suptitle("Parameters", fontsize=8, fontweight="bold")


def _draw_group(axes: Axes, group: Group, true: dict[str, float], schema: OperatorSchema) -> None:
    shown = group.estimates[: group.num_rows]
    rows = np.arange(len(shown))
    for lower, upper, colour in (("lower95", "upper95", BAND95), ("lower68", "upper68", BAND68)):
        start = np.array([getattr(one, lower) for one in shown])
        end = np.array([getattr(one, upper) for one in shown])
        axes.barh(rows, end - start, 0.6, start, color=colour, linewidth=0)
    axes.vlines([one.mean for one in shown], rows - 0.3, rows + 0.3, color=INFERRED, linewidth=1.6)
    known = [(true[one.name], y) for y, one in enumerate(shown) if one.name in true]
    if known:
        axes.plot(*zip(*known, strict=True), "D", color=TRUTH, markersize=3.6, markerfacecolor="none")
    axes.set_yticks(rows, [plain(one.label if group.by_element else one.parameter) for one in shown])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    ends = [end for one in shown for end in (one.lower95, one.upper95)] + [value for value, _ in known]
    if np.isfinite(ends).all() and min(ends) > 0 and np.log10(max(ends) / min(ends)) > LOG_FROM:
        log_scale(axes, min(ends), max(ends))
    else:
        axes.use_sticky_edges = False
        axes.margins(x=0.05)
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_title(plain(group.title, 40))
    left_out = len(group.estimates) - len(shown)
    units = {known_unit(schema, one.name) for one in shown}
    value = quantity("value", units.pop() if len(units) == 1 else None)
    axes.set_xlabel(value if not left_out else f"{value}; {left_out} more not shown")


def _rows(answer: Answer) -> list[Row]:
    """The answer's parameters as those of a fit, split into name and element."""
    found = []
    for one in answer.parameters:
        name, _, label = one.name.partition("[")
        numbers = (one.mean, one.sd, one.lower68, one.upper68, one.lower95, one.upper95)
        found.append(Row(name, label.removesuffix("]"), one.kind, *numbers, float("nan")))
    return found
