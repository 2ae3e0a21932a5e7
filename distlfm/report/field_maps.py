"""Maps of fields in space and time: output and force, and their truth and error where that is known.

On a line a map is an image over time and position. In the plane it is a row of snapshots on the mesh; in space, of
the layer around the middle. Sequential colours are for means and deviations, diverging ones, centred at zero, for
errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.tri import Triangulation
from scipy.interpolate import RBFInterpolator
from scipy.spatial import cKDTree

from distlfm.instance import BoolArray, FloatArray
from distlfm.report.field_view import COMPARABLE, NUM_SNAPSHOTS, Cloud, FieldView
from distlfm.report.style import MEASURED, house, new_figure, plain, quantity, set_ticks
from distlfm.report.words import force_unit

LEVEL_MAP, SPREAD_MAP, ERROR_MAP = "viridis", "cividis", "RdBu_r"
IMAGE_HEIGHT, SNAPSHOT_HEIGHT = 1.75, 1.7
LAYER = 0.15
"""Share of the points, nearest to the middle, that are the layer shown of a field in three dimensions."""

NEIGHBOURS = 16
"""From this many known nodes the others are filled in, where a field is known at some nodes only."""

USUAL = 0.97
"""Share of the deviations that the colours tell apart: corners of the domain are far less certain than the rest."""

MAP_DPI = 110
"""Pixels an inch of maps, which are smooth; marks stay readable, and a page stays small."""

ROUND_ENOUGH = 4.0
"""Domains with sides up to this ratio are drawn with equal scales."""


@dataclass(frozen=True)
class Panel:
    """One map, or one row of snapshots."""

    title: str
    label: str
    cloud: Cloud
    colours: str
    limits: Normalize


def plot_field(view: FieldView) -> Figure:
    """Mean and deviation of output and force; where a truth is known, the truth and the error of the mean."""
    panels = _panels(view)
    with house():
        if view.dims == 1:
            figure, places = draw_images(panels, view.time_label, view.position_label(0))
            _mark_data(places[0], view)
            figure.legend(handles=_mark_handles(view), loc="outside upper center", ncols=2)
            return figure
        return _snapshots(view, [panel for panel in panels if panel.title != f"{plain(view.output)}: sd"])


# ---- what is shown ---------------------------------------------------------------------------------------------------


def _panels(view: FieldView) -> list[Panel]:
    """Maps of the output, then of the force."""
    grid = view.result.grid
    panels = []
    for name, unit, band, true, kind in (
        (view.output, view.value_unit, grid.outputs, view.true_output, "outputs"),
        (view.force, force_unit(view.result), grid.force, view.true_force, "force"),
    ):
        mean, sd = view.cloud(grid, band, "mean"), view.cloud(grid, band, "sd")
        known = None if true is None else (true, view.error(true, kind))
        truth = view.truth_name if kind == "force" else "truth"
        panels += band_panels(name, unit, ("posterior mean", mean), sd, truth, known)
    return panels


def band_panels(
    name: str, unit: str | None, level: tuple[str, Cloud], sd: Cloud, truth: str, known: tuple[Cloud, Cloud] | None
) -> list[Panel]:
    """Pairs of maps: level and deviation, and where they are known, truth and error.

    level: what the mean is called, and its values. truth: what the truth is called.
    """
    word, mean = level
    title, label = plain(name), quantity(name, unit)
    limits, true_limits = _shared(mean.values, None if known is None else known[0].values)
    panels = [Panel(f"{title}: {word}", label, mean, LEVEL_MAP, limits)]
    top = sd.values[np.isfinite(sd.values) & (sd.values > 0)]
    limits = Normalize(0.0, float(np.quantile(top, USUAL)) if len(top) else 1.0)
    panels.append(Panel(f"{title}: sd", "sd", sd, SPREAD_MAP, limits))
    if known is not None:
        true, error = known
        end = float(np.max(np.abs(error.values), where=np.isfinite(error.values), initial=0.0)) or 1.0
        panels.append(Panel(f"{title}: {truth}", label, true, LEVEL_MAP, true_limits))
        panels.append(Panel(f"{title}: mean − {truth}", "error", error, ERROR_MAP, Normalize(-end, end)))
    return panels


def _shared(first: FloatArray, second: FloatArray | None) -> tuple[Normalize, Normalize]:
    """Limits of the colours of two maps: common ones if one does not flatten the other."""
    own, other = levels(first), levels(first if second is None else second)
    ratio = np.ptp(own.inverse([0.0, 1.0])) / np.ptp(other.inverse([0.0, 1.0]))
    if second is None or not 1 / COMPARABLE < ratio < COMPARABLE:
        return own, other
    both = levels(np.concatenate([first, second]))
    return both, both


def levels(values: FloatArray) -> Normalize:
    """Limits of colours from the least to the largest value."""
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    return Normalize(low, high) if high > low else Normalize(low - 0.5, high + 0.5)


# ---- on a line -------------------------------------------------------------------------------------------------------


def draw_images(panels: Sequence[Panel], time: str, position: str) -> tuple[Figure, list[Axes]]:
    """Maps over time and position in two columns, under these labels; the figure, and the axes of each panel."""
    rows = -(-len(panels) // 2)
    figure = new_figure(IMAGE_HEIGHT * rows + 0.25, dpi=MAP_DPI)
    places = figure.subplots(rows, 2, squeeze=False, sharex=True, sharey=True).ravel()
    for axes, panel in zip(places, panels, strict=False):
        _draw_image(axes, panel)
        colour_bar(figure, [axes], panel, fraction=0.05, aspect=16)
        axes.set(xlabel=time, ylabel=position)
        axes.label_outer()
    for axes in places[len(panels) :]:
        axes.remove()
    return figure, list(places[: len(panels)])


def _draw_image(axes: Axes, panel: Panel) -> None:
    cloud = panel.cloud
    style: dict[str, Any] = {"cmap": panel.colours, "norm": panel.limits, "rasterized": True}
    lattice = cloud.lattice()
    if lattice is not None:
        axes.pcolormesh(*lattice, shading="gouraud", **style)
    else:
        axes.scatter(cloud.times, cloud.positions[:, 0], c=cloud.values, s=8, linewidth=0, **style)
    axes.set_title(panel.title, fontweight="bold", loc="left")
    set_ticks(axes, 5, 5)


def _mark_data(axes: Axes, view: FieldView) -> None:
    """Points that were fitted as dots; those held back as small rings."""
    held_out, seen = view.held_out, view.training
    if held_out is not None:
        axes.scatter(held_out.times, held_out.positions[:, 0], **_RING, rasterized=True)
    axes.scatter(seen.times, seen.positions[:, 0], **_DOT, rasterized=True)


_DOT: dict[str, Any] = {"s": 5.0, "facecolor": MEASURED, "edgecolor": "white", "linewidth": 0.35}
_RING: dict[str, Any] = {"s": 1.4, "facecolor": "white", "edgecolor": "none", "alpha": 0.75}


def _mark_handles(view: FieldView) -> list[Artist]:
    dot = Line2D([], [], marker="o", markersize=3.5, color=MEASURED, markeredgecolor="white", linestyle="none")
    dot.set_label(f"fitted ({len(view.training.values)} points)")
    artists: list[Artist] = [dot]
    if view.held_out is not None:
        ring = Line2D([], [], marker="o", markersize=2.2, color="white", markeredgecolor="#999999", linestyle="none")
        ring.set_markeredgewidth(0.5)
        ring.set_label(f"held back for scoring ({len(view.held_out.values)} points)")
        artists.append(ring)
    return artists


# ---- in the plane and in space ---------------------------------------------------------------------------------------


def _snapshots(view: FieldView, panels: Sequence[Panel]) -> Figure:
    times = view.times_shown(NUM_SNAPSHOTS)
    figure = new_figure(SNAPSHOT_HEIGHT * len(panels) + 0.2, dpi=MAP_DPI)
    parts = figure.subfigures(len(panels), 1, squeeze=False)[:, 0]
    for part, panel in zip(parts, panels, strict=True):
        row = part.subplots(1, len(times), sharex=True, sharey=True, squeeze=False)[0]
        for axes, time in zip(row, times, strict=True):
            now = panel.cloud.near(time)
            draw_plane(axes, view, now, panel.colours, panel.limits)
            axes.set_title(time_title(view, float(now.times[0])))
            if panel is panels[-1]:
                axes.set_xlabel(view.position_label(0))
        row[0].set_ylabel(view.position_label(1))
        part.suptitle(panel.title, fontsize=8, fontweight="bold", x=0.01, ha="left")
        colour_bar(part, list(row), panel, aspect=14)
    return figure


def colour_bar(canvas: Figure | SubFigure, axes: list[Axes], panel: Panel, **sizes: Any) -> None:
    """What the colours of a panel mean, beside its axes; pointed where values are beyond its limits."""
    top = panel.limits.vmax
    beyond = top is not None and bool((panel.cloud.values > top).any())
    shown = ScalarMappable(panel.limits, panel.colours)
    canvas.colorbar(shown, ax=axes, label=panel.label, pad=0.015, extend="max" if beyond else "neither", **sizes)


def draw_plane(axes: Axes, view: FieldView, cloud: Cloud, colours: str, limits: Normalize) -> None:
    """Values at one time: on the mesh's triangles, or between the points; of a body, its middle layer."""
    places, values = cloud.positions, cloud.values
    style: dict[str, Any] = {"cmap": colours, "norm": limits, "rasterized": True}
    if view.dims > 2:
        layer = _middle(places)
        axes.scatter(places[layer, 0], places[layer, 1], c=values[layer], s=9, linewidth=0, **style)
    else:
        places, values = _on_all_nodes(view, places, values)
        triangles = _triangles(view, places)
        if triangles is None or not np.isfinite(values).all():
            axes.scatter(places[:, 0], places[:, 1], c=values, s=9, linewidth=0, **style)
        else:
            axes.tripcolor(triangles, values, shading="gouraud", **style)
    set_scales(axes, places)


def set_scales(axes: Axes, places: FloatArray) -> None:
    """Equal scales of both axes, unless the domain is long and thin; few ticks."""
    sides = np.ptp(places[:, :2], axis=0)
    if sides.min() > 0 and sides.max() / sides.min() <= ROUND_ENOUGH:
        axes.set_aspect("equal")
    set_ticks(axes, 3, 3)


def _middle(places: FloatArray) -> BoolArray:
    """The layer of points around the middle of the last dimension."""
    last = places[:, -1]
    distance = np.abs(last - (last.min() + last.max()) / 2)
    nearest: BoolArray = distance <= float(np.quantile(distance, LAYER)) + 1e-9 * float(np.ptp(last))
    return nearest


def _on_all_nodes(view: FieldView, places: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Values at all nodes of the mesh, if the places are some of them: a smooth field between its neighbours."""
    mesh = view.mesh
    if mesh is None or len(places) >= len(mesh.nodes) or len(places) <= NEIGHBOURS or not np.isfinite(values).all():
        return places, values
    distance, _ = cKDTree(mesh.nodes).query(places)
    if np.max(distance) > 0:
        return places, values
    return mesh.nodes, RBFInterpolator(places, values, neighbors=NEIGHBOURS)(mesh.nodes)


def _triangles(view: FieldView, places: FloatArray) -> Triangulation | None:
    """The mesh's triangles if the points are its nodes; else triangles between the points, inside the mesh."""
    mesh = view.mesh
    if mesh is not None and mesh.nodes.shape == places.shape and np.array_equal(mesh.nodes, places):
        return Triangulation(places[:, 0], places[:, 1], mesh.cells)
    if len(places) < 3 or np.ptp(places, axis=0).min() <= 0:
        return None
    try:
        triangulation = Triangulation(places[:, 0], places[:, 1])
    except (RuntimeError, ValueError):  # all on one line
        return None
    if mesh is not None:
        # Between points across a hole or a notch there is no field.
        inside = Triangulation(mesh.nodes[:, 0], mesh.nodes[:, 1], mesh.cells).get_trifinder()
        middle = places[triangulation.triangles].mean(1)
        outside = np.asarray(inside(middle[:, 0], middle[:, 1]), dtype=np.int64) < 0
        if outside.all():
            return None
        triangulation.set_mask(outside)
    return triangulation


def time_title(view: FieldView, time: float) -> str:
    """A time with its unit."""
    unit = view.instance.metadata.get("time_unit")
    return f"t = {time:.4g}{f' {plain(unit, 12)}' if unit else ''}"
