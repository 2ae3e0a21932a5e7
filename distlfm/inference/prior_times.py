"""Whether the prior of a force's lengthscale fits the times, and the places, that it was observed at.

A default is written for times of some units: with minutes for hours it expects a force that turns many times between
two observations. Such a fit may end well and tells nothing, so the user is told before it begins.
"""

from __future__ import annotations

import torch

from distlfm.dimension import TIME
from distlfm.inference.model import Model
from distlfm.inference.survey import Survey
from distlfm.mechanisms.parameters import Parameter

EDGE = 1.0
"""A prior is off if not even this many of its deviations reach the gaps between times, or their span."""
EDGES = torch.tensor([-EDGE, 0.0, EDGE], dtype=torch.float64)

FIX = (
    "Set force.priors.lengthscale to what is plausible in the units of your times, as configs/fit/glucose.yaml does "
    "for minutes, and look at the other priors too."
)


def prior_notice(model: Model, found: Survey) -> str:
    """A sentence for the user if the prior is off, and how to mend it; nothing otherwise."""
    for parameter in model.space.parameters:
        name = parameter.name.rpartition(".")[2]
        label = parameter.labels[0]  # of a field, time comes first
        if parameter.kind != "kernel" or name != "lengthscale":
            continue
        if 0 in parameter.free and parameter.dimension_of(label) == TIME:
            low, middle, high = parameter.prior_of(label).natural(EDGES).tolist()
            prior = f"The {_given(model, parameter, label)} of the force's lengthscale has its middle at {middle:.3g}"
            if high < found.gap:
                what = f"far below the gaps between times, {found.gap:.3g}: the force could do anything between two"
                return f"{prior}, {what} of them. {FIX}"
            if low > found.span:
                what = f"far above the whole span of times, {found.span:.3g}: the force could hardly change within it"
                return f"{prior}, {what}. {FIX}"
        if told := _along_axes(model, parameter, found):
            return told
    return ""


def _along_axes(model: Model, parameter: Parameter, found: Survey) -> str:
    """The same for the lengthscales of a field along its axes: times and places seldom have numbers of one size."""
    if found.extent is None or len(parameter.labels) != 1 + found.extent.positions.shape[1]:
        return ""
    sides = (found.extent.upper - found.extent.lower).tolist()
    for i, (label, side) in enumerate(zip(parameter.labels[1:], sides, strict=True), start=1):
        low, middle, _ = parameter.prior_of(label).natural(EDGES).tolist()
        if i in parameter.free and low > side > 0:
            return (
                f"The {_given(model, parameter, label)} of the force's lengthscale has its middle at {middle:.3g}, far "
                f"above the whole extent of {label}, {side:.3g}: the force could hardly change along it. Set "
                f"force.priors.lengthscale[{label}] to what is plausible in the units of your positions."
            )
    return ""


def _given(model: Model, parameter: Parameter, label: str) -> str:
    return "prior" if "lengthscale" in model.force.priors or label in parameter.own else "default prior"
