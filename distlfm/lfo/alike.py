"""What stores say of their equation, and whether one operator can learn from several of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distlfm.errors import UsageError
from distlfm.mechanisms.build import build_system, known_systems
from distlfm.mechanisms.field import FieldConfig
from distlfm.mechanisms.system import System
from distlfm.store import Store, StoreSpec
from distlfm.store.layout import UNKNOWN_UNIT, unit

if TYPE_CHECKING:
    from distlfm.lfo.schema import GridDim

OVERLAP = 0.5
"""Of the range of a dimension that two stores span together, so much at least must be in both."""

MAY_DIFFER = ("priors", "outputs", "fixed")
"""Options of a mechanism that are no part of its equation, or are compared by other means."""

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
    found: dict[str, object] = {
        "mechanism": spec.attributes.get("mechanism"),
        "outputs": spec.outputs,
        "forces": spec.forces,
        "axes": spec.space,
    }
    mechanism = mechanism_in(spec)
    system = _system(mechanism, spec.outputs)
    if system is None:
        return found
    options = system.options.model_dump(mode="json", exclude=set(MAY_DIFFER))
    if isinstance(system.options, FieldConfig):
        start = system.options.initial
        options = {name: value for name, value in options.items() if name not in NUMERICAL}
        options["initial"] = (start.kind, start.points, start.values)
    found |= {f"mechanism.{name}": value for name, value in options.items()}
    return found | {"known parameters": known_elements(mechanism, spec.outputs)}


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
