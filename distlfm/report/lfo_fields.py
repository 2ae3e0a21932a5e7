"""Maps of an operator's answer for a field: input, force and its deviation, and truth and error where that is known.

On a line a map is an image over time and position. In more dimensions it is a row of snapshots, of the middle layer in
space.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from numpy.typing import NDArray

from distlfm.instance import FloatArray, Instance
from distlfm.lfo import Answer, GridDim, OperatorSchema
from distlfm.lfo.grid import to_grid
from distlfm.report.fields import ERROR_MAP, LEVEL_MAP, MAP_DPI, SPREAD_MAP
from distlfm.report.style import house, new_figure, plain, quantity

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


def plot_field_answer(instance: Instance, answer: Answer, schema: OperatorSchema) -> Figure:
    """Maps of the first output and of the first force."""
    panels = _panels(instance, answer, schema)
    with house():
        labels = [quantity(name, schema.known_unit(name)) for name in answer.dims]
        return (_images if len(answer.dims) == 2 else _snapshots)(answer, panels, labels)


def _panels(instance: Instance, answer: Answer, schema: OperatorSchema) -> list[Panel]:
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


def true_map(instance: Instance, answer: Answer) -> FloatArray | None:
    """The first true force on the answer's grid, where known."""
    truth = instance.truth
    if truth is None or truth.force is None:
        return None
    known = np.isfinite(truth.force[:1])
    points = _points(truth.times, truth.positions)
    values, _ = to_grid(points, np.where(known, truth.force[:1], 0.0), known, _grid(answer), answer.shape)
    found: FloatArray = values[0].astype(np.float64)
    return found


def _grid(answer: Answer) -> tuple[GridDim, ...]:
    """The answer's own grid: that of a fit begins with the data, which may be later than the operator's does."""
    named = zip(answer.dims, answer.axes, strict=True)
    return tuple(GridDim(name=name, size=len(axis), start=axis[0], stop=axis[-1]) for name, axis in named)


def _images(answer: Answer, panels: list[Panel], labels: list[str]) -> Figure:
    rows = -(-len(panels) // 2)
    figure = new_figure(IMAGE_HEIGHT * rows + 0.2, dpi=MAP_DPI)
    places = figure.subplots(rows, 2, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, panel in zip(places, panels, strict=False):
        _draw(axes, panel.values.T, answer.axes[0], answer.axes[1], panel)
        figure.colorbar(
            ScalarMappable(panel.limits, panel.colours), ax=axes, label=panel.label, fraction=0.05, aspect=16
        )
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
    for axes in places[len(panels) :]:
        axes.remove()
    return figure


def _snapshots(answer: Answer, panels: list[Panel], labels: list[str]) -> Figure:
    chosen = np.unique(np.linspace(0, len(answer.times) - 1, SNAPSHOTS + 1).round().astype(int)[1:])
    figure = new_figure(SNAPSHOT_HEIGHT * len(panels) + 0.2, dpi=MAP_DPI)
    places = figure.subplots(len(panels), len(chosen), squeeze=False, sharex=True, sharey=True)
    for row, panel in zip(places, panels, strict=True):
        for axes, at in zip(row, chosen, strict=True):
            layer = panel.values[at]
            while layer.ndim > 2:
                layer = layer[..., layer.shape[-1] // 2]
            _draw(axes, layer.T, answer.axes[1], answer.axes[2], panel)
            axes.set_title(f"{panel.title}, t = {answer.times[at]:.3g}", fontsize=6.5)
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
