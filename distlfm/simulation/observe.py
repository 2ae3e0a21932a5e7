"""What is seen of a drawn instance: at which points of the grid, with which noise, with which gaps.

Shapes: `P` outputs, `Q` points of the grid, `n` observed ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from distlfm.inference.model import Model
from distlfm.instance import FloatArray
from distlfm.runs.settings import GenerateConfig

FEWEST = 2
"""Values that are always left, however much is missing."""


@dataclass(frozen=True)
class Plan:
    """Which points may be observed. times: [Q] of all points; candidates: of these one draws or takes all.

    count: how many are drawn, None for all. kept: that many of the first candidates are never left out of a draw.
    """

    times: FloatArray
    candidates: NDArray[np.intp]
    count: int | None
    kept: int

    @staticmethod
    def of(config: GenerateConfig, times: FloatArray, *, is_field: bool) -> Plan:
        """The plan of a config for points whose times [Q] are given, those of one time together."""
        steps = np.unique(times, return_inverse=True)[1]
        candidates = np.flatnonzero(steps % config.sampling.every == 0)
        # A trajectory's first time is where its start is known: a fit begins at the first observation.
        return Plan(times, candidates, config.sampling.count, 0 if is_field else 1)

    @property
    def size(self) -> int:
        """n."""
        return len(self.candidates) if self.count is None else self.count

    def points(self, generator: np.random.Generator) -> NDArray[np.intp]:
        """The observed points [n] of one instance, in order."""
        if self.count is None:
            return self.candidates
        drawn = generator.choice(self.candidates[self.kept :], self.count - self.kept, replace=False)
        return np.sort(np.concatenate([self.candidates[: self.kept], drawn]))


def observe(
    config: GenerateConfig,
    model: Model,
    plan: Plan,
    outputs: FloatArray,
    parameters: Mapping[str, FloatArray],
    generator: np.random.Generator,
) -> tuple[NDArray[np.intp], FloatArray]:
    """Points [n] and values [P, n] of an instance with noise-free outputs [P, Q]; NaN where nothing was observed."""
    points = plan.points(generator)
    clean = outputs[:, points]
    if config.noise is None:
        seen = model.likelihood.sample(parameters, clean, generator)
    else:
        seen = clean + config.noise * generator.standard_normal(clean.shape)
    mask = generator.random(seen.shape) >= config.missing
    if config.gaps is not None:
        number = generator.poisson(config.gaps.number)
        starts = generator.uniform(config.start, config.stop, number)
        ends = starts + generator.exponential(config.gaps.length, number)
        times = plan.times[points, None]
        mask &= ~((starts <= times) & (times <= ends)).any(-1)
    if mask.sum() < FEWEST:
        mask.flat[generator.choice(mask.size, FEWEST, replace=False)] = True
    return points, np.where(mask, seen, np.nan)
