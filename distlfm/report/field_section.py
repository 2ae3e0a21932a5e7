"""What the page shows of one field: its figures with captions, and in words what is on them.

Bands show the force along a line at a few times, and the parameters. Other figures let a reader doubt the fit: fitted
against observed, residuals where they are, the mesh.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from distlfm.answer import Band
from distlfm.answer.parameters import COLUMNS
from distlfm.inference.findings.residuals import Residuals, residuals
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray
from distlfm.report.field_maps import ERROR_MAP, MAP_DPI, plot_field, set_scales, time_title
from distlfm.report.field_view import FieldView, Mesh
from distlfm.report.page import Figure as PageFigure
from distlfm.report.page import embed
from distlfm.report.panels import draw_band, draw_forest, draw_truth, forest_height, grouped
from distlfm.report.style import INFERRED, MEASURED, QUIET, handles, house, new_figure, plain, quantity, set_ticks
from distlfm.report.words import assumed_words, force_unit, parameter_units, true_parameters

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
            where.set(xlabel=view.time_label, ylabel=view.position_label(0))
            where.set_title("Standardised residuals", fontweight="bold", loc="left")
        else:
            _draw_residuals_in_time(row[1], view, found)
            places, values = _by_place(found.positions, found.values)
            across, up = places[:, 0], places[:, 1]
            where.set(xlabel=view.position_label(0), ylabel=view.position_label(1))
            where.set_title("Residuals by place", fontweight="bold", loc="left")
            set_scales(where, places)
        size = float(np.clip(6000 / max(len(values), 1), 6.0, 22.0))
        where.scatter(
            across, up, c=values, s=size, cmap=ERROR_MAP, norm=limits, edgecolor=QUIET, linewidth=0.2, rasterized=True
        )
        figure.colorbar(
            ScalarMappable(limits, ERROR_MAP), ax=where, label="residual / its sd", extend="both", pad=0.015, aspect=18
        )
    return figure


def _draw_agreement(axes: Axes, view: FieldView, found: Residuals) -> None:
    axes.scatter(found.observed, found.fitted, s=4, color=MEASURED, alpha=0.5, linewidth=0, rasterized=True)
    ends = np.array([found.observed.min(), found.observed.max()])
    axes.plot(ends, ends, color=INFERRED, linewidth=0.9, zorder=0)
    axes.set(xlabel=quantity(f"observed {plain(view.output)}", view.value_unit), ylabel="posterior mean")
    axes.set_title("Fitted and observed", fontweight="bold", loc="left")
    set_ticks(axes, 4, 4)


def _draw_residuals_in_time(axes: Axes, view: FieldView, found: Residuals) -> None:
    axes.scatter(found.times, found.values, s=4, color=MEASURED, alpha=0.5, linewidth=0, rasterized=True)
    for height in (-1.96, 0.0, 1.96):
        axes.axhline(height, color=INFERRED, linewidth=0.8, linestyle="-" if height == 0 else (0, (3, 2)), zorder=0)
    axes.set(xlabel=view.time_label, ylabel="residual / its sd")
    axes.set_title("Residuals in time", fontweight="bold", loc="left")
    set_ticks(axes, 4)


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
            return _mesh_on_line(view, mesh, places)
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
            axes.set(xlabel=view.position_label(across), ylabel=view.position_label(up))
            set_scales(axes, mesh.nodes[:, [across, up]])
    return figure


def _mesh_on_line(view: FieldView, mesh: Mesh, places: FloatArray) -> Figure:
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


NUM_PROFILES = 4
PROFILE_HEIGHT = 1.9


def plot_profiles(view: FieldView) -> Figure:
    """The force along a line at a few times, with bands, and the truth where it is known."""
    assert view.dims == 1
    true = view.true_force
    source = view.result.grid if view.at_truth is None else view.at_truth
    times = view.times_shown(NUM_PROFILES)
    with house():
        figure = new_figure(PROFILE_HEIGHT, 7.2)
        row = figure.subplots(1, len(times), sharey=True, squeeze=False)[0]
        for axes, time in zip(row, times, strict=True):
            assert source.positions is not None
            here = np.flatnonzero(source.times == time)
            here = here[np.argsort(source.positions[here, 0])]
            band = Band(*(getattr(source.force, name)[:, here] for name in COLUMNS))
            draw_band(axes, source.positions[here, 0], band, 0)
            if true is not None:
                now = true.near(time)
                order = np.argsort(now.positions[:, 0])
                draw_truth(axes, (now.positions[order, 0], now.values[order]))
            axes.set(title=time_title(view, time), xlabel=view.position_label(0))
            set_ticks(axes, 4)
        row[0].set_ylabel(quantity(view.force, force_unit(view.result)))
        set_ticks(row[0], y=5)
        shown = handles(data=False, truth=true is not None)
        if true is not None:
            shown[-1].set_label(view.truth_name)
        figure.legend(handles=shown, loc="outside upper center", ncols=4)
    return figure


def plot_parameters(result: FitResult) -> Figure:
    """Parameters as a forest of intervals."""
    groups = grouped(result.estimates)
    with house():
        figure = new_figure(forest_height(groups))
        place = figure.add_subfigure(figure.add_gridspec(1, 1)[0])
        draw_forest(place, groups, true_parameters(result), parameter_units(result).get)
    return figure


def field_figures(result: FitResult, *, mapped: bool = True) -> list[PageFigure]:
    """Maps, profiles, residuals, mesh and parameters of a field that was fitted; unmapped, without the large ones."""
    view = FieldView(result)
    figures = [_maps(view)] if mapped else []
    if view.dims == 1:
        figures.append(_profiles(view))
    if mapped:
        figures += _checks(view)
    if result.estimates:
        alt = f"Instance {result.id}: intervals of {len(result.estimates)} parameters."
        figures.append(embed(plot_parameters(result), "Parameters with their intervals of 68 and 95 %.", alt))
    return figures


def _maps(view: FieldView) -> PageFigure:
    known = view.true_force is not None
    where = {
        1: "over time and position",
        2: "at a few times, on the mesh",
        3: "at a few times, in the layer around the middle",
    }[view.dims]
    truth = " The truth, which the fit did not see, and the error of the mean have maps of their own." if known else ""
    if view.truth_factor != 1.0:
        truth += (
            f" It has the shape of the inferred force at another scale, and is shown times {view.truth_factor:.3g}, "
            "which fits best: without a known sensitivity a force has no scale of its own."
        )
    caption = (
        f"The output with the data, and the inferred {view.force}, {where}; sd is the posterior standard deviation of "
        f"the field itself, without measurement noise.{truth}"
    )
    shown = "mean, standard deviation, truth and error" if known else "mean and standard deviation"
    alt = (
        f"Instance {view.result.id}: maps of {view.output} and of the inferred {view.force} {where}: {shown}. "
        f"{_extremes(view)}"
    )
    return embed(plot_field(view), caption, alt)


def _extremes(view: FieldView) -> str:
    """Where the force is largest, for those who do not see the map."""
    grid = view.result.grid
    assert grid.positions is not None
    top = int(grid.force.mean[0].argmax())
    place = ", ".join(f"{x:.3g}" for x in grid.positions[top])
    return f"The force is largest, {grid.force.mean[0, top]:.3g}, at time {grid.times[top]:.3g} and position {place}."


def _profiles(view: FieldView) -> PageFigure:
    times = ", ".join(f"{time:.3g}" for time in view.times_shown(NUM_PROFILES))
    truth = " Dashed: the truth." if view.true_force is not None else ""
    alt = f"Instance {view.result.id}: the inferred {view.force} against position at the times {times}, with bands."
    return embed(plot_profiles(view), f"The inferred {view.force} along the line at a few times.{truth}", alt)


def _checks(view: FieldView) -> list[PageFigure]:
    figures = []
    left = residuals(view.result)
    if left is not None and len(left):
        far = float((abs(left.values) > 1.96).mean())
        caption = (
            "What the fit leaves. A residual is divided by the deviation that it has if the model is right, so about "
            f"5 % should lie beyond ±1.96; {100 * far:.1f} % do. Colours in patches are a sign of a wrong equation."
        )
        alt = (
            f"Instance {view.result.id}: fitted against observed values, and {len(left)} standardised residuals where "
            f"they were observed; {100 * far:.1f} % are beyond 1.96."
        )
        figures.append(embed(plot_residuals(view, left), caption, alt))
    if view.mesh is not None:
        assumed = assumed_words(view.result.posterior.model.field.field)
        words = f"The mesh: {view.mesh.words}. {assumed}"
        alt = f"Instance {view.result.id}: the mesh of {view.mesh.words}, with the places of the data."
        figures.append(embed(plot_mesh(view), words, alt))
    return figures
