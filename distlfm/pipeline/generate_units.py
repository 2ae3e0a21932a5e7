"""Units of a generated store, by the names in it: those that the config states, and what follows from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlfm.config import nearest
from distlfm.dimension import Dimension
from distlfm.errors import UsageError
from distlfm.mechanisms import Parameter, System


def store_units(
    given: Mapping[str, str], system: System, space: Sequence[str], parameters: Sequence[Parameter]
) -> dict[str, str]:
    """`value` holds for all outputs, `position` for all axes, and a whole parameter for each of its elements.

    Where the equation says what its force and its parameters are measured in, they follow from times, values and
    positions, unless the config says otherwise.
    """
    names = {name: [name] for name in ("time", *space, *system.outputs, *system.force_names)}
    elements = {"value": list(system.outputs), "position": list(space)} | names
    dimensions: dict[str, Dimension | None] = dict.fromkeys(system.force_names, system.force_dimension)
    for one in parameters:
        labelled = {element_name(one, label): one.dimension_of(label) for label in one.labels}
        dimensions |= labelled
        elements |= {name: [name] for name in labelled} | {one.name: list(labelled)}
    for name in given:
        if name not in elements:
            raise UsageError(f"units names {name!r}, which is nothing of this model.", nearest(name, list(elements)))
    whole_first = sorted(given, key=lambda name: (name not in ("value", "position"), -len(elements[name])))
    stated = {element: given[name] for name in whole_first for element in elements[name]}
    known = {"time": stated.get("time"), "value": _one(stated, system.outputs), "position": _one(stated, space)}
    derived = {name: unit for name, of in dimensions.items() if of is not None and (unit := of.unit(known)) is not None}
    return derived | stated


def element_name(parameter: Parameter, label: str) -> str:
    """As `ParameterSpace.free_names` and estimates have it."""
    return f"{parameter.name}[{label}]" if len(parameter.labels) > 1 else parameter.name


def _one(stated: Mapping[str, str], names: Sequence[str]) -> str | None:
    """The unit that all of them share."""
    units = {stated.get(name) for name in names}
    return units.pop() if len(units) == 1 else None
