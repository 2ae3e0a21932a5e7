"""An answer as a picture: bands of forces and outputs with the observations, in a program or in a notebook."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from distlfm.config import nearest
from distlfm.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from distlfm.answer.base import Answer, Band

COLOURS = {"force": "#1b6ca8", "output": "#4b7f52"}
COLUMNS = 3
MOST_SHOWN = 9
"""Panels that a notebook shows without being asked."""


def plot(answer: Answer, names: Sequence[str] | None = None, ax: object = None) -> NDArray[np.object_]:
    """Draw the curves `names` into axes [panels], by default of a figure of pyplot, which a notebook shows."""
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    wanted = _wanted(answer, names)
    if ax is None:
        return _draw(answer, _panels(plt.figure(figsize=_size(len(wanted)), layout="constrained"), len(wanted)), wanted)
    axes = np.array(ax, dtype=object).ravel()
    if len(axes) < len(wanted) or not all(isinstance(one, Axes) for one in axes):
        raise UsageError(
            f"ax is not axes of matplotlib for each of {', '.join(name for _, name, _ in wanted)}.",
            f'Choose what to plot, as in plot("{wanted[0][1]}", ax=axes), or make as many axes with pyplot.subplots.',
        )
    return _draw(answer, axes[: len(wanted)], wanted)


def picture(answer: Answer) -> str:
    """The same as an HTML image that needs no other file; a sentence where there is nothing to draw."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not np.isfinite(answer.force.mean).any():
        return "<p>There is no finite answer to draw.</p>"
    if answer.positions is not None and answer.positions.shape[1] > 1:
        return "<p>A field in space: see <code>to_xarray()</code>.</p>"
    wanted = _wanted(answer, None)[:MOST_SHOWN]
    figure = Figure(figsize=_size(len(wanted)), layout="constrained")
    FigureCanvasAgg(figure)
    _draw(answer, _panels(figure, len(wanted)), wanted)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=90)
    code = base64.b64encode(file.getvalue()).decode()
    alt = f"{', '.join(name for _, name, _ in wanted)} of {answer.id} with bands of 68 and 95 %"
    return f'<img alt="{alt.replace(chr(34), "")}" src="data:image/png;base64,{code}">'


def _wanted(answer: Answer, names: Sequence[str] | None) -> list[tuple[str, str, int]]:
    """Kind, name and row of each curve to draw."""
    known = [("force", name, i) for i, name in enumerate(answer.force_names)]
    if answer.has_outputs:
        known += [("output", name, i) for i, name in enumerate(answer.output_names)]
    by_name = {one[1]: one for one in reversed(known)}
    names = [names] if isinstance(names, str) else names
    for name in names or ():
        if name not in by_name:
            raise UsageError(f"There is no force or output {name!r}.", nearest(name, [one for _, one, _ in known]))
    return [by_name[name] for name in names] if names else known


def _size(panels: int) -> tuple[float, float]:
    columns = min(COLUMNS, panels)
    return 3.6 * columns, 2.7 * math.ceil(panels / columns)


def _panels(figure: Any, count: int) -> NDArray[np.object_]:
    columns = min(COLUMNS, count)
    return np.array([figure.add_subplot(math.ceil(count / columns), columns, i + 1) for i in range(count)])


def _draw(answer: Answer, axes: NDArray[np.object_], wanted: Sequence[tuple[str, str, int]]) -> NDArray[np.object_]:
    for axis, (kind, name, row) in zip(axes, wanted, strict=True):
        band = answer.force if kind == "force" else answer.outputs
        if answer.positions is None:
            _series(answer, axis, kind, name, row, band)
        else:
            _field(answer, axis, row, band)
        axis.set_title(name)
    return axes


def _series(answer: Answer, axis: Any, kind: str, name: str, row: int, band: Band) -> None:
    times, colour = answer.times, COLOURS[kind]
    for level, alpha in ((95, 0.18), (68, 0.32)):
        low, high = getattr(band, f"lower{level}")[row], getattr(band, f"upper{level}")[row]
        axis.fill_between(times, low, high, color=colour, alpha=alpha, linewidth=0, label=f"{level} %")
    axis.plot(times, band.mean[row], color=colour, label="mean")
    instance, unit = answer.instance, None
    if instance is not None:
        if kind == "output" and name in instance.outputs:
            here = instance.outputs.index(name)
            seen = instance.mask[here]
            axis.plot(instance.times[seen], instance.values[here][seen], "k.", label="observed")
        truth = instance.truth
        if truth is not None and truth.positions is None and not (kind == "output" and truth.measured):
            curves = truth.force if kind == "force" else truth.outputs
            if curves is not None and row < len(curves):
                axis.plot(truth.times, curves[row], "k--", linewidth=0.9, label="true")
        unit = instance.metadata.get("time_unit")
        if kind == "output":
            axis.set_ylabel(instance.metadata.get("value_unit", ""))
    axis.set_xlabel(f"time ({unit})" if unit else "time")
    axis.legend(fontsize="x-small", frameon=False)


def _field(answer: Answer, axis: Any, row: int, band: Band) -> None:
    assert answer.positions is not None
    dims = answer.positions.shape[1]
    if dims > 1:
        raise UsageError(
            f"plot draws fields on a line, and this one has {dims} space dimensions.",
            "Choose a time or a line of to_xarray() and plot that, or open the report of a run.",
        )
    filled = axis.tricontourf(answer.times, answer.positions[:, 0], band.mean[row], levels=20)
    axis.figure.colorbar(filled, ax=axis)
    axis.set_xlabel("time")
    axis.set_ylabel("x")
