"""Whether the prior of a force's lengthscale fits the times that it was observed at.

A default is written for times of some units: with minutes for hours it expects a force that turns many times between
two observations. Such a fit may end well and tells nothing, so the user is told before it begins.
"""

from __future__ import annotations

import torch

from distlfm.dimension import TIME
from distlfm.inference.model import Model
from distlfm.inference.survey import Survey

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
        if parameter.kind != "kernel" or name != "lengthscale" or 0 not in parameter.free:
            continue
        if parameter.dimension_of(label) != TIME:
            continue
        low, middle, high = parameter.prior_of(label).natural(EDGES).tolist()
        given = name in model.force.priors or label in parameter.own
        prior = "prior" if given else "default prior"
        if high < found.gap:
            what = f"far below the gaps between times, {found.gap:.3g}: the force could do anything between two of them"
        elif low > found.span:
            what = f"far above the whole span of times, {found.span:.3g}: the force could hardly change within it"
        else:
            continue
        return f"The {prior} of the force's lengthscale has its middle at {middle:.3g}, {what}. {FIX}"
    return ""
