"""Parameters as a forest of intervals: one panel a vector of parameters, single ones together by kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import SubFigure
from matplotlib.ticker import MaxNLocator

from distlfm.inference.findings.estimates import Estimate
from distlfm.report.style import BAND68, BAND95, INFERRED, QUIET, TRUTH, log_scale, plain, quantity, truth_mark

MAX_ROWS = 30
"""Longest panel; a longer vector is cut with a note."""

ROW_HEIGHT = 0.17
FRAME_HEIGHT = 0.55
HEAD_HEIGHT = 0.3
LOG_FROM = 0.5
"""Positive values that span more than this many powers of ten go on a logarithmic axis."""

TOGETHER = 2.5
"""Single parameters of one kind share an axis while they span fewer powers of ten than this."""


@dataclass(frozen=True)
class Group:
    """One panel: what it shows, its title, and whether rows are named by element or by parameter."""

    title: str
    estimates: tuple[Estimate, ...]
    by_element: bool

    @property
    def num_rows(self) -> int:
        return min(len(self.estimates), MAX_ROWS)


def grouped(estimates: Sequence[Estimate]) -> list[Group]:
    """Panels in the order of the parameters, kind by kind."""
    found = []
    for kind in dict.fromkeys(estimate.kind for estimate in estimates):
        of_kind = [estimate for estimate in estimates if estimate.kind == kind]
        singles = [estimate for estimate in of_kind if not estimate.label]
        for name in dict.fromkeys(estimate.parameter for estimate in of_kind if estimate.label):
            title = name if name == kind else f"{name} ({kind})"
            found.append(Group(title, tuple(one for one in of_kind if one.parameter == name), True))
        if singles and _decades(singles) < TOGETHER:
            found.append(Group(kind, tuple(singles), False))
        else:
            found += [Group(kind, (single,), False) for single in singles]
    return found


def _decades(estimates: Sequence[Estimate]) -> float:
    """Powers of ten between the lowest and the highest 95 % limit; 0 where some limit is not positive."""
    limits = np.array([limit for one in estimates for limit in (one.lower95, one.upper95)])
    limits = limits[np.isfinite(limits)]
    if len(limits) == 0 or limits.min() <= 0:
        return 0.0
    return float(np.log10(limits.max() / limits.min()))


def _columns(groups: Sequence[Group]) -> int:
    return 2 if len(groups) == 4 else min(3, len(groups))


def _row_heights(groups: Sequence[Group]) -> list[float]:
    """Height in inches of each row of panels."""
    columns = _columns(groups)
    rows = [groups[i : i + columns] for i in range(0, len(groups), columns)]
    return [FRAME_HEIGHT + ROW_HEIGHT * max(group.num_rows for group in row) for row in rows]


def forest_height(groups: Sequence[Group]) -> float:
    """Height in inches of all panels, with their title."""
    return sum(_row_heights(groups)) + HEAD_HEIGHT


def draw_forest(
    canvas: SubFigure,
    groups: Sequence[Group],
    true: Mapping[str, float],
    unit: Callable[[str], str | None] = lambda _: None,
) -> None:
    """One panel a group, in rows of up to three. true, unit: by the names of the estimates, where known."""
    heights = _row_heights(groups)
    columns = _columns(groups)
    grid = canvas.add_gridspec(len(heights), columns, height_ratios=heights)
    truth_drawn = False
    for i, group in enumerate(groups):
        axes = canvas.add_subplot(grid[i // columns, i % columns])
        first = i - i % columns
        most = max(one.num_rows for one in groups[first : first + columns])
        truth_drawn |= _draw_group(axes, group, true, 0.62 * group.num_rows / most)
        units = {unit(one.name) for one in group.estimates[: group.num_rows]}
        value = quantity("value", units.pop() if len(units) == 1 else None)
        left_out = len(group.estimates) - group.num_rows
        axes.set_xlabel(f"{value}; {left_out} more not shown" if left_out else value)
    if truth_drawn:
        canvas.legend(handles=[truth_mark("true value")], loc="outside upper right")
    canvas.suptitle("Parameters", fontsize=8, fontweight="bold")


def _draw_group(axes: Axes, group: Group, true: Mapping[str, float], thickness: float) -> bool:
    """Bars of the given thickness in units of rows. True if some truth was drawn."""
    shown = group.estimates[: group.num_rows]
    rows = np.arange(len(shown))
    for lower, upper, color in (("lower95", "upper95", BAND95), ("lower68", "upper68", BAND68)):
        start = np.array([getattr(one, lower) for one in shown])
        end = np.array([getattr(one, upper) for one in shown])
        axes.barh(rows, end - start, thickness, start, color=color, linewidth=0)
    means = [one.mean for one in shown]
    axes.vlines(means, rows - thickness / 2, rows + thickness / 2, color=INFERRED, linewidth=1.6, capstyle="butt")
    true_rows = [y for y, one in enumerate(shown) if one.name in true]
    known = [true[shown[y].name] for y in true_rows]
    if known:
        axes.plot(known, true_rows, "D", color=TRUTH, markersize=3.6, markerfacecolor="none", markeredgewidth=1.0)
    names = [plain(one.label if group.by_element else one.parameter) for one in shown]
    axes.set_yticks(rows, names)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    if _decades(shown) > LOG_FROM and all(truth > 0 for truth in known):
        limits = [limit for one in shown for limit in (one.lower95, one.upper95) if np.isfinite(limit)]
        log_scale(axes, min(*limits, *known), max(*limits, *known))
    else:
        axes.use_sticky_edges = False
        axes.margins(x=0.05)
        axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.set_title(plain(group.title, 40))
    if not np.isfinite([one.mean for one in shown]).any():
        axes.text(0.5, 0.5, "not estimated", transform=axes.transAxes, ha="center", va="center", color=QUIET)
        if not known:
            axes.set_xticks([])
    return bool(known)
