"""What an operator takes and gives: names, grid and units, made from the stores that it learns from.

Checks that one operator can learn from several stores, by what they say of their equation, and that data are measured
in what the operator was trained in: its numbers mean nothing in other units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from pydantic import Field

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.instance import FloatArray, same_unit
from distlfm.mechanisms.base import System
from distlfm.mechanisms.build import build_system, known_systems
from distlfm.mechanisms.field import FieldConfig
from distlfm.store import Store, StoreSpec
from distlfm.store.layout import UNKNOWN_UNIT, unit


def check_units(schema: OperatorSchema, units: Mapping[str, str], outputs: Sequence[str]) -> None:
    """Refuse data in other units, where both are known.

    units: as an instance's metadata have them, `time_unit`, `value_unit`, `position_unit`. outputs: the operator's that
    the data have; one unit is given for all of them, so it has to be that of one.
    """
    axes = tuple(dim.name for dim in schema.dims[1:])
    for what, names in (("time", ("time",)), ("value", outputs), ("position", axes)):
        here = units.get(f"{what}_unit", UNKNOWN_UNIT)
        there = list(dict.fromkeys(one for name in names if (one := schema.known_unit(name)) is not None))
        if here not in ("1", UNKNOWN_UNIT) and there and not any(same_unit(here, one) for one in there):
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
        if here not in ("1", UNKNOWN_UNIT) and there is not None and not same_unit(here, there):
            raise UsageError(
                f"{name} is in {here} in {store.path}, and in {there} for the operator.",
                "Give a store in the operator's units, or an operator that was trained in these.",
            )


OVERLAP = 0.5
"""Least share of the range of a dimension spanned by two stores together that must be in both."""

MAY_DIFFER = ("priors", "outputs", "fixed")
"""Options of a mechanism that are not part of its equation, or are compared by other means."""

NUMERICAL = ("mesh", "degree", "start", "step", "solver", "ranks", "mesh_limit", "linear_solver", "dims")
"""Options of a field that say how it is computed, or where it is, which the grid tells too."""


def mechanism_in(spec: StoreSpec) -> dict[str, Any]:
    """The section of a store's config; empty if it has none, as one that was merged of several."""
    return dict(spec.attributes.get("config", {}).get("mechanism", {}))


def known_elements(mechanism: Mapping[str, Any], outputs: Sequence[str]) -> dict[str, float]:
    """Elements of parameters that a config's section fixes, by their names in stores. Those of fits leave them out."""
    system = _system(mechanism, outputs)
    if system is None:
        return {}
    names = element_names(system)
    return {
        name: float(one.fixed[label])
        for one in system.settled()
        for label, name in zip(one.labels, names[one.name], strict=True)
        if label in one.fixed
    }


def element_names(system: System) -> dict[str, tuple[str, ...]]:
    """The stores' names of each parameter's elements."""
    return {
        one.name: tuple(f"{one.name}[{label}]" for label in one.labels) if len(one.labels) > 1 else (one.name,)
        for one in system.settled()
    }


def check_alike(first: Store, other: Store, here: Sequence[GridDim], there: Sequence[GridDim]) -> None:
    """Refuse two stores that are not of one equation, in the same units, over about the same time and place.

    here, there: what each of them spans.
    """
    says, other_says = (_says(store.spec) for store in (first, other))
    for what in says:
        if what in other_says:
            _compare(first, other, what, says[what], other_says[what])
    for name in ["time", *first.spec.space, *first.spec.outputs, *first.spec.forces, *first.spec.parameters]:
        units = [unit(store.spec, name) for store in (first, other)]
        if UNKNOWN_UNIT not in units:
            _compare(first, other, f"unit of {name}", *units)
    for mine, its in zip(here, there, strict=True):
        both = min(mine.stop, its.stop) - max(mine.start, its.start)
        if both < OVERLAP * (max(mine.stop, its.stop) - min(mine.start, its.start)):
            ranges = (f"{one.start:g} to {one.stop:g}" for one in (mine, its))
            _compare(first, other, f"range of {mine.name}", *ranges)


def _says(spec: StoreSpec) -> dict[str, object]:
    """What must be the same in all stores, by a name for people."""
    facts: dict[str, object] = {
        "mechanism": spec.attributes.get("mechanism"),
        "outputs": spec.outputs,
        "forces": spec.forces,
        "axes": spec.space,
    }
    mechanism = mechanism_in(spec)
    system = _system(mechanism, spec.outputs)
    if system is None:
        return facts
    options = system.options.model_dump(mode="json", exclude=set(MAY_DIFFER))
    if isinstance(system.options, FieldConfig):
        start = system.options.initial
        options = {name: value for name, value in options.items() if name not in NUMERICAL}
        options["initial"] = (start.kind, start.points, start.values)
    facts |= {f"mechanism.{name}": value for name, value in options.items()}
    return facts | {"known parameters": known_elements(mechanism, spec.outputs)}


def _system(mechanism: Mapping[str, Any], outputs: Sequence[str]) -> System | None:
    """The equation of a section; None without one, or if nothing of that name is registered here."""
    return build_system(mechanism, outputs) if str(mechanism.get("kind", "")) in known_systems() else None


def _compare(first: Store, other: Store, what: str, here: object, there: object) -> None:
    if here != there:
        raise UsageError(
            f"{other.path} does not fit {first.path}: its {what} is {there}, and there it is {here}.",
            "An operator learns from stores of one mechanism with the same options, outputs, forces and units, over "
            "about the same time; their priors may differ.",
        )


SCHEMA = 2
"""Raised when a checkpoint of the old form can no longer be read by this code."""

SCARCELY = 0.1
"""Least share of the operator's range that must be in a store that it goes on with; less is another unit."""

OTHER = "Give what the operator was trained on, or an operator that was trained on this."

CONSTANT = 1e-9
"""A parameter whose values spread less than this, relative to their size, is known, and not learned."""


class GridDim(Config):
    """One dimension of the training grid: `size` even points from `start` to `stop`, both included."""

    name: str
    size: int = Field(ge=2)
    start: float
    stop: float

    @property
    def step(self) -> float:
        return (self.stop - self.start) / (self.size - 1)

    def points(self, size: int | None = None) -> FloatArray:
        """The coordinates [size] of even points; as many as the grid has by default."""
        return np.linspace(self.start, self.stop, size or self.size)


class OperatorSchema(Config):
    """mechanism: the section of the stores' config. dims: time first. fixed: parameters that are known or never vary.

    units: of `time`, of the axes, and of outputs, forces and parameters by name.
    """

    version: int = SCHEMA
    mechanism: Mapping[str, Any]
    outputs: tuple[str, ...]
    forces: tuple[str, ...]
    parameters: tuple[str, ...]
    parameter_kinds: tuple[str, ...]
    fixed: Mapping[str, float] = {}
    dims: tuple[GridDim, ...]
    units: Mapping[str, str] = {}

    @property
    def shape(self) -> tuple[int, ...]:
        """Points of each dimension of the training grid."""
        return tuple(dim.size for dim in self.dims)

    def known_unit(self, name: str) -> str | None:
        """The unit of `time`, of an axis, an output, a force or a parameter, where it is known and not one."""
        unit = self.units.get(name)
        return None if unit in (None, "1", UNKNOWN_UNIT) else unit

    def check(self, store: Store) -> None:
        """Refuse a store of something else than this operator was made for."""
        spec = store.spec
        for what, here, there in (
            ("mechanism", spec.attributes.get("mechanism"), self.mechanism.get("kind")),
            ("outputs", spec.outputs, self.outputs),
            ("forces", spec.forces, self.forces),
            ("axes", spec.space, tuple(dim.name for dim in self.dims[1:])),
        ):
            # The name of a single output is that of a column: it tells nothing apart.
            alone = what == "outputs" and len(spec.outputs) == len(self.outputs) == 1
            if here != there and not alone:
                raise UsageError(
                    f"The {what} of {store.path} are {_words(here)}, and those of the operator {_words(there)}.", OTHER
                )
        check_store_units(self, store)
        for mine, its in zip(self.dims, _dims(store), strict=True):
            both = min(mine.stop, its.stop) - max(mine.start, its.start)
            if both < SCARCELY * (mine.stop - mine.start):
                raise UsageError(
                    f"{mine.name} runs from {its.start:g} to {its.stop:g} in {store.path}, and from {mine.start:g} to "
                    f"{mine.stop:g} for the operator.",
                    "Give it in the operator's unit.",
                )

    @staticmethod
    def of(stores: Sequence[Store]) -> OperatorSchema:
        """The schema that all stores share. Their grids may differ in number of points; the first one's is taken."""
        if not stores:
            raise UsageError("There is no store to learn from.", "Give at least one in data.stores.")
        first, dims = stores[0].spec, [_dims(store) for store in stores]
        for store, there in zip(stores[1:], dims[1:], strict=True):
            check_alike(stores[0], store, dims[0], there)
        mechanism = next((found for store in stores if (found := mechanism_in(store.spec))), {})
        values = [dict(zip(store.spec.parameters, store.read("params_mean").T, strict=True)) for store in stores]
        common = [name for name in first.parameters if all(name in one for one in values)]
        fixed, learned = {}, []
        for name in common:
            known = np.concatenate([one[name] for one in values])
            known = known[np.isfinite(known)]
            if len(known) and np.ptp(known) > CONSTANT * max(1e-12, float(np.abs(known).max())):
                learned.append(name)
            elif len(known):
                fixed[name] = float(known[0])
        for name, value in known_elements(mechanism, first.outputs).items():
            if name not in learned:
                fixed.setdefault(name, value)
        kinds = dict(zip(first.parameters, first.parameter_kinds, strict=True))
        named = ["time", *first.space, *first.outputs, *first.forces, *learned]
        return OperatorSchema(
            mechanism=mechanism,
            outputs=first.outputs,
            forces=first.forces,
            parameters=tuple(learned),
            parameter_kinds=tuple(kinds[name] for name in learned),
            fixed=fixed,
            dims=dims[0],
            units={name: _unit(stores, name) for name in named},
        )


def _words(found: object) -> str:
    return ", ".join(found) if isinstance(found, tuple) else str(found)


def _dims(store: Store) -> tuple[GridDim, ...]:
    spec = store.spec
    if spec.times is not None:
        start, stop = spec.times[0], spec.times[-1]
    else:
        times = store.read("time")
        start, stop = float(np.nanmin(times)), float(np.nanmax(times))
    dims = [GridDim(name="time", size=spec.steps, start=start, stop=stop)]
    if spec.lattice is not None:
        for axis, points in zip(spec.space, spec.lattice, strict=True):
            dims.append(GridDim(name=axis, size=len(points), start=min(points), stop=max(points)))
    elif spec.nodes is not None:
        nodes = np.array(spec.nodes)
        size = max(2, round(len(nodes) ** (1 / nodes.shape[1])))
        for i, axis in enumerate(spec.space):
            dims.append(GridDim(name=axis, size=size, start=nodes[:, i].min(), stop=nodes[:, i].max()))
    return tuple(dims)


def _unit(stores: Sequence[Store], name: str) -> str:
    """What the first store says that knows it: fits know fewer units than generated instances."""
    return next((one for store in stores if (one := unit(store.spec, name)) != UNKNOWN_UNIT), UNKNOWN_UNIT)
