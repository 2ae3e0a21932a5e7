"""Panels of figures: curves against time in a grid with their data, parameters as a forest of intervals, histograms.

Forces stand below the outputs on the same axis. A forest has one panel for each vector of parameters; single parameters
stand together by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D

from distlfm.answer import Band
from distlfm.answer.parameters import Estimated
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray, Instance
from distlfm.report import style
from distlfm.report.words import force_unit, instance_row, output_names, true_force, true_output

MAX_PANELS = 24
"""More outputs than this are unreadable in one figure."""

MAX_WIDE_FORCES = 3
"""Up to this many forces have the full width each; more share a grid."""

WIDE_HEIGHT = 1.75
PANEL_HEIGHT = 1.3
LEGEND_HEIGHT = 0.3


class Layout:
    """Rows and columns for `num_outputs` output panels and `num_forces` force panels."""

    def __init__(self, num_outputs: int, num_forces: int) -> None:
        self.num_outputs, self.num_forces = min(num_outputs, MAX_PANELS), min(num_forces, MAX_PANELS)
        shown = self.num_outputs
        self.columns = shown if shown <= 3 else 2 if shown == 4 else 3 if shown <= 9 else 4
        self.output_rows = -(-shown // self.columns)
        self.wide_forces = self.num_forces <= MAX_WIDE_FORCES
        self.force_rows = self.num_forces if self.wide_forces else -(-self.num_forces // self.columns)
        tall = WIDE_HEIGHT if self.columns == 1 else PANEL_HEIGHT
        self.heights = [tall] * self.output_rows + [WIDE_HEIGHT] * self.force_rows

    @property
    def height(self) -> float:
        return sum(self.heights) + LEGEND_HEIGHT

    def axes(self, canvas: SubFigure, time: str) -> tuple[list[Axes], list[Axes]]:
        """Empty panels of the outputs and of the forces; those at the bottom have the label of the time."""
        grid = canvas.add_gridspec(len(self.heights), self.columns, height_ratios=self.heights)
        outputs = [canvas.add_subplot(grid[divmod(p, self.columns)]) for p in range(self.num_outputs)]
        forces = []
        for i in range(self.num_forces):
            row, column = divmod(i, self.columns)
            place = grid[self.output_rows + i, :] if self.wide_forces else grid[self.output_rows + row, column]
            forces.append(canvas.add_subplot(place))
        for axes in (*outputs[-self.columns :], *forces):
            axes.set_xlabel(time)
        return outputs, forces


def draw_curves(canvas: SubFigure, result: FitResult, layout: Layout) -> None:
    """Outputs, forces, one legend above them, and a note if outputs were left out."""
    outputs, forces = layout.axes(canvas, style.quantity("time", result.instance.metadata.get("time_unit")))
    names = output_names(result)
    for p, axes in enumerate(outputs):
        _draw_output(axes, result, p, alone=layout.columns == 1)
        if p % layout.columns:
            axes.set_ylabel("")
    for i, axes in enumerate(forces):
        draw_force(axes, result.grid.times, result.grid.force, i, true_force(result, i))
        axes.set_ylabel(style.quantity(result.force_names[i], force_unit(result)))
    set_scales((*outputs, *forces), result.grid.times, result.instance)
    known = any(true_force(result, i) for i in range(layout.num_forces))
    known = known or any(true_output(result, names[p]) for p in range(layout.num_outputs))
    canvas.legend(handles=style.handles(data=True, truth=known), loc="outside upper center", ncols=5)
    left_out = [f"{len(names) - MAX_PANELS} more outputs"] * (len(names) > MAX_PANELS)
    left_out += [f"{len(result.force_names) - MAX_PANELS} more forces"] * (len(result.force_names) > MAX_PANELS)
    if left_out:
        canvas.supxlabel(
            f"The first {MAX_PANELS} are shown; {' and '.join(left_out)} are not.", color=style.QUIET, fontsize=8
        )


def _draw_output(axes: Axes, result: FitResult, p: int, *, alone: bool) -> None:
    name, unit = output_names(result)[p], result.instance.metadata.get("value_unit")
    draw_band(axes, result.grid.times, result.grid.outputs, p)
    draw_truth(axes, true_output(result, name))
    row = instance_row(result, name)
    if row is not None:
        draw_data(axes, result.instance, row)
    axes.set_ylabel(style.quantity(name, unit) if alone else f"value\n({style.plain(unit, 22)})" if unit else "value")
    if not alone:
        axes.yaxis.label.set_fontsize(7)
        axes.set_title(style.plain(name), fontweight="bold")


def draw_data(axes: Axes, instance: Instance, row: int) -> None:
    """Draw what was observed of one output, with error bars where the errors are known."""
    seen = instance.mask[row]
    size = 3.0 if seen.sum() <= 60 else 1.6
    times, values = instance.times[seen], instance.values[row, seen]
    error = None if instance.variance is None else np.sqrt(instance.variance[row, seen])
    axes.errorbar(
        times, values, yerr=error, fmt="o", color=style.MEASURED, markersize=size, elinewidth=0.7, linewidth=0, zorder=4
    )


def draw_force(
    axes: Axes, times: FloatArray, band: Band, row: int, known: tuple[FloatArray, FloatArray] | None
) -> None:
    """Draw the band of one force, and its truth where known."""
    draw_band(axes, times, band, row)
    draw_truth(axes, known)
    axes.set_title("Latent force", fontweight="bold")


def draw_truth(axes: Axes, known: tuple[FloatArray, FloatArray] | None) -> None:
    """Draw the true curve, where known."""
    if known is not None:
        axes.plot(*known, color=style.TRUTH, linestyle=style.DASHED, linewidth=1.2, zorder=3, label="truth")


def draw_band(axes: Axes, times: FloatArray, band: Band, row: int) -> None:
    """Mean and the two intervals of one row of a band."""
    fill: Callable[..., object] = axes.fill_between
    fill(times, band.lower95[row], band.upper95[row], color=style.BAND95, linewidth=0, label="95 % interval")
    fill(times, band.lower68[row], band.upper68[row], color=style.BAND68, linewidth=0, label="68 % interval")
    axes.plot(times, band.mean[row], color=style.INFERRED, zorder=2, label="posterior mean")


def set_scales(panels: Sequence[Axes], times: FloatArray, instance: Instance) -> None:
    """Show the same times on all panels, those of the curves and of the data, with few ticks."""
    first, last = min(times[0], instance.times[0]), max(times[-1], instance.times[-1])
    margin = 0.02 * (last - first)
    for axes in panels:
        axes.set_xlim(first - margin, last + margin)
        style.set_ticks(axes, y=4)


def curves_and_forest(
    layout: Layout,
    draw: Callable[[SubFigure], None],
    estimates: Sequence[Estimated],
    true: Mapping[str, float],
    unit: Callable[[str], str | None],
) -> Figure:
    """Stack what `draw` puts into a part of the layout's height, and the forest of the estimates, if there are any."""
    groups = grouped(estimates)
    with style.house():
        heights = [layout.height, *([forest_height(groups)] if groups else [])]
        figure = style.new_figure(sum(heights))
        places = figure.add_gridspec(len(heights), 1, height_ratios=heights)
        draw(figure.add_subfigure(places[0]))
        if groups:
            draw_forest(figure.add_subfigure(places[1]), groups, true, unit)
    return figure


def draw_histogram(
    axes: Axes, values: FloatArray, label: str, nothing: str, bins: Callable[[Axes, FloatArray], FloatArray]
) -> None:
    """Draw how the finite ones of some values spread, with their median; or say `nothing` where there are none."""
    values = values[np.isfinite(values)]
    axes.set(xlabel=label, ylabel="instances")
    style.set_ticks(axes, y=4, integer=True)
    if len(values) == 0:
        style.show_message(axes, nothing)
        return
    style.set_ticks(axes, x=4)
    edges = bins(axes, values)
    inside = np.clip(values, edges[0], edges[-1])
    axes.hist(inside, bins=list(edges), color=style.BAND68, edgecolor="white", linewidth=0.5)
    middle = float(np.median(values))
    if middle >= edges[0]:
        axes.axvline(middle, color=style.MEASURED, linewidth=1.0, linestyle=(0, (4, 2)))
    below = int((values < edges[0]).sum())
    note = f" ({below} below {edges[0]:g} in the leftmost bar)" if below else ""
    axes.set_title(f"median {middle:.3g}, n = {len(values)}{note}".replace("-", "−"), loc="right")


MAX_ROWS = 30
"""Longest panel; a longer vector is cut with a note."""

ROW_HEIGHT = 0.17
FRAME_HEIGHT = 0.55
HEAD_HEIGHT = 0.3
LOG_FROM = 0.5
"""Positive values that span more than this many powers of ten go on a logarithmic axis."""

TOGETHER = 2.5
"""Single parameters of one kind share an axis while they span fewer powers of ten than this."""


@dataclass(frozen=True)
class PanelGroup:
    """One panel: its title, and what it shows."""

    title: str
    estimates: tuple[Estimated, ...]

    @property
    def num_rows(self) -> int:
        return min(len(self.estimates), MAX_ROWS)


def grouped(estimates: Sequence[Estimated]) -> list[PanelGroup]:
    """Panels in the order of the parameters, kind by kind."""
    groups = []
    for kind in dict.fromkeys(estimate.kind for estimate in estimates):
        vectors: dict[str, list[Estimated]] = {}
        for one in estimates:
            if one.kind == kind:
                name, label = _element(one)
                vectors.setdefault(name if label else "", []).append(one)
        singles = vectors.pop("", [])
        for name, elements in vectors.items():
            groups.append(PanelGroup(name if name == kind else f"{name} ({kind})", tuple(elements)))
        if singles and _decades(singles) < TOGETHER:
            groups.append(PanelGroup(kind, tuple(singles)))
        else:
            groups += [PanelGroup(kind, (single,)) for single in singles]
    return groups


def _element(one: Estimated) -> tuple[str, str]:
    """The parameter and the element that an estimate is named by, `decay[p21]`; a single one has no element."""
    name, _, label = one.name.partition("[")
    return name, label.removesuffix("]")


def _decades(estimates: Sequence[Estimated]) -> float:
    """Powers of ten between the lowest and the highest 95 % limit; 0 where some limit is not positive."""
    limits = np.array([limit for one in estimates for limit in (one.lower95, one.upper95)])
    limits = limits[np.isfinite(limits)]
    if len(limits) == 0 or limits.min() <= 0:
        return 0.0
    return float(np.log10(limits.max() / limits.min()))


def _most_rows(groups: Sequence[PanelGroup]) -> tuple[int, list[int]]:
    """In how many columns the panels are, and the most rows that a panel has, for each row of panels."""
    columns = 2 if len(groups) == 4 else min(3, len(groups))
    lengths = [group.num_rows for group in groups]
    return columns, [max(lengths[i : i + columns]) for i in range(0, len(groups), columns)]


def forest_height(groups: Sequence[PanelGroup]) -> float:
    """Height in inches of all panels, with their title."""
    return sum(FRAME_HEIGHT + ROW_HEIGHT * most for most in _most_rows(groups)[1]) + HEAD_HEIGHT


def draw_forest(
    canvas: SubFigure,
    groups: Sequence[PanelGroup],
    true: Mapping[str, float],
    unit: Callable[[str], str | None],
) -> None:
    """One panel a group, in rows of up to three. true, unit: by the names of the estimates, where known."""
    columns, most = _most_rows(groups)
    heights = [FRAME_HEIGHT + ROW_HEIGHT * one for one in most]
    grid = canvas.add_gridspec(len(heights), columns, height_ratios=heights)
    marks: list[Line2D] = []
    for i, group in enumerate(groups):
        axes = canvas.add_subplot(grid[divmod(i, columns)])
        marks += _draw_group(axes, group, true, 0.62 * group.num_rows / most[i // columns])
        units = {unit(one.name) for one in group.estimates[: group.num_rows]}
        value = style.quantity("value", units.pop() if len(units) == 1 else None)
        left_out = len(group.estimates) - group.num_rows
        axes.set_xlabel(f"{value}; {left_out} more not shown" if left_out else value)
    if marks:
        canvas.legend(handles=marks[:1], loc="outside upper right")
    canvas.suptitle("Parameters", fontsize=8, fontweight="bold")


def _draw_group(axes: Axes, group: PanelGroup, true: Mapping[str, float], thickness: float) -> list[Line2D]:
    """Bars of the given thickness in units of rows; the marks of the truth where some is known."""
    shown = group.estimates[: group.num_rows]
    rows = np.arange(len(shown))
    for lower, upper, color in (("lower95", "upper95", style.BAND95), ("lower68", "upper68", style.BAND68)):
        start = np.array([getattr(one, lower) for one in shown])
        end = np.array([getattr(one, upper) for one in shown])
        axes.barh(rows, end - start, thickness, start, color=color, linewidth=0)
    means = [one.mean for one in shown]
    axes.vlines(means, rows - thickness / 2, rows + thickness / 2, color=style.INFERRED, linewidth=1.6, capstyle="butt")
    true_rows = [y for y, one in enumerate(shown) if one.name in true]
    known = [true[shown[y].name] for y in true_rows]
    marks = axes.plot(known, true_rows, "D", color=style.TRUTH, markersize=3.6, label="true value") if known else []
    for mark in marks:
        mark.set(markerfacecolor="none", markeredgewidth=1.0)
    axes.set_yticks(rows, [style.plain(label or name) for name, label in map(_element, shown)])
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    if _decades(shown) > LOG_FROM and all(truth > 0 for truth in known):
        limits = [limit for one in shown for limit in (one.lower95, one.upper95) if np.isfinite(limit)]
        style.log_scale(axes, min(*limits, *known), max(*limits, *known))
    else:
        axes.use_sticky_edges = False
        axes.margins(x=0.05)
        style.set_ticks(axes, x=4)
    axes.set_title(style.plain(group.title, 40))
    if not np.isfinite(means).any():
        axes.text(0.5, 0.5, "not estimated", transform=axes.transAxes, ha="center", va="center", color=style.QUIET)
        if not known:
            axes.set_xticks([])
    return marks
