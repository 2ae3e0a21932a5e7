"""An operator's answer as a page needs it: numbers, tables as CSV, pictures, and in words what a picture shows.

The second part puts it beside the full fit of the same instance: how far they agree, and a picture of both.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from distlfm.answer.parameters import COLUMNS, Estimated
from distlfm.instance import FloatArray, Instance
from distlfm.lfo import OperatorAnswer, OperatorSchema
from distlfm.queries.asking import Tables
from distlfm.queries.figures import true_elements
from distlfm.report.operator_plots import plot_answer, plot_beside

CURVES = (
    "Black points were measured; the blue line is the inferred force, with its 68 % (darker) and 95 % (lighter) "
    "intervals. Dashed vermilion is the truth, where the data hold one."
)
MAPS = (
    "Maps of what was measured, interpolated between the observations, and of the inferred force with its standard "
    "deviation; then of the truth and of the error, where the data hold one."
)
"""What the picture of an answer shows: of a series, and of a field."""

MOST_POINTS = 20_000
"""Points of observed data that a page is sent; the rest is in the file that the site has."""


@dataclass(frozen=True)
class Written:
    """An answer as files, and as plain data."""

    force: str
    parameters: str
    content: dict[str, Any]


def written(answer: OperatorAnswer, instance: Instance, schema: OperatorSchema) -> Written:
    """The same tables as those of `distlfm query`."""
    force, parameters, document = io.StringIO(), io.StringIO(), io.StringIO()
    tables = Tables(schema, force, parameters, document)
    tables.add(answer, instance)
    tables.close()
    return Written(force.getvalue(), parameters.getvalue(), json.loads(document.getvalue())["answers"][0])


@dataclass(frozen=True)
class Shown:
    """An instance and its answer. source: the key of where the instance is from."""

    key: str
    source: str
    instance: Instance
    answer: OperatorAnswer
    schema: OperatorSchema
    seconds: float

    @cached_property
    def written(self) -> Written:
        return written(self.answer, self.instance, self.schema)

    def figure(self) -> Figure:
        return plot_answer(self.instance, self.answer, self.schema, true_elements(self.instance, self.schema))

    def content(self) -> dict[str, Any]:
        """All that the page shows."""
        schema = self.schema
        units = {name: unit for name in schema.units if (unit := schema.known_unit(name))}
        kinds = dict(zip(schema.parameters, schema.parameter_kinds, strict=True))
        return {
            "key": self.key,
            **self.written.content,
            "units": units,
            "kinds": kinds,
            "seconds": self.seconds,
            "observed": observed(self.instance),
            "caption": CURVES if len(self.answer.dims) == 1 else MAPS,
            "text": f"Observed data of {self.instance.id}. {in_words(self.answer, schema)}",
        }


def observed(instance: Instance) -> dict[str, Any]:
    """What was measured: outputs by name, None where nothing was; the first points of very many."""
    shown = slice(0, MOST_POINTS)
    values = np.where(instance.mask, instance.values, np.nan)[:, shown]
    columns = {
        name: [value if np.isfinite(value) else None for value in row.tolist()]
        for name, row in zip(instance.outputs, values, strict=True)
    }
    positions = None if instance.positions is None else instance.positions[shown].tolist()
    return {"times": instance.times[shown].tolist(), "positions": positions, "outputs": columns}


def in_words(answer: OperatorAnswer, schema: OperatorSchema) -> str:
    """Where each force is highest and lowest, for those who do not see the picture."""
    dims = [(name, schema.known_unit(name) or "") for name in answer.dims]
    sentences = []
    for i, force in enumerate(answer.forces):
        curves = {name: getattr(answer, name)[i].ravel() for name in ("mean", "lower95", "upper95")}
        unit = schema.known_unit(force) or ""
        ends = []
        for word, at in (("highest", int(curves["mean"].argmax())), ("lowest", int(curves["mean"].argmin()))):
            where = ", ".join(
                f"{name} {x:.3g} {u}".strip() for (name, u), x in zip(dims, answer.points[at], strict=True)
            )
            mean, low, high = (float(curves[name][at]) for name in ("mean", "lower95", "upper95"))
            ends.append(f"{word} at {where}: {mean:.3g} {unit}".strip() + f" (95 % interval {low:.3g} to {high:.3g})")
        sentences.append(f"The inferred {force} is {' and '.join(ends)}.")
    return " ".join(sentences)


COMPARISON_CURVES = (
    "Blue: the operator. Green, dash-dotted with thin outlines: the full fit. Where they part, doubt both."
)
COMPARISON_MAPS = "Maps of the full fit, to be read beside the operator's above. Where they part, doubt both."
"""What the picture of a comparison shows: of a series, and of a field."""


def restored(content: Mapping[str, Any], kinds: Mapping[str, str], like: OperatorAnswer) -> OperatorAnswer:
    """The answer that plain data of `as_data` describe."""
    forces = tuple(content["forces"])
    axes = tuple(np.array(axis, float) for axis in content["dims"].values())
    curves: dict[str, Any] = {
        name: np.array([content["forces"][force][name] for force in forces], float) for name in COLUMNS
    }
    parameters = tuple(
        Estimated(name, kinds[name], *(np.nan if row[column] is None else row[column] for column in COLUMNS))
        for name, row in content["parameters"].items()
    )
    return replace(like, forces=forces, axes=axes, **curves, estimates=parameters, novelty=0.0, warning=None)


def agreement(shown: Shown, fitted: OperatorAnswer) -> dict[str, Any]:
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
    caption = COMPARISON_CURVES if len(answer.dims) == 1 else COMPARISON_MAPS
    return {"forces": forces, "caption": caption, "text": f"Full fit. {in_words(fitted, schema)}"}


def plot_comparison(shown: Shown, fitted: OperatorAnswer) -> Figure:
    """Forces of both."""
    return plot_beside(shown.instance, shown.answer, fitted, shown.schema)


def parameter_rows(shown: Shown, fitted: OperatorAnswer) -> list[dict[str, Any]]:
    """Parameters by name, with the estimate of the operator, of the fit, or of both."""
    mine = {one.name: one for one in shown.answer.estimates}
    other = {one.name: one for one in fitted.estimates}
    rows = []
    for name in dict.fromkeys([*mine, *other]):
        unit = shown.schema.known_unit(name)
        rows.append({"name": name, "unit": unit, "operator": _ends(mine.get(name)), "fit": _ends(other.get(name))})
    return rows


def _at(answer: OperatorAnswer, row: int, points: FloatArray) -> dict[str, FloatArray]:
    places = points[:, 1:] if points.shape[1] > 1 else None
    return {name: values[row] for name, values in answer.at(points[:, 0], places).items()}


def _ends(one: Estimated | None) -> dict[str, float | None] | None:
    if one is None:
        return None
    numbers = {name: float(getattr(one, name)) for name in ("mean", "lower95", "upper95")}
    return {name: value if np.isfinite(value) else None for name, value in numbers.items()}
