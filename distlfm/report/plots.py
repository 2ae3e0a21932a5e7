"""Figures of results: one function a picture, plain results in, a matplotlib Figure out, no global state left behind.

Shapes: `L` forces, `P` outputs, `Q` times.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distlfm.errors import UsageError
from distlfm.inference.findings.scores import Tally
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray
from distlfm.report import words
from distlfm.report.panels import Layout, draw_curves, draw_forest, forest_height, grouped
from distlfm.report.style import (
    BAND68,
    BAND95,
    DASHED,
    INFERRED,
    MEASURED,
    TRUTH,
    handles,
    house,
    log_scale,
    new_figure,
    plain,
    q2_bins,
    quantity,
    say_instead,
)


def plot_fit(result: FitResult) -> Figure:
    """Outputs with data and bands, forces, and parameters; the truth dashed where it is known."""
    if result.instance.positions is not None:
        raise UsageError(
            f"Instance {result.id!r} has positions, and this figure shows curves against time.",
            "Plot fields in space and time as maps.",
        )
    layout = Layout(len(words.output_names(result)), len(result.force_names))
    groups = grouped(result.estimates)
    with house():
        heights = [layout.height]
        if groups:
            heights.append(forest_height(groups))
        figure = new_figure(sum(heights))
        places = figure.add_gridspec(len(heights), 1, height_ratios=heights)
        draw_curves(figure.add_subfigure(places[0]), result, layout)
        if groups:
            below, units = figure.add_subfigure(places[1]), words.parameter_units(result)
            draw_forest(below, groups, words.true_parameters(result), units.get)
    return figure


def plot_phase(result: FitResult) -> Figure:
    """The phase plane of one force and one output, such as prey and predator, with tubes of 68 and 95 %.

    Tubes are ellipses along the way, with each axis's own interval: how both errors go together is not shown.
    """
    names = words.output_names(result)
    if len(names) != 1 or len(result.force_names) != 1:
        raise UsageError(
            f"A phase plane has one force and one output; instance {result.id!r} has {len(result.force_names)} "
            f"and {len(names)}.",
            "Use plot_fit.",
        )
    force, output = result.grid.force, result.grid.outputs
    with house():
        figure = new_figure(3.6, 4.6)
        axes = figure.add_subplot()
        _tube(axes, (force.lower95, force.upper95), (output.lower95, output.upper95), BAND95)
        _tube(axes, (force.lower68, force.upper68), (output.lower68, output.upper68), BAND68)
        x, y = force.mean[0], output.mean[0]
        axes.plot(x, y, color=INFERRED, zorder=3)
        _arrows(axes, x, y)
        axes.plot(x[0], y[0], "o", color=INFERRED, markersize=5, zorder=5)
        axes.annotate("start", (x[0], y[0]), xytext=(6, -3), textcoords="offset points", va="top", zorder=5)
        known = _true_path(result)
        if known is not None:
            axes.plot(*known, color=TRUTH, linestyle=DASHED, linewidth=1.2, zorder=4, label="truth")
        axes.set_xlabel(quantity(result.force_names[0], words.force_unit(result)))
        axes.set_ylabel(quantity(names[0], result.instance.metadata.get("value_unit")))
        axes.margins(0.06)
        figure.legend(handles=handles(data=False, truth=known is not None), loc="outside upper center", ncols=2)
    return figure


def _tube(axes: Axes, x: tuple[FloatArray, FloatArray], y: tuple[FloatArray, FloatArray], color: str) -> None:
    centres = np.stack([(x[0][0] + x[1][0]) / 2, (y[0][0] + y[1][0]) / 2], -1)
    wide, high = x[1][0] - x[0][0], y[1][0] - y[0][0]
    usable = np.isfinite(centres).all(-1) & np.isfinite(wide) & np.isfinite(high)
    tube = EllipseCollection(
        wide[usable],
        high[usable],
        np.zeros(int(usable.sum())),
        units="xy",
        offsets=centres[usable],
        offset_transform=axes.transData,
        facecolor=color,
        linewidth=0,
        zorder=1,
    )
    axes.add_collection(tube)
    corners = np.concatenate([centres - np.stack([wide, high], -1) / 2, centres + np.stack([wide, high], -1) / 2])
    axes.update_datalim(corners[np.isfinite(corners).all(-1)])
    axes.autoscale_view()


def _arrows(axes: Axes, x: FloatArray, y: FloatArray, count: int = 4) -> None:
    """Heads along the way, evenly in time: which way the system goes."""
    for i in np.linspace(0, len(x) - 1, count + 2)[1:-1].astype(int):
        ahead = min(i + 1, len(x) - 1)
        style = {"arrowstyle": "-|>", "color": INFERRED, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}
        axes.annotate("", (x[ahead], y[ahead]), (x[i], y[i]), arrowprops=style, zorder=5)


def _true_path(result: FitResult) -> tuple[FloatArray, FloatArray] | None:
    """The true force against the true output, or against the data where those were taken at the same times."""
    force, output = words.true_force(result, 0), words.true_output(result, words.output_names(result)[0])
    if force is None:
        return None
    if output is not None:
        return force[1], output[1]
    instance, row = result.instance, words.instance_row(result, words.output_names(result)[0])
    if row is None or not np.array_equal(force[0], instance.times):
        return None
    seen = instance.mask[row]
    return force[1][seen], instance.values[row, seen]


def plot_trace(result: FitResult) -> Figure:
    """The bound against the iteration, and how far it was from its best, which shows whether the fit had settled."""
    trace = np.asarray(result.trace, dtype=np.float64)
    iterations = np.arange(len(trace))[np.isfinite(trace)]
    trace = trace[np.isfinite(trace)]
    with house():
        figure = new_figure(2.1)
        left, right = figure.subplots(1, 2)
        left.set_ylabel("bound")
        right.set_ylabel("distance to the best bound")
        for axes in (left, right):
            axes.set_xlabel("iteration")
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
            if len(trace) == 0:
                say_instead(axes, "no finite value")
        if len(trace):
            mark = "o" if len(trace) == 1 else ""
            left.plot(iterations, trace, color=INFERRED, marker=mark)
            gap = trace.max() - trace
            if (gap > 0).any():
                right.set_yscale("log")
                right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
                right.plot(iterations[gap > 0], gap[gap > 0], color=INFERRED, marker="o", markersize=2, linewidth=0.9)
            else:
                say_instead(right, "the bound did not change")
    return figure


def plot_overview(tally: Tally) -> Figure:
    """How fit quality, time and status spread over the instances of a run."""
    with house():
        figure = new_figure(3.7)
        (latent, output), (seconds, statuses) = figure.subplots(2, 2)
        _histogram(latent, _known(tally, "latent_q2"), "Q² of the latent force", "no true force is known", _q2_bins)
        _histogram(output, _known(tally, "output_q2"), "Q² of the outputs", "no score is known", _q2_bins)
        _histogram(seconds, _known(tally, "seconds"), "seconds an instance", "no time is known", _time_bins)
        names = [name for name, _ in tally.statuses.most_common()]
        bars = statuses.barh(range(len(names)), [tally.statuses[name] for name in names], 0.6, color=INFERRED)
        statuses.bar_label(bars, padding=2)
        statuses.set_yticks(range(len(names)), [plain(name.replace("_", " ")) for name in names])
        statuses.set_ylim(max(len(names), 3) - 0.4, -0.6)
        statuses.tick_params(axis="y", length=0)
        statuses.margins(x=0.12)
        statuses.set(xlabel="instances", ylabel="status")
        statuses.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return figure


def _known(tally: Tally, key: str) -> FloatArray:
    values = tally.column(key)
    finite: FloatArray = values[np.isfinite(values)]
    return finite


def _q2_bins(_: Axes, values: FloatArray) -> FloatArray:
    return q2_bins(values)


def _time_bins(axes: Axes, values: FloatArray) -> FloatArray:
    low, high = float(values.min()), float(values.max())
    if low <= 0 or high < 20 * low:
        # Equal times get bars of a visible width around them.
        margin = max(0.0, 0.05 * abs(high) - (high - low) / 2)
        return np.linspace(low - margin, high + margin, 21) if high > 0 else np.linspace(-0.5, 0.5, 21)
    log_scale(axes, low, high)
    return np.geomspace(low, high, 21)


def _histogram(
    axes: Axes, values: FloatArray, label: str, nothing: str, bins: Callable[[Axes, FloatArray], FloatArray]
) -> None:
    axes.set(xlabel=label, ylabel="instances")
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    if len(values) == 0:
        say_instead(axes, nothing)
        return
    axes.xaxis.set_major_locator(MaxNLocator(5))
    edges = bins(axes, values)
    axes.hist(np.clip(values, edges[0], edges[-1]), bins=list(edges), color=BAND68, edgecolor="white", linewidth=0.5)
    middle = float(np.median(values))
    if middle >= edges[0]:
        axes.axvline(middle, color=MEASURED, linewidth=1.0, linestyle=(0, (4, 2)))
    below = int((values < edges[0]).sum())
    note = f" ({below} below {edges[0]:g} in the leftmost bar)" if below else ""
    axes.set_title(f"median {middle:.3g}, n = {len(values)}{note}".replace("-", "−"), loc="right")
