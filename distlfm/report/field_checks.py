"""Figures that let a reader doubt the fit of a field: fitted against observed, residuals where they are, the mesh."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distlfm.inference.residuals import Residuals
from distlfm.instance import FloatArray
from distlfm.report.field_view import FieldView
from distlfm.report.fields import ERROR_MAP, MAP_DPI, set_scales
from distlfm.report.style import INFERRED, MEASURED, QUIET, house, new_figure, plain, quantity

RESIDUAL_LIMIT = 3.0
"""Where the colours of standardised residuals end."""


def plot_residuals(view: FieldView, found: Residuals) -> Figure:
    """Fitted against observed values, and standardised residuals where they are."""
    limits = Normalize(-RESIDUAL_LIMIT, RESIDUAL_LIMIT)
    with house():
        figure = new_figure(2.5 if view.dims == 1 else 2.3, dpi=MAP_DPI)
        ratios = [1.0, 1.9] if view.dims == 1 else [1.0, 1.1, 1.3]
        row = figure.subplots(1, len(ratios), width_ratios=ratios)
        _draw_agreement(row[0], view, found)
        where = row[-1]
        assert found.positions is not None
        if view.dims == 1:
            across, up, values = found.times, found.positions[:, 0], found.values
            where.set_xlabel(view.time_label)
            where.set_ylabel(view.position_label(0))
            where.set_title("Standardised residuals", fontweight="bold", loc="left")
        else:
            _draw_residuals_in_time(row[1], view, found)
            places, values = _by_place(found.positions, found.values)
            across, up = places[:, 0], places[:, 1]
            where.set_xlabel(view.position_label(0))
            where.set_ylabel(view.position_label(1))
            where.set_title("Residuals by place", fontweight="bold", loc="left")
            set_scales(where, places)
        size = float(np.clip(6000 / max(len(values), 1), 6.0, 22.0))
        where.scatter(
            across, up, c=values, s=size, cmap=ERROR_MAP, norm=limits, edgecolor=QUIET, linewidth=0.2, rasterized=True
        )
        figure.colorbar(
            ScalarMappable(limits, ERROR_MAP),
            ax=where,
            label="residual / its sd",
            extend="both",
            pad=0.015,
            aspect=18,
        )
    return figure


def _draw_agreement(axes: Axes, view: FieldView, found: Residuals) -> None:
    axes.scatter(found.observed, found.fitted, s=4, color=MEASURED, alpha=0.5, linewidth=0, rasterized=True)
    ends = np.array([found.observed.min(), found.observed.max()])
    axes.plot(ends, ends, color=INFERRED, linewidth=0.9, zorder=0)
    axes.set_xlabel(quantity(f"observed {plain(view.output)}", view.value_unit))
    axes.set_ylabel("posterior mean")
    axes.set_title("Fitted and observed", fontweight="bold", loc="left")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(4))


def _draw_residuals_in_time(axes: Axes, view: FieldView, found: Residuals) -> None:
    axes.scatter(found.times, found.values, s=4, color=MEASURED, alpha=0.5, linewidth=0, rasterized=True)
    for height in (-1.96, 0.0, 1.96):
        axes.axhline(height, color=INFERRED, linewidth=0.8, linestyle="-" if height == 0 else (0, (3, 2)), zorder=0)
    axes.set_xlabel(view.time_label)
    axes.set_ylabel("residual / its sd")
    axes.set_title("Residuals in time", fontweight="bold", loc="left")
    axes.xaxis.set_major_locator(MaxNLocator(4))


def _by_place(positions: FloatArray, values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Distinct places [X, d], and the sum of the residuals there over the root of their number."""
    places, index, counts = np.unique(positions, axis=0, return_inverse=True, return_counts=True)
    return places, np.bincount(np.ravel(index), values) / np.sqrt(counts)


def plot_mesh(view: FieldView) -> Figure:
    """The mesh, and where the data are."""
    mesh = view.mesh
    assert mesh is not None
    places = np.unique(view.training.positions, axis=0)
    with house():
        if view.dims == 1:
            return _mesh_on_line(view, places)
        figure = new_figure(3.0, 4.4) if view.dims == 2 else new_figure(2.8, 6.4)
        panels = [(0, 1)] if view.dims == 2 else [(0, 1), (0, 2)]
        for i, (across, up) in enumerate(panels):
            axes = figure.add_subplot(1, len(panels), i + 1)
            if view.dims == 2:
                axes.triplot(
                    mesh.nodes[:, 0], mesh.nodes[:, 1], mesh.cells, color=QUIET, linewidth=0.3, rasterized=True
                )
            else:
                axes.plot(mesh.nodes[:, across], mesh.nodes[:, up], ".", color=QUIET, markersize=1.5, rasterized=True)
            axes.plot(places[:, across], places[:, up], "o", color=INFERRED, markersize=2.5, label="data")
            axes.set_xlabel(view.position_label(across))
            axes.set_ylabel(view.position_label(up))
            set_scales(axes, mesh.nodes[:, [across, up]])
    return figure


def _mesh_on_line(view: FieldView, places: FloatArray) -> Figure:
    mesh = view.mesh
    assert mesh is not None
    rows = [("nodes", mesh.nodes[:, 0], MEASURED), ("data", places[:, 0], INFERRED)]
    if mesh.inducing is not None:
        rows.append(("inducing points", mesh.inducing[:, 0], QUIET))
    figure = new_figure(0.95)
    axes = figure.add_subplot()
    for height, (_, where, colour) in enumerate(rows):
        axes.vlines(where, height - 0.32, height + 0.32, color=colour, linewidth=0.7)
    axes.set_yticks(range(len(rows)), [f"{name} ({len(np.unique(where))})" for name, where, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(view.position_label(0))
    return figure
