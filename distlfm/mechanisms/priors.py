"""Priors that whiten: a parameter is a smooth increasing function of a standard normal number.

Every unknown of a model is held as `z ~ N(0, 1)`; its prior is the function that carries `z` to the natural value. So
constraints hold by construction, all unknowns have one scale, the log-prior of everything is `−|z|²/2`, and a direction
in which the posterior variance of `z` stays near 1 is one that the data do not determine.
"""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, PositiveFloat, model_validator
from torch import Tensor

from distlfm.config import Config

TAIL = 7.5
"""Uniform and half-normal priors are cut at this many standard deviations, where float64 still tells values apart."""


class LogNormal(Config):
    """exp of a normal: `median` is the middle, `spread` the standard deviation of the logarithm."""

    positive: ClassVar[bool] = True
    kind: Literal["lognormal"] = "lognormal"
    median: PositiveFloat
    spread: PositiveFloat = 1.0

    def natural(self, z: Tensor) -> Tensor:
        return self.median * torch.exp(self.spread * z)

    def whiten(self, value: Tensor) -> Tensor:
        return (value.clamp_min(1e-300).log() - math.log(self.median)) / self.spread


class Normal(Config):
    """A normal with mean and standard deviation."""

    positive: ClassVar[bool] = False
    kind: Literal["normal"] = "normal"
    mean: float = 0.0
    sd: PositiveFloat = 1.0

    def natural(self, z: Tensor) -> Tensor:
        return self.mean + self.sd * z

    def whiten(self, value: Tensor) -> Tensor:
        return (value - self.mean) / self.sd


class Uniform(Config):
    """Equally likely between `low` and `high`."""

    kind: Literal["uniform"] = "uniform"
    low: float
    high: float

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


class HalfNormal(Config):
    """The absolute value of a normal with mean 0 and standard deviation `scale`."""

    positive: ClassVar[bool] = True
    kind: Literal["halfnormal"] = "halfnormal"
    scale: PositiveFloat

    def natural(self, z: Tensor) -> Tensor:
        value: Tensor = -torch.special.ndtri(torch.special.ndtr(-z.clamp(-TAIL, TAIL)) / 2)
        return self.scale * value

    def whiten(self, value: Tensor) -> Tensor:
        upper = 2 * torch.special.ndtr(-(value / self.scale).clamp_min(1e-12))
        z: Tensor = -torch.special.ndtri(upper)
        return z.clamp(-TAIL, TAIL)


Prior = Annotated[LogNormal | Normal | Uniform | HalfNormal, Field(discriminator="kind")]
