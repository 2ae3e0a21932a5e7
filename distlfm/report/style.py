"""The house style: one look for every figure, safe for colour-blind readers and for grey print.

Colours have one meaning everywhere: blue is inferred, black is measured, dashed vermilion is the truth of a simulation.
They are Okabe and Ito's; the bands are opaque tints that differ in lightness, so nothing depends on hue alone.
"""

from __future__ import annotations

import math
import re
import unicodedata
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from distlfm.instance import FloatArray

INFERRED = "#0072B2"
BAND68 = "#86BBDA"
BAND95 = "#D6E8F3"
MEASURED = "#1A1A1A"
TRUTH = "#D55E00"
QUIET = "#6B6B6B"
DASHED = (0, (3, 1.5))
"""How lines of the truth are drawn, for those who see no colour."""

WIDTH = 7.2
"""Inches: two columns of a journal page."""

MAX_LABEL = 28
"""Longest name drawn whole; the rest is cut, since names come from data."""

LOWEST_Q2 = -1.0
"""Q² has no lower end: what is below this is counted in the leftmost bar."""

_MANTISSAS = ((1.0,), (1.0, 3.0), (1.0, 2.0, 5.0), (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0))
"""Where ticks of a logarithmic axis may be; the first that give enough are taken."""

_STYLE = Path(__file__).with_name("templates") / "house.mplstyle"


def house() -> AbstractContextManager[None]:
    """The style, while figures are made and saved."""
    return mpl.rc_context(fname=_STYLE)


def new_figure(height: float, width: float = WIDTH, dpi: int = 150) -> Figure:
    """An empty figure of that size in inches, with a canvas of its own; dpi counts where parts of it are pixels."""
    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def plain(text: str, limit: int = MAX_LABEL) -> str:
    """A name fit for a label: one line, no control characters, not too long."""
    shown = "".join("\ufffd" if unicodedata.category(letter).startswith("C") else letter for letter in text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def quantity(name: str, unit: str | None) -> str:
    """An axis label: the name, and the unit if one is known and the name does not end in it, as `dose [mg]` does."""
    shown = plain(name)
    if not unit or re.search(rf"[\[(]\s*{re.escape(unit.strip())}\s*[\])]\s*$", shown):
        return shown
    return f"{shown} ({plain(unit, 40)})"


def log_scale(axes: Axes, low: float, high: float) -> None:
    """A logarithmic x axis from a little below `low` to a little above `high`, with three to six plain numbers."""
    assert 0 < low <= high
    margin = max(high / low, 1.01) ** 0.05
    low, high = low / margin, high * margin
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks: list[float] = []
    for mantissas in _MANTISSAS:
        ticks = [m * 10.0**power for power in powers for m in mantissas if low <= m * 10.0**power <= high]
        if len(ticks) >= 3:
            break
    ticks = ticks[:: -(-len(ticks) // 6)] if ticks else []
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter("{x:.4g}")
    axes.minorticks_off()


def set_ticks(axes: Axes, x: int | None = None, y: int | None = None, *, integer: bool = False) -> None:
    """Put at most this many intervals between the ticks of an axis, at whole numbers if they are counts."""
    for axis, most in ((axes.xaxis, x), (axes.yaxis, y)):
        if most is not None:
            axis.set_major_locator(MaxNLocator(most, integer=integer))


def q2_bins(_: Axes, values: FloatArray) -> FloatArray:
    """Edges of bars up to 1, from a round number below the worst Q², at the lowest from LOWEST_Q2."""
    worst = float(np.clip(values.min(), LOWEST_Q2, 1.0))
    low = next(step for step in (0.99, 0.95, 0.9, 0.8, 0.5, 0.0, LOWEST_Q2) if step <= worst)
    return np.linspace(low, 1.0, 21)


def show_message(axes: Axes, text: str) -> None:
    """Write a message in place of what cannot be drawn."""
    axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=QUIET)
    axes.set(xticks=[], yticks=[])


def handles(*, data: bool, truth: bool) -> list[Artist]:
    """What a legend shows; `data` and `truth` only where they are drawn."""
    artists: list[Artist] = [
        Line2D([], [], color=MEASURED, marker="o", markersize=3, linestyle="none", label="data"),
        Line2D([], [], color=INFERRED, label="posterior mean"),
        Patch(color=BAND68, linewidth=0, label="68 % interval"),
        Patch(color=BAND95, linewidth=0, label="95 % interval"),
        Line2D([], [], color=TRUTH, linestyle=DASHED, label="truth"),
    ]
    return artists[0 if data else 1 : 5 if truth else 4]
