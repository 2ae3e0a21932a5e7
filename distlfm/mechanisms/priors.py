"""Priors that whiten: a parameter is a smooth increasing function of a standard normal number.

Every unknown of a model is held as `z ~ N(0, 1)`; its prior is the function that carries `z` to the natural value. So
constraints hold by construction, all unknowns have one scale, the log-prior of everything is `−|z|²/2`, and a direction
in which the posterior variance of `z` stays near 1 is one that the data do not determine.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeVar

import torch
from pydantic import Field, PositiveFloat, ValidationError, model_validator
from torch import Tensor

from distlfm.config import Config, build
from distlfm.errors import UsageError

TAIL = 7.5
"""Uniform and half-normal priors are cut at this many standard deviations, where float64 still tells values apart."""


Written = TypeVar("Written", bound=Config)


def by_position(prior: type[Written]) -> type[Written]:
    """Class decorator: numbers may be given by position, `LogNormal(2.0, 0.3)`, in the order of the fields."""
    names = [name for name in prior.model_fields if name != "kind"]

    def __init__(self: Config, *given: float, **named: Any) -> None:
        if len(given) > len(names):
            raise UsageError(
                f"{prior.__name__} takes {len(names)} numbers, and {len(given)} were given.",
                f"Write {prior.__name__}({', '.join(names)}).",
            )
        content = dict(zip(names, given, strict=False))
        twice = [name for name in content if name in named]
        if twice:
            raise UsageError(f"{prior.__name__}: {twice[0]!r} is given twice.", "Give it by position or by name.")
        content |= named
        needed = [name for name in names if prior.model_fields[name].is_required() and name not in content]
        if needed:
            raise UsageError(f"{prior.__name__} needs {needed[0]!r}.", f"Write {prior.__name__}({', '.join(names)}).")
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
    """exp of a normal: `median` is the middle, `spread` the standard deviation of the logarithm."""

    positive: ClassVar[bool] = True
    kind: Literal["lognormal"] = "lognormal"
    median: PositiveFloat
    spread: PositiveFloat = 1.0

    if TYPE_CHECKING:

        def __init__(self, median: float, spread: float = 1.0, *, kind: Literal["lognormal"] = "lognormal") -> None: ...

    def natural(self, z: Tensor) -> Tensor:
        return self.median * torch.exp(self.spread * z)

    def whiten(self, value: Tensor) -> Tensor:
        return (value.clamp_min(1e-300).log() - math.log(self.median)) / self.spread


@by_position
class Normal(Config):
    """A normal with mean and standard deviation."""

    positive: ClassVar[bool] = False
    kind: Literal["normal"] = "normal"
    mean: float = 0.0
    sd: PositiveFloat = 1.0

    if TYPE_CHECKING:

        def __init__(self, mean: float = 0.0, sd: float = 1.0, *, kind: Literal["normal"] = "normal") -> None: ...

    def natural(self, z: Tensor) -> Tensor:
        return self.mean + self.sd * z

    def whiten(self, value: Tensor) -> Tensor:
        return (value - self.mean) / self.sd


@by_position
class Uniform(Config):
    """Equally likely between `low` and `high`."""

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
        fraction: Tensor = torch.special.ndtr(z)
        return self.low + (self.high - self.low) * fraction

    def whiten(self, value: Tensor) -> Tensor:
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
        value: Tensor = -torch.special.ndtri(torch.special.ndtr(-z.clamp(-TAIL, TAIL)) / 2)
        return self.scale * value

    def whiten(self, value: Tensor) -> Tensor:
        upper = 2 * torch.special.ndtr(-(value / self.scale).clamp_min(1e-12))
        z: Tensor = -torch.special.ndtri(upper)
        return z.clamp(-TAIL, TAIL)


Prior = Annotated[LogNormal | Normal | Uniform | HalfNormal, Field(discriminator="kind")]
