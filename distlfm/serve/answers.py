"""An operator's answer as a page needs it: numbers, tables as CSV, pictures, and in words what a picture shows."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from distlfm.instance import Instance
from distlfm.lfo import Answer, OperatorSchema
from distlfm.pipeline.query_figures import true_elements
from distlfm.pipeline.query_tables import Tables
from distlfm.report.lfo_plots import PIXELS_PER_INCH, plot_answer
from distlfm.report.style import house

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


def written(answer: Answer, instance: Instance, schema: OperatorSchema) -> Written:
    """The same tables as those of `distlfm query`."""
    force, parameters, document = io.StringIO(), io.StringIO(), io.StringIO()
    tables = Tables(schema, force, parameters, document)
    tables.add(answer, instance)
    tables.close()
    return Written(force.getvalue(), parameters.getvalue(), json.loads(document.getvalue())["answers"][0])


def picture(figure: Figure, form: str) -> bytes:
    """A figure as svg or png; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    with house():
        if form == "svg":
            figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
        else:
            figure.savefig(buffer, format="png", dpi=PIXELS_PER_INCH)
    return buffer.getvalue()


@dataclass(frozen=True)
class Shown:
    """An instance and its answer. source: the key of where the instance is from."""

    key: str
    source: str
    instance: Instance
    answer: Answer
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


def in_words(answer: Answer, schema: OperatorSchema) -> str:
    """Where each force is highest and lowest, for those who do not see the picture."""
    dims = [(name, schema.known_unit(name) or "") for name in answer.dims]
    told = []
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
        told.append(f"The inferred {force} is {' and '.join(ends)}.")
    return " ".join(told)
