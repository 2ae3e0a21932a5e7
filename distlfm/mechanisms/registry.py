"""Which equations there are, by the name that a config gives them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from distlfm.errors import UsageError
from distlfm.mechanisms.system import System

REGISTRY: dict[str, type[System]] = {}

Kind = TypeVar("Kind", bound=System)


def register(kind: str) -> Callable[[type[Kind]], type[Kind]]:
    """Class decorator: make a mechanism known to configs and the command line under `kind`."""

    def keep(mechanism: type[Kind]) -> type[Kind]:
        if not (isinstance(mechanism, type) and issubclass(mechanism, System)):
            name = getattr(mechanism, "__name__", repr(mechanism))
            raise UsageError(f"{name} is registered as a mechanism, and is none.", f"Write class {name}(Mechanism).")
        REGISTRY[kind] = mechanism
        return mechanism

    return keep
