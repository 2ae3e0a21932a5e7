"""Panels of figures: curves against time in a grid with their data, and parameters as a forest of intervals.

Forces stand below the outputs on the same axis. A forest has one panel for each vector of parameters; single parameters
stand together by kind.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import MaxNLocator

from distlfm.answer import Band
from distlfm.inference.findings.estimates import Estimate
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray
from distlfm.report.style import (
    BAND68,
    BAND95,
    DASHED,
    INFERRED,
    MEASURED,
    QUIET,
    TRUTH,
    handles,
    log_scale,
    plain,
    quantity,
    truth_mark,
)
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
    outputs, forces = layout.axes(canvas, quantity("time", _unit(result, "time_unit")))
    names = output_names(result)
    for p, axes in enumerate(outputs):
        _draw_output(axes, result, p, alone=layout.columns == 1)
        if p % layout.columns:
            axes.set_ylabel("")
    for i, axes in enumerate(forces):
        _draw_force(axes, result, i)
    for axes in (*outputs, *forces):
        axes.set_xlim(*_time_range(result))
        axes.yaxis.set_major_locator(MaxNLocator(4))
    known = any(true_force(result, i) for i in range(layout.num_forces))
    known = known or any(true_output(result, names[p]) for p in range(layout.num_outputs))
    canvas.legend(handles=handles(data=True, truth=known), loc="outside upper center", ncols=5)
    left_out = [f"{len(names) - MAX_PANELS} more outputs"] * (len(names) > MAX_PANELS)
    left_out += [f"{len(result.force_names) - MAX_PANELS} more forces"] * (len(result.force_names) > MAX_PANELS)
    if left_out:
        canvas.supxlabel(
            f"The first {MAX_PANELS} are shown; {' and '.join(left_out)} are not.", color=QUIET, fontsize=8
        )


def _draw_output(axes: Axes, result: FitResult, p: int, *, alone: bool) -> None:
    name, unit = output_names(result)[p], _unit(result, "value_unit")
    draw_band(axes, result.grid.times, result.grid.outputs, p)
    instance, row = result.instance, instance_row(result, name)
    _draw_truth(axes, true_output(result, name))
    if row is not None:
        seen = instance.mask[row]
        size = 3.0 if seen.sum() <= 60 else 1.6
        times, values = instance.times[seen], instance.values[row, seen]
        error = None if instance.variance is None else np.sqrt(instance.variance[row, seen])
        axes.errorbar(
            times, values, yerr=error, fmt="o", color=MEASURED, markersize=size, elinewidth=0.7, linewidth=0, zorder=4
        )
    axes.set_ylabel(quantity(name, unit) if alone else f"value\n({plain(unit, 22)})" if unit else "value")
    if not alone:
        axes.yaxis.label.set_fontsize(7)
        axes.set_title(plain(name), fontweight="bold")


def _draw_force(axes: Axes, result: FitResult, i: int) -> None:
    draw_band(axes, result.grid.times, result.grid.force, i)
    _draw_truth(axes, true_force(result, i))
    axes.set_ylabel(quantity(result.force_names[i], force_unit(result)))
    axes.set_title("Latent force", fontweight="bold")


def _draw_truth(axes: Axes, known: tuple[FloatArray, FloatArray] | None) -> None:
    if known is not None:
        axes.plot(*known, color=TRUTH, linestyle=DASHED, linewidth=1.2, zorder=3, label="truth")


def draw_band(axes: Axes, times: FloatArray, band: Band, row: int) -> None:
    """Mean and the two intervals of one row of a band."""
    fill: Callable[..., object] = axes.fill_between
    fill(times, band.lower95[row], band.upper95[row], color=BAND95, linewidth=0, label="95 % interval")
    fill(times, band.lower68[row], band.upper68[row], color=BAND68, linewidth=0, label="68 % interval")
    axes.plot(times, band.mean[row], color=INFERRED, zorder=2, label="posterior mean")


def _time_range(result: FitResult) -> tuple[float, float]:
    first = min(float(result.grid.times[0]), float(result.instance.times[0]))
    last = max(float(result.grid.times[-1]), float(result.instance.times[-1]))
    margin = 0.02 * (last - first)
    return first - margin, last + margin


def _unit(result: FitResult, key: str) -> str | None:
    return result.instance.metadata.get(key) or None


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
class Group:
    """One panel: what it shows, its title, and whether rows are named by element or by parameter."""

    title: str
    estimates: tuple[Estimate, ...]
    by_element: bool

    @property
    def num_rows(self) -> int:
        return min(len(self.estimates), MAX_ROWS)


def grouped(estimates: Sequence[Estimate]) -> list[Group]:
    """Panels in the order of the parameters, kind by kind."""
    found = []
    for kind in dict.fromkeys(estimate.kind for estimate in estimates):
        of_kind = [estimate for estimate in estimates if estimate.kind == kind]
        singles = [estimate for estimate in of_kind if not estimate.label]
        for name in dict.fromkeys(estimate.parameter for estimate in of_kind if estimate.label):
            title = name if name == kind else f"{name} ({kind})"
            found.append(Group(title, tuple(one for one in of_kind if one.parameter == name), True))
        if singles and _decades(singles) < TOGETHER:
            found.append(Group(kind, tuple(singles), False))
        else:
            found += [Group(kind, (single,), False) for single in singles]
    return found


def _decades(estimates: Sequence[Estimate]) -> float:
    """Powers of ten between the lowest and the highest 95 % limit; 0 where some limit is not positive."""
    limits = np.array([limit for one in estimates for limit in (one.lower95, one.upper95)])
    limits = limits[np.isfinite(limits)]
    if len(limits) == 0 or limits.min() <= 0:
        return 0.0
    return float(np.log10(limits.max() / limits.min()))


def _columns(groups: Sequence[Group]) -> int:
    return 2 if len(groups) == 4 else min(3, len(groups))


def _row_heights(groups: Sequence[Group]) -> list[float]:
    """Height in inches of each row of panels."""
    columns = _columns(groups)
    rows = [groups[i : i + columns] for i in range(0, len(groups), columns)]
    return [FRAME_HEIGHT + ROW_HEIGHT * max(group.num_rows for group in row) for row in rows]


def forest_height(groups: Sequence[Group]) -> float:
    """Height in inches of all panels, with their title."""
    return sum(_row_heights(groups)) + HEAD_HEIGHT


def draw_forest(
    canvas: SubFigure,
    groups: Sequence[Group],
    true: Mapping[str, float],
    unit: Callable[[str], str | None] = lambda _: None,
) -> None:
    """One panel a group, in rows of up to three. true, unit: by the names of the estimates, where known."""
    heights = _row_heights(groups)
    columns = _columns(groups)
    grid = canvas.add_gridspec(len(heights), columns, height_ratios=heights)
    truth_drawn = False
    for i, group in enumerate(groups):
        axes = canvas.add_subplot(grid[i // columns, i % columns])
        first = i - i % columns
        most = max(one.num_rows for one in groups[first : first + columns])
        truth_drawn |= _draw_group(axes, group, true, 0.62 * group.num_rows / most)
        units = {unit(one.name) for one in group.estimates[: group.num_rows]}
        value = quantity("value", units.pop() if len(units) == 1 else None)
        left_out = len(group.estimates) - group.num_rows
        axes.set_xlabel(f"{value}; {left_out} more not shown" if left_out else value)
    if truth_drawn:
        canvas.legend(handles=[truth_mark("true value")], loc="outside upper right")
    canvas.suptitle("Parameters", fontsize=8, fontweight="bold")


def _draw_group(axes: Axes, group: Group, true: Mapping[str, float], thickness: float) -> bool:
    """Bars of the given thickness in units of rows. True if some truth was drawn."""
    shown = group.estimates[: group.num_rows]
    rows = np.arange(len(shown))
    for lower, upper, color in (("lower95", "upper95", BAND95), ("lower68", "upper68", BAND68)):
        start = np.array([getattr(one, lower) for one in shown])
        end = np.array([getattr(one, upper) for one in shown])
        axes.barh(rows, end - start, thickness, start, color=color, linewidth=0)
    means = [one.mean for one in shown]
    axes.vlines(means, rows - thickness / 2, rows + thickness / 2, color=INFERRED, linewidth=1.6, capstyle="butt")
    true_rows = [y for y, one in enumerate(shown) if one.name in true]
    known = [true[shown[y].name] for y in true_rows]
    if known:
        axes.plot(known, true_rows, "D", color=TRUTH, markersize=3.6, markerfacecolor="none", markeredgewidth=1.0)
    names = [plain(one.label if group.by_element else one.parameter) for one in shown]
    axes.set_yticks(rows, names)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    if _decades(shown) > LOG_FROM and all(truth > 0 for truth in known):
        limits = [limit for one in shown for limit in (one.lower95, one.upper95) if np.isfinite(limit)]
        log_scale(axes, min(*limits, *known), max(*limits, *known))
    else:
        axes.use_sticky_edges = False
        axes.margins(x=0.05)
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_title(plain(group.title, 40))
    if not np.isfinite([one.mean for one in shown]).any():
        axes.text(0.5, 0.5, "not estimated", transform=axes.transAxes, ha="center", va="center", color=QUIET)
        if not known:
            axes.set_xticks([])
    return bool(known)
