"""A partial differential equation as inference sees it: a weak form on a mesh, with boundaries and a start."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, FiniteFloat, PositiveFloat, TypeAdapter, model_validator

from distlfm.config import Config
from distlfm.equations import Coefficient, Equation, advection_diffusion, fisher_kpp, reaction_diffusion
from distlfm.equations.base import BoundaryConfig, EquationRef, MeshConfig, ProblemSpec
from distlfm.errors import UsageError
from distlfm.instance import POSITION, TIME, VALUE, Dimension
from distlfm.mechanisms.base import MechanismConfig, System, by_options
from distlfm.mechanisms.priors import LogNormal, Parameter, Prior

DIMS = {"interval": 1, "rectangle": 2, "box": 3}

PRIOR: TypeAdapter[Any] = TypeAdapter(Prior)


class InitialConfig(Config):
    """The state at the start.

    `zero`; `given`: `values` at `points`, between which it is interpolated, or one value for all (a point is a number
    on a line, and a list of coordinates elsewhere); `scaled`: that profile times a learned positive number; `field`:
    unknown, a Gaussian process in space whose lengthscale and deviation are learned too.
    """

    kind: Literal["zero", "given", "scaled", "field"] = "zero"
    points: tuple[FiniteFloat | tuple[FiniteFloat, ...], ...] = ()
    values: tuple[FiniteFloat, ...] = ()
    scale: Prior = LogNormal(median=1.0, spread=1.0)
    lengthscale: Prior = LogNormal(median=1.0, spread=1.0)
    deviation: Prior = LogNormal(median=1.0, spread=1.0)

    @model_validator(mode="after")
    def _profile(self) -> InitialConfig:
        if self.kind in ("given", "scaled"):
            if not self.values:
                raise ValueError(f"an initial state of kind '{self.kind}' needs values")
            if len(self.values) > 1 and len(self.points) != len(self.values):
                raise ValueError("points and values must be as many; one value alone holds everywhere")
            if len(set(self.points)) < len(self.points):
                raise ValueError("a point of the initial state is given twice")
            if len({len(one) if isinstance(one, tuple) else 1 for one in self.points}) > 1:
                raise ValueError("points of the initial state have different numbers of coordinates")
        return self


class FieldConfig(MechanismConfig):
    """Options of every partial differential equation.

    boundary: conditions by the boundary's name; where nothing is said, nothing flows through it.
    start: when the equation begins, by default at the first observation. step: longest time step, by default half of
    the shortest gap between observed times, or a fortieth of the whole, and halved where that changes the answer.
    scheme: of the steps, `crank_nicolson` or one that a plugin registers.
    solver: `dense`, `sparse`, `petsc` or `taped`, by default by the size of the mesh and by the form. ranks: processes
    among which `petsc` divides the mesh; by default one, and two above `mesh_limit` nodes.
    linear_solver: of `petsc`: a direct one, or conjugate gradients with algebraic multigrid, whose residual is at most
    `linear_tolerance` relative to the right-hand side.
    """

    outputs: tuple[str, ...] = ("output",)
    mesh: MeshConfig = MeshConfig()
    boundary: Mapping[str, BoundaryConfig] = {}
    initial: InitialConfig = InitialConfig()
    degree: int = Field(default=1, ge=1, le=2)
    start: float | None = None
    step: PositiveFloat | None = None
    scheme: str = "crank_nicolson"
    solver: Literal["auto", "dense", "sparse", "petsc", "taped"] = "auto"
    ranks: int | None = Field(default=None, ge=1)
    mesh_limit: int = Field(default=60_000, ge=1)
    linear_solver: Literal["auto", "mumps", "petsc_lu", "cg_amg"] = "auto"
    linear_tolerance: float = Field(default=1e-10, gt=0, lt=1)
    dims: int | None = Field(default=None, ge=1, le=3)

    @model_validator(mode="after")
    def _consistent(self) -> FieldConfig:
        if len(self.outputs) != 1:
            raise ValueError(f"a field has one output, and {len(self.outputs)} are named; fit them one by one")
        if self.dims is not None and self.mesh.kind != "file":
            raise ValueError(f"dims is for a mesh from a file; an {self.mesh.kind} has {DIMS[self.mesh.kind]}")
        return self

    @property
    def num_dims(self) -> int:
        """Space dimensions: the mesh's, or `dims` for a mesh from a file."""
        return self.dims or DIMS.get(self.mesh.kind, 2)


class FieldMechanism(System):
    """One field y(t, x) driven by one force f(t, x).

    mesh: where the equation lives. boundary: conditions by the boundary's name; where nothing is said, nothing flows
    through it. initial: the state at the start. degree: of the finite elements, 1 or 2. dims: space dimensions of a
    mesh from a file. start: time at which the equation begins, by default the first observation. step: longest time
    step, by default from the data. scheme: of the time steps. solver: `dense`, `sparse`, `petsc` or `taped`, by default
    by the size of the mesh and by the form. ranks, mesh_limit: processes among which `petsc` divides the mesh, and
    nodes above which it does so unasked. linear_solver, linear_tolerance: those of `petsc`.
    """

    Options: ClassVar[type[MechanismConfig]] = FieldConfig
    equation: ClassVar[type[Equation]]

    @by_options
    def __init__(self, options: FieldConfig) -> None:
        super().__init__(options)
        self.field = options
        self.force_dimension = self.equation.force_dimension
        for name, value in options.fixed.items():
            numbers = value.values() if isinstance(value, Mapping) else [value]
            if name in self.coefficients and self.coefficients[name].positive and any(one < 0 for one in numbers):
                raise UsageError(
                    f"The coefficient {name!r} of {options.kind} is fixed to {min(numbers):g}, and it cannot be "
                    "negative: the equation would have no solution.",
                    f"Give mechanism.fixed.{name} a value of zero or more.",
                )

    @property
    def coefficients(self) -> Mapping[str, Coefficient]:
        """The coefficients of the equation, by name."""
        named = self.equation().named(self.field.num_dims)
        for name, one in named.items():
            if not isinstance(one, Coefficient):
                raise UsageError(
                    f"The coefficient {name!r} of {self.equation.__name__} is a {type(one).__name__}.",
                    f"Give a prior, positive(median, spread) or real(mean, sd); mechanism.fixed.{name} makes it known.",
                )
        return named

    @property
    def force_dims(self) -> int:
        return 1 + self.field.num_dims

    @property
    def input_dimensions(self) -> tuple[Dimension | None, ...]:
        return (TIME, *(POSITION,) * self.field.num_dims)

    def parameters(self) -> list[Parameter]:
        declared = []
        for name, one in self.coefficients.items():
            prior = PRIOR.validate_python(dict(one.prior))
            declared.append(Parameter(name, (name,), prior, "mechanism", one.positive, {}, one.dimension, one.meaning))
        start = self.field.initial
        unknown: dict[str, list[tuple[str, Dimension | None, str]]] = {
            "scaled": [("scale", None, "how many times the given profile the state at the start is")],
            "field": [
                ("lengthscale", POSITION, "how far the state at the start stays alike"),
                ("deviation", VALUE, "how large the state at the start is"),
            ],
        }
        for name, of, meaning in unknown.get(start.kind, []):
            prior = getattr(start, name)
            declared.append(Parameter(f"initial_{name}", (name,), prior, "initial", True, {}, of, meaning))
        return declared

    def problem(self, mesh: MeshConfig) -> ProblemSpec:
        """Return what a helper group is asked to discretise. mesh: one whose extent is settled."""
        equation, options = _where(self.equation), self.field
        return ProblemSpec(equation=equation, mesh=mesh, boundary=options.boundary, degree=options.degree)


def _where(equation: type[Equation]) -> EquationRef:
    """Where a helper process finds the class; the file goes along for a plugin that is not an installed module."""
    file = None
    if not equation.__module__.startswith("distlfm."):
        spec = getattr(sys.modules.get(equation.__module__), "__spec__", None)
        source = getattr(spec, "origin", None) or inspect.getsourcefile(equation)
        file = None if source is None else Path(source).resolve()
    return EquationRef(module=equation.__module__, name=equation.__qualname__, file=file)


@functools.cache
def field_of(equation: type[Equation]) -> type[FieldMechanism]:
    """The mechanism of a registered equation, of its name; those shipped are found in this module."""
    home = __name__ if equation.__module__.startswith("distlfm.") else equation.__module__
    named = {"equation": equation, "kind": equation.kind, "__doc__": equation.__doc__, "__module__": home}
    return type(equation.__name__, (FieldMechanism,), named)


AdvectionDiffusion = field_of(advection_diffusion.AdvectionDiffusion)
FisherKpp = field_of(fisher_kpp.FisherKpp)
ReactionDiffusion = field_of(reaction_diffusion.ReactionDiffusion)
