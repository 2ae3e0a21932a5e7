"""Named unknowns of a model with priors that whiten, and the flat vector that inference works on.

A parameter is a smooth increasing function of a standard normal number: every unknown is held as `z ~ N(0, 1)`, and its
prior is the function that carries `z` to the natural value. So constraints hold by construction, all unknowns have one
scale, the log-prior of everything is `−|z|²/2`, and a direction in which the posterior variance of `z` stays near 1 is
one that the data do not determine.

Shapes: `n` free unknowns, `K` elements of one parameter; leading dimensions are free (`[B]`, `[S, B]`, …).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field, PositiveFloat, ValidationError, model_validator
from torch import Tensor

from distlfm.config import Config, build, nearest
from distlfm.errors import UsageError
from distlfm.instance import Dimension

TAIL = 7.5
"""Uniform and half-normal priors are cut at this many standard deviations, where float64 still tells values apart."""


Written = TypeVar("Written", bound=Config)


def by_position(prior: type[Written]) -> type[Written]:
    """Return the class `prior` with an `__init__` that takes numbers by position too, in the order of the fields."""
    names = [name for name in prior.model_fields if name != "kind"]
    fix = f"Write {prior.__name__}({', '.join(names)})."

    def __init__(self: Config, *given: float, **named: Any) -> None:
        if len(given) > len(names):
            raise UsageError(f"{prior.__name__} takes {len(names)} numbers, and {len(given)} were given.", fix)
        content = dict(zip(names, given, strict=False))
        twice = [name for name in content if name in named]
        if twice:
            raise UsageError(f"{prior.__name__}: {twice[0]!r} is given twice.", "Give it by position or by name.")
        content |= named
        needed = [name for name in names if prior.model_fields[name].is_required() and name not in content]
        if needed:
            raise UsageError(f"{prior.__name__} needs {needed[0]!r}.", fix)
        try:
            Config.__init__(self, **content)
        except ValidationError:
            build(prior, content, source=prior.__name__)  # raises, with a sentence
            raise

    # Pydantic then validates a mapping by its own code, with its own messages, and does not call this one.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]
    prior.__init__ = __init__  # type: ignore[method-assign, assignment]
    return prior


@by_position
class LogNormal(Config):
    """The exponential of a normal, for positive numbers.

    median: the middle. spread: the standard deviation of the logarithm; 0.3 is about 30 % up or down.

    >>> LogNormal(2.0, 0.3)
    LogNormal(kind='lognormal', median=2.0, spread=0.3)
    """

    positive: ClassVar[bool] = True
    kind: Literal["lognormal"] = "lognormal"
    median: PositiveFloat
    spread: PositiveFloat = 1.0

    if TYPE_CHECKING:

        def __init__(self, median: float, spread: float = 1.0, *, kind: Literal["lognormal"] = "lognormal") -> None: ...

    def natural(self, z: Tensor) -> Tensor:
        """Return natural values of standard normal numbers. z: of any shape."""
        return self.median * torch.exp(self.spread * z)

    def whiten(self, value: Tensor) -> Tensor:
        """Return standard normal numbers of natural values. value: of any shape."""
        return (value.clamp_min(1e-300).log() - math.log(self.median)) / self.spread


@by_position
class Normal(Config):
    """A normal, for numbers of either sign. mean: the middle. sd: the standard deviation."""

    positive: ClassVar[bool] = False
    kind: Literal["normal"] = "normal"
    mean: float = 0.0
    sd: PositiveFloat = 1.0

    if TYPE_CHECKING:

        def __init__(self, mean: float = 0.0, sd: float = 1.0, *, kind: Literal["normal"] = "normal") -> None: ...

    def natural(self, z: Tensor) -> Tensor:
        """Return natural values of standard normal numbers. z: of any shape."""
        return self.mean + self.sd * z

    def whiten(self, value: Tensor) -> Tensor:
        """Return standard normal numbers of natural values. value: of any shape."""
        return (value - self.mean) / self.sd


@by_position
class Uniform(Config):
    """A uniform: every number between `low` and `high` is equally likely."""

    kind: Literal["uniform"] = "uniform"
    low: float
    high: float

    if TYPE_CHECKING:

        def __init__(self, low: float, high: float, *, kind: Literal["uniform"] = "uniform") -> None: ...

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if self.low >= self.high:
            raise ValueError(f"low ({self.low:g}) must be below high ({self.high:g})")
        return self

    @property
    def positive(self) -> bool:
        return self.low >= 0

    def natural(self, z: Tensor) -> Tensor:
        """Return natural values of standard normal numbers. z: of any shape."""
        fraction: Tensor = torch.special.ndtr(z)
        return self.low + (self.high - self.low) * fraction

    def whiten(self, value: Tensor) -> Tensor:
        """Return standard normal numbers of natural values. value: of any shape."""
        fraction = (value - self.low) / (self.high - self.low)
        z: Tensor = torch.special.ndtri(fraction.clamp(1e-12, 1 - 1e-12))
        return z.clamp(-TAIL, TAIL)


@by_position
class HalfNormal(Config):
    """The absolute value of a normal with mean 0 and standard deviation `scale`."""

    positive: ClassVar[bool] = True
    kind: Literal["halfnormal"] = "halfnormal"
    scale: PositiveFloat

    if TYPE_CHECKING:

        def __init__(self, scale: float, *, kind: Literal["halfnormal"] = "halfnormal") -> None: ...

    def natural(self, z: Tensor) -> Tensor:
        """Return natural values of standard normal numbers. z: of any shape."""
        value: Tensor = -torch.special.ndtri(torch.special.ndtr(-z.clamp(-TAIL, TAIL)) / 2)
        return self.scale * value

    def whiten(self, value: Tensor) -> Tensor:
        """Return standard normal numbers of natural values. value: of any shape."""
        upper = 2 * torch.special.ndtr(-(value / self.scale).clamp_min(1e-12))
        z: Tensor = -torch.special.ndtri(upper)
        return z.clamp(-TAIL, TAIL)


Prior = Annotated[LogNormal | Normal | Uniform | HalfNormal, Field(discriminator="kind")]


Measured = Dimension | Mapping[str, Dimension] | None
Values = Mapping[str, Tensor]
"""Natural values by parameter name, each [..., K]."""


@dataclass(frozen=True)
class Parameter:
    """An unknown with `K = len(labels)` elements that share one prior.

    name: in configs and results. labels: of the K elements, a tuple. prior: of each element. kind: where it belongs,
    `mechanism`, `initial`, `kernel` or `noise`. positive: whether it must not be negative. fixed: elements that are
    known, by their labels. own: priors of elements, by their labels, that have another than the shared one.
    dimension: what it is measured in, for all elements or by their labels; None where that is not known.
    meaning: what it is, in a few words, for those who choose its prior.

    Raises `UsageError` if prior or known values do not suit it.
    """

    name: str
    labels: tuple[str, ...]
    prior: Prior
    kind: str = "mechanism"
    positive: bool = False
    fixed: Mapping[str, float] = field(default_factory=dict)
    dimension: Measured = None
    meaning: str = ""
    own: Mapping[str, Prior] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.labels, str):
            raise UsageError(f"The labels of {self.name!r} are a text.", f"Give a tuple: ({self.labels!r},).")
        for prior in (self.prior, *self.own.values()):
            if self.positive and not prior.positive:
                raise UsageError(
                    f"{self.name!r} is positive, and its prior ({prior.kind}) allows negative values.",
                    "Use lognormal, halfnormal, or uniform with low ≥ 0.",
                )
        for label, value in self.fixed.items():
            if label not in self.labels:
                raise UsageError(f"{self.name!r} has no element {label!r}.", nearest(label, self.labels))
            if self.positive and value < 0:
                raise UsageError(f"{self.name}[{label}] is fixed to {value:g}.", "It must not be negative.")

    def dimension_of(self, label: str) -> Dimension | None:
        """Return what the element `label` is measured in, or None where that is not known."""
        return self.dimension.get(label) if isinstance(self.dimension, Mapping) else self.dimension

    def prior_of(self, label: str) -> Prior:
        """Return the prior of the element `label`."""
        return self.own.get(label, self.prior)

    def natural(self, z: Tensor) -> Tensor:
        """Return natural values of the free elements. z: standard normal numbers [..., n]."""
        if not self.own:
            return self.prior.natural(z)
        return torch.stack([self._free_prior(i).natural(one) for i, one in enumerate(z.unbind(-1))], -1)

    def whiten(self, value: Tensor) -> Tensor:
        """Return standard normal numbers, the inverse of `natural`. value: of the free elements, [..., n]."""
        if not self.own:
            return self.prior.whiten(value)
        return torch.stack([self._free_prior(i).whiten(one) for i, one in enumerate(value.unbind(-1))], -1)

    def _free_prior(self, i: int) -> Prior:
        return self.prior_of(self.labels[self.free[i]])

    @property
    def free(self) -> tuple[int, ...]:
        return tuple(i for i, label in enumerate(self.labels) if label not in self.fixed)


def start_parameter(outputs: Sequence[str], prior: Prior, *, positive: bool = False, dimension: Measured) -> Parameter:
    """Return the unknown initial state of a mechanism whose start is free.

    outputs: labels of the states. prior: of each. positive: whether states must not be negative. dimension: what they
    are measured in.
    """
    meaning = "state at the first time"
    return Parameter("initial", tuple(outputs), prior, "initial", positive, dimension=dimension, meaning=meaning)


class ParameterSpace:
    """The free elements of `parameters`, a list, as one vector `z` that is standard normal a priori."""

    def __init__(self, parameters: Sequence[Parameter]) -> None:
        names = [parameter.name for parameter in parameters]
        assert len(set(names)) == len(names), f"parameter names repeat: {names}"
        self.parameters = tuple(parameters)
        ends = list(accumulate((len(parameter.free) for parameter in parameters), initial=0))
        self._slices = {name: slice(*both) for name, both in zip(names, pairwise(ends), strict=True)}
        self.num_free = ends[-1]

    def __getitem__(self, name: str) -> Parameter:
        return next(parameter for parameter in self.parameters if parameter.name == name)

    def slice_of(self, name: str) -> slice:
        """Return where the free elements of the parameter `name` stand in `z`."""
        return self._slices[name]

    @property
    def free_names(self) -> tuple[str, ...]:
        """A name for each of the n coordinates, such as `decay[p21]`."""
        return tuple(
            f"{parameter.name}[{parameter.labels[i]}]" if len(parameter.labels) > 1 else parameter.name
            for parameter in self.parameters
            for i in parameter.free
        )

    def unpack(self, z: Tensor) -> dict[str, Tensor]:
        """Return natural values by name, each [..., K], fixed elements filled in. z: [..., n]."""
        values = {}
        for parameter in self.parameters:
            free = parameter.natural(z[..., self._slices[parameter.name]])
            if parameter.fixed:
                columns = list(free.unbind(-1))
                for i, label in enumerate(parameter.labels):
                    if label in parameter.fixed:
                        columns.insert(i, torch.full(z.shape[:-1], parameter.fixed[label], dtype=z.dtype))
                free = torch.stack(columns, -1)
            values[parameter.name] = free
        return values

    def pack(self, values: Values, like: Tensor) -> Tensor:
        """Return z [..., n]; a parameter that is not given stays at its prior's middle, zero.

        values: natural values by name, each [..., K]. like: [..., n], gives shape and type.
        """
        z = torch.zeros_like(like)
        for name, value in values.items():
            parameter = self[name]
            z[..., self._slices[name]] = parameter.whiten(value[..., list(parameter.free)])
        return z
