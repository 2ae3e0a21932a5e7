"""Whether an equation is what a method took it for, over the whole span and range of its answer.

Methods that integrate the force out read the matrices of a linear equation off a few trials. Here the equation is asked
again at all times of the answer, at values as large as those of data and force: were any rate another one there, the
curves would not be solutions.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from distlfm.inference.result import FitResult
from distlfm.solvers.linear import extract

TOLERANCE = 1e-6
"""Largest difference of a rate from that of the linear equation, relative to the largest rate."""

BETWEEN = 7
"""Times asked between two neighbours of the data, and of the grid: a known input may be short."""


@torch.no_grad()
def not_linear(result: FitResult, z: Tensor) -> Iterator[str]:
    """That the equation is not the linear one that was solved, in words. z: unknowns [1, n]."""
    mechanism, instance = result.posterior.model.mechanism, result.instance
    generator = torch.Generator().manual_seed(0)
    values = result.posterior.model.space.unpack(z)
    system = extract(mechanism, values)
    times = torch.from_numpy(_dense(instance.times, result.grid.times))
    seen = np.abs(instance.values[instance.mask])
    pushed = np.abs(result.grid.force.mean) + 2 * result.grid.force.sd

    def spread(size: float, count: int) -> Tensor:
        return size * (3 * torch.rand(len(times), count, generator=generator, dtype=torch.float64) - 1)

    y = spread(float(seen.max()), mechanism.num_states)
    f = spread(float(np.nanmax(pushed)), len(mechanism.force_names))
    rows = {name: value.expand(len(times), -1) for name, value in values.items()}
    linear = y @ system.A[0].mT + f @ system.B[0].mT + system.c[0]
    away = (mechanism.vector_field(times, y, f, rows) - linear).abs().amax(-1)
    if bool((away > TOLERANCE * (linear.abs().amax() + 1e-300)).any()):
        when = float(times[away.argmax()])
        yield (
            f"The equation was solved as a linear one whose coefficients stay, and at {when:g} it is another one: "
            "its rate changes with time, or bends with state and force. Set inference.method=nested, which solves it."
        )


def _dense(*axes: np.typing.NDArray[np.float64]) -> np.typing.NDArray[np.float64]:
    whole = np.unique(np.concatenate(axes))
    parts = np.arange(BETWEEN + 1) / (BETWEEN + 1)
    found: np.typing.NDArray[np.float64] = np.append(
        (whole[:-1, None] + np.diff(whole)[:, None] * parts).ravel(), whole[-1]
    )
    return found
