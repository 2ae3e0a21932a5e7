"""From a config's section to the equation that it describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from distlfm.config import build, nearest
from distlfm.equations import EQUATIONS
from distlfm.errors import UsageError
from distlfm.mechanisms.base import Mechanism
from distlfm.mechanisms.contract import check_complete, check_contract
from distlfm.mechanisms.field import field_of
from distlfm.mechanisms.registry import REGISTRY
from distlfm.mechanisms.system import System


def known_systems() -> dict[str, type[System]]:
    """Every equation by its name: mechanisms, and fields made of registered weak forms."""
    return {**{kind: field_of(equation) for kind, equation in EQUATIONS.items()}, **REGISTRY}


def find_system(kind: str) -> type[System]:
    """The class of an equation."""
    known = known_systems()
    if kind not in known:
        own = "One of your own is known once its module is named: plugins=[MODULE], or --plugin MODULE."
        raise UsageError(f"There is no mechanism {kind!r}.", f"{nearest(kind, sorted(known))} {own}")
    check_complete(kind, known[kind])
    return known[kind]


def build_system(options: Mapping[str, object], outputs: Sequence[str] = ()) -> System:
    """The equation that a config section describes.

    `outputs` are the data's, taken if the section names none; without either the mechanism's own defaults hold.
    """
    system = find_system(str(options.get("kind", "")))
    content = dict(options)
    if not content.get("outputs"):
        content.pop("outputs", None)
        if outputs:
            content["outputs"] = tuple(outputs)
    made = system(build(system.Options, content, source="mechanism"))
    if isinstance(made, Mechanism):
        check_contract(made)
    return made


def build_mechanism(options: Mapping[str, object], outputs: Sequence[str] = ()) -> Mechanism:
    """As `build_system`, for ordinary differential equations only."""
    system = build_system(options, outputs)
    if not isinstance(system, Mechanism):
        raise UsageError(f"{system.options.kind} is a partial differential equation.", "Use it with `distlfm fit`.")
    return system
