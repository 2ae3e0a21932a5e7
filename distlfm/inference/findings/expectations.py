"""Whether priors and equation fit the data, said before a fit begins.

The prior of a force's lengthscale should fit the times, and the places, that it was observed at. A default is written
for times of some units: with minutes for hours it expects a force that turns many times between two observations. Such
a fit may end well and says nothing. Other notices: default priors of an equation in other units than the data, negative
values of an output that is never negative, and series so long that another kernel would be quicker by far.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from distlfm.inference.fit import InferenceConfig
from distlfm.inference.model import Model
from distlfm.inference.series.statespace import supports
from distlfm.inference.survey import Survey
from distlfm.instance import TIME, Instance, same_unit
from distlfm.mechanisms.base import System
from distlfm.mechanisms.priors import Parameter

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
        if stated := _along_axes(model, parameter, found):
            return stated
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


def units_notice(system: System, stated: Mapping[str, str]) -> str:
    """A sentence for the user if default priors are left that are for other units than the data's; nothing otherwise.

    stated: as an instance's metadata have them, `time_unit`, `value_unit`, `position_unit`.
    """
    other = {
        what: (unit, here)
        for what, unit in system.prior_units.items()
        if (here := stated.get(f"{what}_unit")) is not None and not same_unit(unit, here)
    }
    left = [
        f"mechanism.priors.{one.name}"
        for one in system.settled()
        if one.free and one.name not in system.options.priors and _depends(one, other)
    ]
    if not left:
        return ""
    meant, here = (_listed([pair[i] for pair in other.values()]) for i in (0, 1))
    return (
        f"The default priors of {system.options.kind} are for {meant}, and the data are in {here}. "
        f"Set {_listed(left)} to what is plausible in the units of your data."
        + (" Look at force.priors and likelihood.prior too." if system.force_priors else "")
    )


def _depends(parameter: Parameter, units: Collection[str]) -> bool:
    """Whether a number of this parameter changes with one of the units; without a dimension nobody knows, so it may."""
    found = [parameter.dimension_of(parameter.labels[i]) for i in parameter.free]
    return any(one is None or getattr(one, name) != 0 for one in found for name in units)


def _listed(words: list[str]) -> str:
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), words[-1]])


@dataclass
class _Seen:
    """What was seen of one output. lowest: of its values, and the instance `where` it is."""

    values: int = 0
    negative: int = 0
    lowest: float = 0.0
    where: str = ""


class Negatives:
    """Counts negative values while instances go by; simulated ones are passed over, as their noise knows no bound."""

    def __init__(self, system: System) -> None:
        self.system = system
        self._seen: dict[str, _Seen] = {}

    def add(self, instances: Sequence[Instance]) -> None:
        """Take note of some more."""
        if not self.system.never_negative:
            return
        for one in instances:
            if one.truth is not None and one.truth.force is not None:
                continue
            for output, row, mask in zip(one.outputs, one.values, one.mask, strict=True):
                seen, values = self._seen.setdefault(output, _Seen()), row[mask]
                seen.values += len(values)
                seen.negative += int((values < 0).sum())
                if len(values) and (low := float(values.min())) < seen.lowest:
                    seen.lowest, seen.where = low, one.id

    def notice(self) -> str:
        """A sentence for the user if there are any; nothing otherwise."""
        stated = [
            f"{seen.negative} of {seen.values} values of {output!r} (down to {seen.lowest:.4g}, in {seen.where!r})"
            for output, seen in self._seen.items()
            if seen.negative
        ]
        if not stated:
            return ""
        return (
            f"{' and '.join(stated)} are negative, and no output of {self.system.options.kind} can be. "
            "Leave a cell empty where nothing was observed, and give values as they were measured, "
            "not their logarithms or changes."
        )


LONG_FOR_MATRICES = 400
"""Times from which a fit by dense matrices takes more than about half a minute."""


def length_notice(model: Model, found: Survey, options: InferenceConfig) -> str:
    """A sentence for the user whose series are long for dense matrices; nothing otherwise."""
    if model.is_field or found.samples < LONG_FOR_MATRICES or options.method not in ("auto", "collapsed"):
        return ""
    if not model.integrable or (options.method == "auto" and supports(model)):
        return ""
    return (
        f"Series have up to {found.samples} times, for which matrices of that size are solved many times: this takes "
        "minutes for each. A filter takes seconds: it needs force.kernel.kind=matern52 (or matern32, matern12) and "
        "inference.method=auto."
    )
