"""The config of `distlfm generate`: what is drawn, on which grid, and what is seen of it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from distlfm.config import Config
from distlfm.pipeline.settings import ModelConfig, WorkConfig


class SamplingConfig(Config):
    """Which points of the grid are observed: those of each `every`-th time, or `count` of these, drawn anew each time.

    The points of a field are those of its whole lattice, in time and space. The first time of an ODE is always drawn.
    """

    every: int = Field(default=1, ge=1)
    count: int | None = Field(default=None, ge=2)


class GapsConfig(Config):
    """Stretches of time without any observation: how many an instance has, and how long they are, both on average."""

    number: PositiveFloat
    length: PositiveFloat


class GenerateRunConfig(WorkConfig):
    """dir: the store. block: instances that are drawn together, and make one shard of it."""

    dir: Path | None = None
    block: int = Field(default=256, ge=1)


class GenerateConfig(ModelConfig):
    """`distlfm generate`: parameters and forces from the priors, solved forward, into a store.

    Solution and force are kept at `points` even times from `start` to `stop`, and those of a field at `places`
    positions a dimension. num_outputs: how many outputs a mechanism that leaves it open has.
    noise: a standard deviation (0 is none) in place of the likelihood's prior. missing: the share of values left out.
    units: of `time`, of `value` (all outputs) and `position` (all axes), as `data.units` has them; or of `x`, `y`, `z`,
    outputs, forces and parameters by their names, such as `decay` for all of its elements or `decay[p21]` for one.
    """

    verb: Literal["generate"] = "generate"
    title: str = ""
    instances: int = Field(default=1000, ge=1)
    seed: int = Field(default=0, ge=0)
    start: float = 0.0
    stop: float = 11.0
    points: int = Field(default=111, ge=2)
    places: int = Field(default=41, ge=2)
    num_outputs: int = Field(default=5, ge=1)
    sampling: SamplingConfig = SamplingConfig()
    noise: NonNegativeFloat | None = None
    missing: float = Field(default=0.0, ge=0.0, lt=1.0)
    gaps: GapsConfig | None = None
    units: Mapping[str, str] = {}
    run: GenerateRunConfig = GenerateRunConfig()

    @model_validator(mode="after")
    def _possible(self) -> GenerateConfig:
        if self.stop <= self.start:
            raise ValueError(f"stop ({self.stop:g}) must be after start ({self.start:g})")
        if len(range(0, self.points, self.sampling.every)) < 2:
            raise ValueError(f"sampling.every ({self.sampling.every}) leaves one of {self.points} times; leave two")
        return self

    def work(self) -> GenerateConfig:
        """The same without what changes no number: where the store is, how it is cut, and who computes."""
        return self.model_copy(update={"run": GenerateRunConfig(), "plugins": self.named_plugins()})
