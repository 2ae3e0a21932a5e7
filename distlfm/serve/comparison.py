"""An operator's answer beside the full fit of the same instance: how far they agree, and a picture of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from distlfm.instance import FloatArray
from distlfm.lfo import Answer
from distlfm.lfo.answer import Estimate
from distlfm.pipeline.query_tables import COLUMNS
from distlfm.report.lfo_beside import plot_beside
from distlfm.serve.answers import Shown, in_words

CURVES = "Blue: the operator. Green, dash-dotted with thin outlines: the full fit. Where they part, doubt both."
MAPS = "Maps of the full fit, to be read beside the operator's above. Where they part, doubt both."
"""What the picture of a comparison shows: of a series, and of a field."""


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
    """How far two answers agree where the instance was observed; numbers and a sentence for each force, and words."""
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
        unit = schema.known_unit(name) or ""
        share = f", {off / spread:.0%} of the fit's range" if spread > 0 else ""
        text = (
            f"{name}: the means of operator and fit differ by {off:.3g} {unit}".rstrip()
            + f" (root mean square{share}); {inside:.0%} of the fit's mean is inside the operator's 95 % interval."
        )
        forces.append({"force": name, "difference": off, "inside_95": inside, "text": text})
    caption = CURVES if len(answer.dims) == 1 else MAPS
    return {"forces": forces, "caption": caption, "text": f"Full fit. {in_words(fitted, schema)}"}


def plot_comparison(shown: Shown, fitted: Answer) -> Figure:
    """Forces of both."""
    return plot_beside(shown.instance, shown.answer, fitted, shown.schema)


def parameter_rows(shown: Shown, fitted: Answer) -> list[dict[str, Any]]:
    """Parameters by name, with the estimate of the operator, of the fit, or of both."""
    mine = {one.name: one for one in shown.answer.parameters}
    other = {one.name: one for one in fitted.parameters}
    rows = []
    for name in dict.fromkeys([*mine, *other]):
        unit = shown.schema.known_unit(name)
        rows.append({"name": name, "unit": unit, "operator": _ends(mine.get(name)), "fit": _ends(other.get(name))})
    return rows


def _at(answer: Answer, row: int, points: FloatArray) -> dict[str, FloatArray]:
    places = points[:, 1:] if points.shape[1] > 1 else None
    return {name: values[row] for name, values in answer.at(points[:, 0], places).items()}


def _ends(one: Estimate | None) -> dict[str, float | None] | None:
    if one is None:
        return None
    numbers = {name: float(getattr(one, name)) for name in ("mean", "lower95", "upper95")}
    return {name: value if np.isfinite(value) else None for name, value in numbers.items()}
