"""Units of a result's force and parameters, where the data name theirs and the equation says how they follow."""

from __future__ import annotations

from distlfm.dimension import Dimension
from distlfm.inference.result import FitResult


def force_unit(result: FitResult) -> str | None:
    """Of the forces, as they are shown."""
    return _unit(result, result.posterior.model.system.force_dimension)


def parameter_units(result: FitResult) -> dict[str, str]:
    """By the names of the estimates, where they are known."""
    found = {}
    for parameter in result.posterior.model.space.parameters:
        for label in parameter.labels:
            name = f"{parameter.name}[{label}]" if len(parameter.labels) > 1 else parameter.name
            unit = _unit(result, parameter.dimension_of(label))
            if unit is not None:
                found[name] = unit
    return found


def _unit(result: FitResult, dimension: Dimension | None) -> str | None:
    told = result.instance.metadata
    return None if dimension is None else dimension.unit({name: told.get(f"{name}_unit") for name in _NAMES})


_NAMES = ("value", "time", "position")
