"""Whether the default priors of an equation are in the units of the data."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from distlfm.dimension import Dimension, same_unit
from distlfm.mechanisms.parameters import Parameter
from distlfm.mechanisms.system import System


def units_notice(system: System, told: Mapping[str, str]) -> str:
    """A sentence for the user if default priors are left that are for other units than the data's; nothing otherwise.

    told: as an instance's metadata have them, `time_unit`, `value_unit`, `position_unit`.
    """
    other = {
        what: (unit, here)
        for what, unit in system.prior_units.items()
        if (here := told.get(f"{what}_unit")) is not None and not same_unit(unit, here)
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
    return any(_has(one, name) for one in found for name in units)


def _has(dimension: Dimension | None, name: str) -> bool:
    return dimension is None or getattr(dimension, name) != 0


def _listed(words: list[str]) -> str:
    return " and ".join([*([", ".join(words[:-1])] if words[1:] else []), words[-1]])
