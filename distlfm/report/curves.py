"""Curves against time: outputs with their data in a grid of panels, forces below on the same axis."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import MaxNLocator

from distlfm.answer import Band
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray
from distlfm.report.style import BAND68, BAND95, DASHED, INFERRED, MEASURED, QUIET, TRUTH, handles, plain, quantity
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
