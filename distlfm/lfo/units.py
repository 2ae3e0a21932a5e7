"""Whether data are measured in what an operator was trained in: its numbers mean nothing in other units."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from distlfm.dimension import same_unit
from distlfm.errors import UsageError
from distlfm.store import Store
from distlfm.store.layout import UNKNOWN_UNIT, unit

if TYPE_CHECKING:
    from distlfm.lfo.schema import OperatorSchema


def check_units(schema: OperatorSchema, told: Mapping[str, str], outputs: Sequence[str]) -> None:
    """Refuse data in other units, where both are known.

    told: as an instance's metadata have them, `time_unit`, `value_unit`, `position_unit`. outputs: the operator's that
    the data have; one unit is told for all of them, so it has to be that of one.
    """
    axes = tuple(dim.name for dim in schema.dims[1:])
    for what, names in (("time", ("time",)), ("value", outputs), ("position", axes)):
        here = told.get(f"{what}_unit", UNKNOWN_UNIT)
        there = list(dict.fromkeys(one for name in names if (one := schema.known_unit(name)) is not None))
        if here in ("1", UNKNOWN_UNIT) or not there or any(same_unit(here, one) for one in there):
            continue
        raise UsageError(
            f"The {what}s are in {here}, and the operator's in {' and '.join(there)}.",
            f"Convert them, or set data.units.{what}={there[0]} if they are in {there[0]}.",
        )


def check_store_units(schema: OperatorSchema, store: Store) -> None:
    """Refuse a store in other units, where both are known."""
    spec = store.spec
    alone = len(spec.outputs) == len(schema.outputs) == 1
    outputs = zip(spec.outputs, schema.outputs if alone else spec.outputs, strict=True)
    others = ("time", *spec.space, *spec.forces, *spec.parameters)
    for name, known in (*((one, one) for one in others), *outputs):
        here, there = unit(spec, name), schema.known_unit(known)
        if here in ("1", UNKNOWN_UNIT) or there is None or same_unit(here, there):
            continue
        raise UsageError(
            f"{name} is in {here} in {store.path}, and in {there} for the operator.",
            "Give a store in the operator's units, or an operator that was trained in these.",
        )
