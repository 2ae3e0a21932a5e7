"""A discretised problem in plain words: equation, mesh, boundary conditions, start. No torch, no dolfin here."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, FiniteFloat, PositiveFloat, model_validator

from distlfm.config import Config


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
