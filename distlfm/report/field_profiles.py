"""Bands of a field: the force along a line at a few times, and the parameters."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from distlfm.inference.result import Band, FitResult
from distlfm.report.curves import draw_band
from distlfm.report.field_view import FieldView
from distlfm.report.fields import time_title
from distlfm.report.forest import draw_forest, forest_height, grouped
from distlfm.report.style import DASHED, TRUTH, handles, house, new_figure, quantity
from distlfm.report.truth import true_parameters
from distlfm.report.units import force_unit, parameter_units

NUM_PROFILES = 4
PROFILE_HEIGHT = 1.9


def plot_profiles(view: FieldView) -> Figure:
    """The force along a line at a few times, with bands, and the truth where it is known."""
    assert view.dims == 1
    true = view.true_force
    source = view.result.grid if view.at_truth is None else view.at_truth
    times = view.times_shown(NUM_PROFILES)
    with house():
        figure = new_figure(PROFILE_HEIGHT, 7.2)
        row = figure.subplots(1, len(times), sharey=True, squeeze=False)[0]
        for axes, time in zip(row, times, strict=True):
            assert source.positions is not None
            here = np.flatnonzero(source.times == time)
            here = here[np.argsort(source.positions[here, 0])]
            band = Band(*(getattr(source.force, name)[:, here] for name in Band.__dataclass_fields__))
            draw_band(axes, source.positions[here, 0], band, 0)
            if true is not None:
                now = true.near(time)
                order = np.argsort(now.positions[:, 0])
                axes.plot(now.positions[order, 0], now.values[order], color=TRUTH, linestyle=DASHED, label="truth")
            axes.set_title(time_title(view, time))
            axes.set_xlabel(view.position_label(0))
            axes.xaxis.set_major_locator(MaxNLocator(4))
        row[0].set_ylabel(quantity(view.force, force_unit(view.result)))
        row[0].yaxis.set_major_locator(MaxNLocator(5))
        shown = handles(data=False, truth=true is not None)
        if true is not None:
            shown[-1].set_label(view.truth_name)
        figure.legend(handles=shown, loc="outside upper center", ncols=4)
    return figure


def plot_parameters(result: FitResult) -> Figure:
    """Parameters as a forest of intervals."""
    groups = grouped(result.parameters)
    with house():
        figure = new_figure(forest_height(groups))
        place = figure.add_subfigure(figure.add_gridspec(1, 1)[0])
        draw_forest(place, groups, true_parameters(result), parameter_units(result).get)
    return figure
