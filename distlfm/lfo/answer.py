"""What an operator answers: the force on a grid with its bands, and parameters with their intervals.

Shapes: `L` forces; `n` points of the grid, `m` other points, `d` dimensions, time first.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from distlfm.instance import FloatArray


class Estimate(NamedTuple):
    """A parameter: its mean (median where it is learned by its logarithm), sd, and central intervals."""

    name: str
    kind: str
    mean: float
    sd: float
    lower68: float
    upper68: float
    lower95: float
    upper95: float


@dataclass(frozen=True)
class Answer:
    """axes: coordinates of each dimension of the grid, time first. mean, sd, lower and upper: [L, *grid].

    novelty: how unlike the training data the input is, 1 is the limit, NaN if that is not known; warning: a sentence if
    it is beyond, or None.
    """

    id: str
    forces: tuple[str, ...]
    dims: tuple[str, ...]
    axes: tuple[FloatArray, ...]
    mean: FloatArray
    sd: FloatArray
    lower68: FloatArray
    upper68: FloatArray
    lower95: FloatArray
    upper95: FloatArray
    parameters: tuple[Estimate, ...]
    novelty: float
    warning: str | None

    @property
    def times(self) -> FloatArray:
        return self.axes[0]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(axis) for axis in self.axes)

    @cached_property
    def points(self) -> FloatArray:
        """All points of the grid, [n, d], time first."""
        return np.stack([one.ravel() for one in np.meshgrid(*self.axes, indexing="ij")], -1)

    def at(self, times: FloatArray, positions: FloatArray | None = None) -> dict[str, FloatArray]:
        """mean, sd, lower68 … upper95 [L, m] at other points (times [m], positions [m, d]), linear in between."""
        wanted = np.asarray(times, float)[:, None]
        if positions is not None:
            wanted = np.concatenate([wanted, np.asarray(positions, float).reshape(len(wanted), -1)], -1)
        wanted = np.clip(wanted, [axis[0] for axis in self.axes], [axis[-1] for axis in self.axes])
        found = {}
        for name in ("mean", "sd", "lower68", "upper68", "lower95", "upper95"):
            values = np.moveaxis(getattr(self, name), 0, -1)
            found[name] = RegularGridInterpolator(self.axes, values)(wanted).T
        return found
