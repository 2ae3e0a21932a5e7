"""The contract of a partial differential equation, and a discretised problem in plain words.

An equation is one weak form with named coefficients, written in UFL: `∫ v ∂_t y dx = form(y, v, f, p)` for every test
function v. Time stepping, boundary conditions, meshes and derivatives are not its business. UFL is imported inside
`form`, which only helper groups call. A problem names an equation, a mesh, boundary conditions and a start. Neither
torch nor dolfin is imported here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, FiniteFloat, PositiveFloat, model_validator

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.instance import Dimension


@dataclass(frozen=True)
class Coefficient:
    """A number in the form.

    prior: the default one, in the words of a config. positive: whether it must be positive. dimension: what it is
    measured in, for the axes of reports; None where that is not given. meaning: what it is, in a few words.
    """

    prior: Mapping[str, Any]
    positive: bool = False
    dimension: Dimension | None = None
    meaning: str = ""


def positive(median: float, spread: float = 1.0, dimension: Dimension | None = None, meaning: str = "") -> Coefficient:
    """Return a positive coefficient, log-normal a priori.

    median, spread: of that prior, as for `LogNormal`. dimension, meaning: as for `Coefficient`.
    """
    prior = {"kind": "lognormal", "median": median, "spread": spread}
    return Coefficient(prior, positive=True, dimension=dimension, meaning=meaning)


def real(mean: float = 0.0, sd: float = 1.0, dimension: Dimension | None = None, meaning: str = "") -> Coefficient:
    """Return a coefficient of either sign, normal a priori.

    mean, sd: of that prior. dimension, meaning: as for `Coefficient`.
    """
    return Coefficient({"kind": "normal", "mean": mean, "sd": sd}, dimension=dimension, meaning=meaning)


class Equation(ABC):
    """One equation for one field y, driven by one force f."""

    kind: ClassVar[str] = ""
    coefficients: ClassVar[Mapping[str, Coefficient]] = {}
    force_dimension: ClassVar[Dimension | None] = None

    def named(self, dims: int) -> Mapping[str, Coefficient]:
        """Return the coefficients, by name, of the equation in `dims` space dimensions."""
        del dims
        return self.coefficients

    @abstractmethod
    def form(self, y: Any, v: Any, f: Any, p: Mapping[str, Any]) -> Any:
        """Return the weak form, of UFL.

        y: the state. v: the test function. f: the force. p: the coefficients by name.
        """


EQUATIONS: dict[str, type[Equation]] = {}


def register_equation(kind: str) -> Callable[[type[Equation]], type[Equation]]:
    """Return a class decorator that makes an equation known to configs and the command line.

    kind: its name there. Raises `UsageError` if the class is not an equation.
    """

    def keep(equation: type[Equation]) -> type[Equation]:
        if not (isinstance(equation, type) and issubclass(equation, Equation)):
            name = getattr(equation, "__name__", repr(equation))
            raise UsageError(f"{name} is registered as an equation, and is not one.", f"Write class {name}(Equation).")
        equation.kind = kind
        EQUATIONS[kind] = equation
        return equation

    return keep


class MeshConfig(Config):
    """Where the equation lives.

    kind: `interval`, `rectangle` and `box` are made from `lower` to `upper` (by default the range of the data) with
    cells no larger than `size`; an interval has all of `vertices` among its own. `file` is read from `path`: FEniCS
    XML, XDMF, or anything that meshio reads, such as Gmsh.
    """

    kind: Literal["interval", "rectangle", "box", "file"] = "interval"
    lower: tuple[FiniteFloat, ...] = ()
    upper: tuple[FiniteFloat, ...] = ()
    size: PositiveFloat | None = None
    vertices: tuple[FiniteFloat, ...] = ()
    path: Path | None = None

    @model_validator(mode="after")
    def _with_path(self) -> MeshConfig:
        if self.kind == "file" and self.path is None:
            raise ValueError("a mesh of kind 'file' needs a path")
        return self


class BoundaryConfig(Config):
    """What holds on one part of the boundary.

    `dirichlet`: the state is `value`. `neumann`: the flux into the domain is `value`. `robin`: that flux is
    `rate · (value − y)`.
    """

    kind: Literal["dirichlet", "neumann", "robin"] = "neumann"
    value: FiniteFloat = 0.0
    rate: FiniteFloat = Field(default=0.0, ge=0.0)

    @model_validator(mode="after")
    def _with_rate(self) -> BoundaryConfig:
        if self.kind == "robin" and self.rate == 0:
            raise ValueError("a robin condition needs a rate above zero; without one nothing flows (kind 'neumann')")
        return self


class EquationRef(Config):
    """Where an equation's class is: a module, or the file of a user's plugin, and the class's name."""

    module: str
    name: str
    file: Path | None = None


class ProblemSpec(Config):
    """Equation, mesh, boundary conditions by the boundary's name (`all` is the whole of it), polynomial degree."""

    equation: EquationRef
    mesh: MeshConfig
    boundary: Mapping[str, BoundaryConfig] = {}
    degree: int = Field(default=1, ge=1, le=2)
