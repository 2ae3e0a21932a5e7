"""What can be chosen about an operator: its layers, its loss, how it is trained, and which instances teach it.

`split` says which examples teach, which choose between epochs, and which calibrate: by a hash of their names, never by
chance.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, NonNegativeFloat, PositiveFloat, model_validator

from distlfm.config import Config
from distlfm.errors import UsageError


class OperatorConfig(Config):
    """The network. modes: Fourier modes kept, one number or one per dimension.

    points: of the grid on which the network works, whatever that of the data; by default as many as the training grid
    has. Forces are smooth, and fewer points than observations are faster.
    padding: how much longer than the domain the period of the Fourier series is, as a fraction of the domain.
    integrals, slopes: channels with the observations' integrals over time, and with their slopes (of a field curvatures
    too) by local regressions of these widths, as fractions of the domain.
    refine: whether a second estimate sees what the equation leaves unexplained by the first (where the equation can be
    evaluated: an ODE whose states are observed).
    head: width of the parameter head; pooled: channels whose products it integrates; regressions: least-squares fits of
    a channel by `regressors` others that it sees.
    """

    layers: int = Field(default=4, ge=1)
    width: int = Field(default=48, ge=4)
    modes: int | tuple[int, ...] = 12
    points: int | tuple[int, ...] | None = None
    padding: float = Field(default=0.25, ge=0.0, le=4.0)
    head: int = Field(default=128, ge=4)
    pooled: int = Field(default=32, ge=2)
    regressions: int = Field(default=10, ge=0)
    regressors: int = Field(default=5, ge=1)
    integrals: bool = True
    refine: bool = True
    slopes: tuple[PositiveFloat, ...] = (0.025, 0.06)

    def modes_of(self, num_dims: int) -> tuple[int, ...]:
        """Modes of each dimension."""
        return _one_each("modes", self.modes, num_dims, 1)

    def points_of(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Points of each dimension of the network's grid, for data of this shape in training."""
        return shape if self.points is None else _one_each("points", self.points, len(shape), 6)


def _one_each(name: str, given: int | tuple[int, ...], num_dims: int, least: int) -> tuple[int, ...]:
    values = (given,) * num_dims if isinstance(given, int) else given
    if len(values) != num_dims or min(values) < least:
        raise UsageError(
            f"operator.{name} is {given} for {num_dims} dimensions.",
            f"Give one number of {least} or more, or {num_dims} of them.",
        )
    return values


class LossConfig(Config):
    """The negative log-likelihood of forces, plus `parameters` times that of parameters.

    beta: 0 is the plain Gaussian likelihood; up to 1, errors count more alike whatever variance was predicted for them
    (Seitzer et al. 2022), which lets the mean learn first. warmup: share of the steps that lead from 1 to `beta`.
    variance: `expected` takes the likelihood's mean over the fit's posterior; `ignored` takes its mean as the truth.
    reconstruction: weight of the observed series solved forward with the prediction, see `physics`.
    """

    parameters: NonNegativeFloat = 1.0
    beta: float = Field(default=0.5, ge=0.0, le=1.0)
    warmup: float = Field(default=0.2, ge=0.0, le=1.0)
    variance: Literal["expected", "ignored"] = "expected"
    reconstruction: NonNegativeFloat = 0.0


class OptimiserConfig(Config):
    """AdamW with a linear warm-up over a share of the steps, then a cosine down to `floor` of the learning rate."""

    lr: PositiveFloat = 2e-3
    weight_decay: NonNegativeFloat = 1e-4
    warmup: float = Field(default=0.05, ge=0.0, lt=1.0)
    floor: float = Field(default=0.01, ge=0.0, le=1.0)
    clip: PositiveFloat = 1.0
    ema: float = Field(default=0.995, ge=0.0, lt=1.0)


class AugmentConfig(Config):
    """What is drawn anew in each epoch from the same training instances; nothing of it touches the other splits.

    noise: observation noise is drawn anew around the solution (generated instances only).
    missing: most observations that are hidden of an instance, as a share; how many, is drawn.
    recombine: share of generated instances that get the parameters of another one, solved forward (ODEs only).
    mix: share of these that get a sum of two forces too, with random signs, as of another draw of a
    Gaussian process.
    """

    noise: bool = True
    missing: float = Field(default=0.0, ge=0.0, lt=1.0)
    recombine: float = Field(default=0.0, ge=0.0, le=1.0)
    mix: float = Field(default=0.0, ge=0.0, le=1.0)


class SplitConfig(Config):
    """Shares of the instances held out. An instance is sorted by a hash of its id, so that all copies of it, in any of
    the stores, are on the same side. group: ids that are equal up to the first of these separators stay together. By
    default those of one series stay together whose windows are numbered (`p1/0`, `p1/1`); with "" each is by itself.
    """

    validation: float = Field(default=0.1, ge=0.0, lt=1.0)
    calibration: float = Field(default=0.1, ge=0.0, lt=1.0)
    group: str | None = None
    seed: int = 0

    @model_validator(mode="after")
    def _leaves_some(self) -> SplitConfig:
        if self.validation + self.calibration >= 1:
            raise ValueError("validation and calibration leave nothing to train on")
        return self


class LoopConfig(Config):
    """batch: of all ranks together. precision: `auto` is bfloat16 on a GPU that has it, else float32; `float64` is slow
    and leaves next to nothing to rounding, for comparing runs. bfloat16 is for the products of the lifting and of the
    Fourier layers; weights, heads and losses are in float32.

    memory: megabytes of examples that are kept after their first reading. validate_every: epochs.
    """

    epochs: int = Field(default=60, ge=1)
    batch: int = Field(default=64, ge=1)
    seed: int = Field(default=0, ge=0)
    precision: Literal["auto", "float32", "bfloat16", "float64"] = "auto"
    memory: PositiveFloat = 2000.0
    validate_every: int = Field(default=1, ge=1)


class TrainSettings(Config):
    """All that `Training` asks for."""

    operator: OperatorConfig = OperatorConfig()
    loss: LossConfig = LossConfig()
    optimiser: OptimiserConfig = OptimiserConfig()
    augment: AugmentConfig = AugmentConfig()
    loop: LoopConfig = LoopConfig()
    split: SplitConfig = SplitConfig()


Index = NDArray[np.intp]
"""Numbers of examples, [n]."""


@dataclass(frozen=True)
class Split:
    """Numbers of the examples of each part; no id is in two of them."""

    train: Index
    validation: Index
    calibration: Index


def split(ids: Sequence[str], config: SplitConfig) -> Split:
    """Sort instances by a hash of their id, or of their group's, whatever store and row they are in."""
    share = np.array([_share(_group(name, config.group), config.seed) for name in ids])
    validation = share < config.validation
    calibration = ~validation & (share < config.validation + config.calibration)
    return Split(*(np.flatnonzero(part) for part in (~validation & ~calibration, validation, calibration)))


def _group(name: str, separator: str | None) -> str:
    """What an instance shares with those that must be on its side."""
    if separator is None:
        series, _, number = name.rpartition("/")
        return series if series and number.isdecimal() else name
    return name.split(separator)[0] if separator else name


def _share(name: str, seed: int) -> float:
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64
