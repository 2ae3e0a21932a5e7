"""What a sweep may choose from, as a config says it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, model_validator

from distlfm.config import Config

Values = Mapping[str, Any]


class Uniform(Config):
    """Any number from low to high."""

    kind: Literal["uniform"]
    low: float
    high: float

    def distribution(self, optuna: Any) -> Any:
        """As Optuna's module of distributions has it."""
        return optuna.FloatDistribution(self.low, self.high)

    def edges(self) -> tuple[Any, ...]:
        """Values that must be possible."""
        return (self.low, self.high)

    @model_validator(mode="after")
    def _ordered(self) -> Uniform:
        if not self.low < self.high or not math.isfinite(self.high - self.low):
            raise ValueError(f"low ({self.low:g}) must be below high ({self.high:g})")
        return self


class LogUniform(Config):
    """Any number from low to high, each order of magnitude as likely as another."""

    kind: Literal["loguniform"]
    low: PositiveFloat
    high: PositiveFloat

    def distribution(self, optuna: Any) -> Any:
        return optuna.FloatDistribution(self.low, self.high, log=True)

    def edges(self) -> tuple[Any, ...]:
        return (self.low, self.high)

    @model_validator(mode="after")
    def _ordered(self) -> LogUniform:
        if not self.low < self.high:
            raise ValueError(f"low ({self.low:g}) must be below high ({self.high:g})")
        return self


class Int(Config):
    """A whole number from low to high, in steps."""

    kind: Literal["int"]
    low: int
    high: int
    step: int = Field(default=1, ge=1)

    def distribution(self, optuna: Any) -> Any:
        return optuna.IntDistribution(self.low, self.high - (self.high - self.low) % self.step, step=self.step)

    def edges(self) -> tuple[Any, ...]:
        return (self.low, self.high)

    @model_validator(mode="after")
    def _ordered(self) -> Int:
        if not self.low <= self.high:
            raise ValueError(f"low ({self.low}) must not be above high ({self.high})")
        return self


class Choice(Config):
    """One of these values, of whatever type the key takes."""

    kind: Literal["choice"]
    values: tuple[Any, ...] = Field(min_length=1)

    def distribution(self, optuna: Any) -> Any:
        return optuna.CategoricalDistribution([json.dumps(value) for value in self.values])

    def edges(self) -> tuple[Any, ...]:
        return self.values


Range = Annotated[Uniform | LogUniform | Int | Choice, Field(discriminator="kind")]
