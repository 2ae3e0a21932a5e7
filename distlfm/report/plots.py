"""Figures of results: one function per picture, plain results in, a matplotlib Figure out, no global state left behind.

Shapes: `L` forces, `P` outputs, `Q` times.
"""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure

from distlfm.answer import Band
from distlfm.errors import UsageError
from distlfm.inference.findings.scores import Tally
from distlfm.inference.result import FitResult
from distlfm.instance import FloatArray
from distlfm.report import style, words
from distlfm.report.panels import Layout, curves_and_forest, draw_curves, draw_histogram, draw_truth


def plot_fit(result: FitResult) -> Figure:
    """Outputs with data and bands, forces, and parameters; the truth dashed where it is known."""
    if result.instance.positions is not None:
        raise UsageError(
            f"Instance {result.id!r} has positions, and this figure shows curves against time.",
            "Plot fields in space and time as maps.",
        )
    layout = Layout(len(words.output_names(result)), len(result.force_names))
    true, units = words.true_parameters(result), words.parameter_units(result)
    return curves_and_forest(
        layout, lambda canvas: draw_curves(canvas, result, layout), result.estimates, true, units.get
    )


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
    with style.house():
        figure = style.new_figure(3.6, 4.6)
        axes = figure.add_subplot()
        _tube(axes, force, output, 95, style.BAND95)
        _tube(axes, force, output, 68, style.BAND68)
        x, y = force.mean[0], output.mean[0]
        axes.plot(x, y, color=style.INFERRED, zorder=3)
        _arrows(axes, x, y)
        axes.plot(x[0], y[0], "o", color=style.INFERRED, markersize=5, zorder=5)
        axes.annotate("start", (x[0], y[0]), xytext=(6, -3), textcoords="offset points", va="top", zorder=5)
        known = _true_path(result)
        draw_truth(axes, known)
        axes.set_xlabel(style.quantity(result.force_names[0], words.force_unit(result)))
        axes.set_ylabel(style.quantity(names[0], result.instance.metadata.get("value_unit")))
        axes.margins(0.06)
        figure.legend(handles=style.handles(data=False, truth=known is not None), loc="outside upper center", ncols=2)
    return figure


def _tube(axes: Axes, force: Band, output: Band, level: int, color: str) -> None:
    sides = (f"lower{level}", f"upper{level}")
    low, high = (np.stack([getattr(force, side)[0], getattr(output, side)[0]], -1) for side in sides)
    usable = np.isfinite(low).all(-1) & np.isfinite(high).all(-1)
    low, high = low[usable], high[usable]
    wide, tall = (high - low).T
    tube = EllipseCollection(
        wide, tall, np.zeros(len(low)), units="xy", offsets=(low + high) / 2, offset_transform=axes.transData
    )
    tube.set(facecolor=color, linewidth=0, zorder=1)
    axes.add_collection(tube)
    axes.update_datalim(np.concatenate([low, high]))
    axes.autoscale_view()


def _arrows(axes: Axes, x: FloatArray, y: FloatArray, count: int = 4) -> None:
    """Heads along the way, evenly in time: which way the system goes."""
    for i in np.linspace(0, len(x) - 1, count + 2)[1:-1].astype(int):
        ahead = min(i + 1, len(x) - 1)
        head = {"arrowstyle": "-|>", "color": style.INFERRED, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 9}
        axes.annotate("", (x[ahead], y[ahead]), (x[i], y[i]), arrowprops=head, zorder=5)


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
    with style.house():
        figure = style.new_figure(2.1)
        left, right = figure.subplots(1, 2)
        left.set_ylabel("bound")
        right.set_ylabel("distance to the best bound")
        for axes in (left, right):
            axes.set_xlabel("iteration")
            style.set_ticks(axes, x=5, integer=True)
            if len(trace) == 0:
                style.show_message(axes, "no finite value")
        if len(trace):
            mark = "o" if len(trace) == 1 else ""
            left.plot(iterations, trace, color=style.INFERRED, marker=mark)
            gap = trace.max() - trace
            far = gap > 0
            if far.any():
                right.set_yscale("log")
                right.yaxis.set_major_formatter("{x:g}")
                right.plot(iterations[far], gap[far], color=style.INFERRED, marker="o", markersize=2, linewidth=0.9)
            else:
                style.show_message(right, "the bound did not change")
    return figure


def plot_overview(tally: Tally) -> Figure:
    """How fit quality, time and status spread over the instances of a run."""
    with style.house():
        figure = style.new_figure(3.7)
        (latent, output), (seconds, statuses) = figure.subplots(2, 2)
        for axes, key, label, nothing, bins in (
            (latent, "latent_q2", "Q² of the latent force", "no true force is known", style.q2_bins),
            (output, "output_q2", "Q² of the outputs", "no score is known", style.q2_bins),
            (seconds, "seconds", "seconds an instance", "no time is known", _time_bins),
        ):
            draw_histogram(axes, tally.column(key), label, nothing, bins)
        names = [name for name, _ in tally.statuses.most_common()]
        bars = statuses.barh(range(len(names)), [tally.statuses[name] for name in names], 0.6, color=style.INFERRED)
        statuses.bar_label(bars, padding=2)
        statuses.set_yticks(range(len(names)), [style.plain(name.replace("_", " ")) for name in names])
        statuses.set_ylim(max(len(names), 3) - 0.4, -0.6)
        statuses.tick_params(axis="y", length=0)
        statuses.margins(x=0.12)
        statuses.set(xlabel="instances", ylabel="status")
        style.set_ticks(statuses, x=5, integer=True)
    return figure


def _time_bins(axes: Axes, values: FloatArray) -> FloatArray:
    low, high = float(values.min()), float(values.max())
    if low <= 0 or high < 20 * low:
        # Equal times get bars of a visible width around them.
        margin = max(0.0, 0.05 * abs(high) - (high - low) / 2)
        return np.linspace(low - margin, high + margin, 21) if high > 0 else np.linspace(-0.5, 0.5, 21)
    style.log_scale(axes, low, high)
    return np.geomspace(low, high, 21)
