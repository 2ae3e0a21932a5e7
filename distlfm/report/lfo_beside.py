"""An operator's answer and a full fit of the same instance in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from distlfm.inference.result import Band, FitResult
from distlfm.instance import FloatArray, Instance
from distlfm.lfo import Answer, OperatorSchema
from distlfm.lfo.answer import Estimate
from distlfm.report.curves import MAX_PANELS, WIDE_HEIGHT, draw_band
from distlfm.report.lfo_fields import plot_field_answer
from distlfm.report.lfo_plots import band_of, true_curve
from distlfm.report.style import BAND95, DASHED, INFERRED, TRUTH, house, new_figure, plain, quantity

FITTED = "#00664B"
"""Green of Okabe and Ito, darker: told from the operator's blue by its dots and its outline too, and in grey print."""

DOTS = (0, (5, 1, 1, 1))


def as_answer(result: FitResult, axes: Sequence[FloatArray], schema: OperatorSchema) -> Answer:
    """A fit in the form of an operator's answer, on the same grid as far as the data have begun."""
    times = axes[0][axes[0] >= result.instance.times[0]]
    if len(times) < 2:  # the data lie outside of the operator's span
        times = np.linspace(result.instance.times[0], result.instance.times[-1], len(axes[0]))
    grid = (times, *axes[1:])
    points = np.stack([one.ravel() for one in np.meshgrid(*grid, indexing="ij")], -1)
    places = points[:, 1:] if points.shape[1] > 1 else None
    band = result.predict(points[:, 0], places).force
    shape = (len(result.force_names), *(len(axis) for axis in grid))
    curves = {name: getattr(band, name).reshape(shape) for name in Band.__dataclass_fields__}
    numbers = Estimate._fields[2:]
    parameters = tuple(Estimate(p.name, p.kind, *(getattr(p, name) for name in numbers)) for p in result.parameters)
    dims = tuple(dim.name for dim in schema.dims)
    return Answer(
        id=result.id,
        forces=result.force_names,
        dims=dims,
        axes=grid,
        **curves,
        parameters=parameters,
        novelty=0.0,
        warning=None,
    )


def plot_beside(instance: Instance, answer: Answer, fitted: Answer, schema: OperatorSchema) -> Figure:
    """Forces of both on the same axes; of a field, the maps of the fit, to be read beside the operator's."""
    if len(answer.dims) > 1:
        return plot_field_answer(instance, fitted, schema)
    forces = answer.forces[:MAX_PANELS]
    with house():
        figure = new_figure(WIDE_HEIGHT * 1.3 * len(forces) + 0.4)
        panels = figure.subplots(len(forces), 1, squeeze=False)[:, 0]
        truth = False
        for i, (axes, force) in enumerate(zip(panels, forces, strict=True)):
            draw_band(axes, answer.times, band_of(answer), i)
            if force in fitted.forces:
                _outline(axes, fitted, fitted.forces.index(force))
            known = true_curve(instance, i)
            if known is not None:
                axes.plot(*known, color=TRUTH, linestyle=DASHED, linewidth=1.2, zorder=3)
                truth = True
            axes.set_ylabel(quantity(force, schema.known_unit(force)))
            axes.set_xlabel(quantity("time", schema.known_unit("time")))
            axes.set_title(f"Latent force {plain(force)}" if len(forces) > 1 else "Latent force", fontweight="bold")
            axes.yaxis.set_major_locator(MaxNLocator(4))
        figure.legend(handles=_legend(truth), loc="outside upper center", ncols=3)
    return figure


def _outline(axes: Any, fitted: Answer, row: int) -> None:
    for side in ("lower95", "upper95"):
        axes.plot(fitted.times, getattr(fitted, side)[row], color=FITTED, linewidth=0.8, zorder=4)
    axes.plot(fitted.times, fitted.mean[row], color=FITTED, linestyle=DOTS, linewidth=1.4, zorder=5)


def _legend(truth: bool) -> list[Any]:
    found: list[Any] = [
        Line2D([], [], color=INFERRED, label="operator: mean"),
        Patch(color=BAND95, linewidth=0, label="operator: 95 % interval (68 % darker)"),
        Line2D([], [], color=FITTED, linestyle=DOTS, label="full fit: mean"),
        Line2D([], [], color=FITTED, linewidth=0.8, label="full fit: ends of its 95 % interval"),
    ]
    return [*found, *([Line2D([], [], color=TRUTH, linestyle=DASHED, label="truth")] if truth else [])]
