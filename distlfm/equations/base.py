"""The contract of a partial differential equation: one weak form with named coefficients, written in UFL.

An equation is `∫ v ∂_t y dx = form(y, v, f, p)` for every test function v. Time stepping, boundary conditions, meshes
and derivatives are not its business. UFL is imported inside `form`, which only helper groups call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from distlfm.dimension import Dimension
from distlfm.errors import UsageError


@dataclass(frozen=True)
class Coefficient:
    """A number in the form: its default prior in the words of a config, and whether it must be positive.

    dimension: what it is measured in, for the axes of reports; None where that is not said. meaning: what it is, in a
    few words.
    """

    prior: Mapping[str, Any]
    positive: bool = False
    dimension: Dimension | None = None
    meaning: str = ""


def positive(median: float, spread: float = 1.0, dimension: Dimension | None = None, meaning: str = "") -> Coefficient:
    """A positive coefficient, log-normal a priori."""
    prior = {"kind": "lognormal", "median": median, "spread": spread}
    return Coefficient(prior, positive=True, dimension=dimension, meaning=meaning)


def real(mean: float = 0.0, sd: float = 1.0, dimension: Dimension | None = None, meaning: str = "") -> Coefficient:
    """A coefficient of either sign, normal a priori."""
    return Coefficient({"kind": "normal", "mean": mean, "sd": sd}, dimension=dimension, meaning=meaning)


class Equation(ABC):
    """One equation for one field y, driven by one force f."""

    kind: ClassVar[str] = ""
    coefficients: ClassVar[Mapping[str, Coefficient]] = {}
    force_dimension: ClassVar[Dimension | None] = None

    def named(self, dims: int) -> Mapping[str, Coefficient]:
        """The coefficients in `dims` space dimensions."""
        del dims
        return self.coefficients

    @abstractmethod
    def form(self, y: Any, v: Any, f: Any, p: Mapping[str, Any]) -> Any:
        """The weak form as a UFL form: state y, test function v, force f, coefficients p by name."""


EQUATIONS: dict[str, type[Equation]] = {}


def register_equation(kind: str) -> Callable[[type[Equation]], type[Equation]]:
    """Class decorator: make an equation known to configs and the command line under `kind`."""

    def keep(equation: type[Equation]) -> type[Equation]:
        if not (isinstance(equation, type) and issubclass(equation, Equation)):
            name = getattr(equation, "__name__", repr(equation))
            raise UsageError(f"{name} is registered as an equation, and is none.", f"Write class {name}(Equation).")
        equation.kind = kind
        EQUATIONS[kind] = equation
        return equation

    return keep
