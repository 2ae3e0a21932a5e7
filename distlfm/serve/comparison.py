"""An operator's answer beside the full fit of the same instance: how far they agree, and a picture of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from distlfm.instance import FloatArray
from distlfm.lfo import Answer
from distlfm.lfo.answer import Estimate
from distlfm.pipeline.query_tables import COLUMNS
from distlfm.report.curves import MAX_PANELS, WIDE_HEIGHT, draw_band
from distlfm.report.lfo_fields import known_unit, plot_field_answer
from distlfm.report.lfo_plots import band_of, true_curve
from distlfm.report.style import BAND95, INFERRED, TRUTH, house, new_figure, plain, quantity
from distlfm.serve.answers import Shown, in_words

FITTED = "#00664B"
"""Green of Okabe and Ito, darker: told from the operator's blue by its dots and its outline too, and in grey print."""

DOTS = (0, (5, 1, 1, 1))


def restored(content: Mapping[str, Any], kinds: Mapping[str, str], like: Answer) -> Answer:
    """The answer that plain data of `as_data` describe."""
    forces = tuple(content["forces"])
    axes = tuple(np.array(axis, float) for axis in content["dims"].values())
    curves: dict[str, Any] = {
        name: np.array([content["forces"][force][name] for force in forces], float) for name in COLUMNS
    }
    parameters = tuple(
        Estimate(name, kinds[name], *(np.nan if row[column] is None else row[column] for column in COLUMNS))
        for name, row in content["parameters"].items()
    )
    return replace(like, forces=forces, axes=axes, **curves, parameters=parameters, novelty=0.0, warning=None)


def agreement(shown: Shown, fitted: Answer) -> dict[str, Any]:
    """How far two answers agree where the instance was observed; numbers and a sentence for each force."""
    answer, schema = shown.answer, shown.schema
    first, last = shown.instance.times[0], shown.instance.times[-1]
    points = fitted.points[(fitted.points[:, 0] >= first) & (fitted.points[:, 0] <= last)]
    forces = []
    for i, name in enumerate(answer.forces):
        if name not in fitted.forces or not len(points):
            continue
        mine, other = _at(answer, i, points), _at(fitted, fitted.forces.index(name), points)
        off = float(np.sqrt(np.mean((mine["mean"] - other["mean"]) ** 2)))
        spread = float(np.ptp(other["mean"]))
        inside = float(np.mean((other["mean"] >= mine["lower95"]) & (other["mean"] <= mine["upper95"])))
        unit = known_unit(schema, name) or ""
        share = f", {off / spread:.0%} of the fit's range" if spread > 0 else ""
        text = (
            f"{name}: the means of operator and fit differ by {off:.3g} {unit}".rstrip()
            + f" (root mean square{share}); {inside:.0%} of the fit's mean is inside the operator's 95 % interval."
        )
        forces.append({"force": name, "difference": off, "inside_95": inside, "text": text})
    return {"forces": forces, "text": f"Full fit. {in_words(fitted, schema)}"}


def plot_comparison(shown: Shown, fitted: Answer) -> Figure:
    """Forces of both on the same axes; of a field, the maps of the fit, to be read beside the operator's."""
    answer, schema = shown.answer, shown.schema
    if len(answer.dims) > 1:
        return plot_field_answer(shown.instance, fitted, schema)
    forces = answer.forces[:MAX_PANELS]
    with house():
        figure = new_figure(WIDE_HEIGHT * 1.3 * len(forces) + 0.4)
        panels = figure.subplots(len(forces), 1, squeeze=False)[:, 0]
        truth = False
        for i, (axes, force) in enumerate(zip(panels, forces, strict=True)):
            draw_band(axes, answer.times, band_of(answer), i)
            if force in fitted.forces:
                _outline(axes, fitted, fitted.forces.index(force))
            known = true_curve(shown.instance, i)
            if known is not None:
                axes.plot(*known, color=TRUTH, linestyle=(0, (3, 1.5)), linewidth=1.2, zorder=3)
                truth = True
            axes.set_ylabel(quantity(force, known_unit(schema, force)))
            axes.set_xlabel(quantity("time", known_unit(schema, "time")))
            axes.set_title(f"Latent force {plain(force)}" if len(forces) > 1 else "Latent force", fontweight="bold")
            axes.yaxis.set_major_locator(MaxNLocator(4))
        figure.legend(handles=_legend(truth), loc="outside upper center", ncols=3)
    return figure


def parameter_rows(shown: Shown, fitted: Answer) -> list[dict[str, Any]]:
    """Parameters by name, with the estimate of the operator, of the fit, or of both."""
    mine = {one.name: one for one in shown.answer.parameters}
    other = {one.name: one for one in fitted.parameters}
    rows = []
    for name in dict.fromkeys([*mine, *other]):
        unit = known_unit(shown.schema, name)
        rows.append({"name": name, "unit": unit, "operator": _ends(mine.get(name)), "fit": _ends(other.get(name))})
    return rows


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
    return [*found, *([Line2D([], [], color=TRUTH, linestyle=(0, (3, 1.5)), label="truth")] if truth else [])]


def _at(answer: Answer, row: int, points: FloatArray) -> dict[str, FloatArray]:
    places = points[:, 1:] if points.shape[1] > 1 else None
    return {name: values[row] for name, values in answer.at(points[:, 0], places).items()}


def _ends(one: Estimate | None) -> dict[str, float | None] | None:
    if one is None:
        return None
    numbers = {name: float(getattr(one, name)) for name in ("mean", "lower95", "upper95")}
    return {name: value if np.isfinite(value) else None for name, value in numbers.items()}
