"""Observed points of fields as pairs of distinct times and distinct places, and what trajectories are at them.

Shapes: `B` instances, `A` rows of unknowns, `T` observed points, `U` distinct times, `O` distinct places, `J` nodes,
`N` steps, `r` columns in time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.solvers.field.discretised import Discretised
from distlfm.solvers.field.engine import TimeGrid


@dataclass(frozen=True)
class Places:
    """Points of a batch taken apart into distinct times and places.

    before: [U] last step of the grid before each distinct time; share: [U] how far towards the next one; observe:
    [O, J]; time, place: [B, T] which of them each point has.
    """

    before: Tensor
    share: Tensor
    observe: Tensor
    time: Tensor
    place: Tensor


def take_apart(points: Tensor, grid: TimeGrid, discretised: Discretised) -> Places:
    """points: [B, T, 1 + d], none before the start of the grid or beyond its end."""
    flat = points.flatten(0, 1)
    earliest = float(flat[:, 0].min())
    if earliest < grid.start - 1e-9 * grid.dt * grid.steps:
        raise UsageError(
            f"The field is asked at time {earliest:g}, and its equation starts at {grid.start:g}.",
            "Ask for later times, or set mechanism.start.",
        )
    times, time = torch.unique(flat[:, 0], return_inverse=True)
    where, place = np.unique(flat[:, 1:].numpy(), axis=0, return_inverse=True)
    exact = (times - grid.start) / grid.dt
    near = exact.round()
    exact = torch.where((exact - near).abs() < 1e-9 * grid.steps, near, exact)
    before = exact.floor().clamp(0, grid.steps)
    shape = points.shape[:2]
    observe = discretised.observe(np.ascontiguousarray(where))
    index = torch.from_numpy(np.asarray(place).reshape(-1)).reshape(shape)
    return Places(before.long(), exact - before, observe, time.reshape(shape), index)


def kicks_of(time: Tensor, places: Places, steps: int) -> Tensor:
    """How strongly the answer to a pulse j + 1 steps ago counts at each time: [A, U, N, r] of time [A, N + 1, r]."""
    pairs = time[:, :-1] + time[:, 1:]
    # The answer of pulse k to step n is answers[n − 1 − k]; row `steps` is a zero for pulses that are still to come.
    padded = torch.cat([pairs, torch.zeros_like(pairs[:, :1])], 1)
    lag = torch.arange(steps)

    def at(step: Tensor) -> Tensor:
        index = step.unsqueeze(-1) - 1 - lag
        return padded[:, torch.where((index >= 0) & (index < steps), index, steps)]

    share = places.share[None, :, None, None]
    if not bool(places.share.any()):
        return at(places.before)
    return (1 - share) * at(places.before) + share * at(places.before + 1)


def at_times(observed: Tensor, places: Places) -> Tensor:
    """Trajectories [A, S, N + 1, O] at the distinct times, [A, S, U, O]."""
    last = observed.shape[2] - 1
    share = places.share[:, None]
    return (1 - share) * observed[:, :, places.before] + share * observed[:, :, (places.before + 1).clamp_max(last)]


def pick(values: Tensor, places: Places, rows: Tensor) -> Tensor:
    """values [A, ..., U, O] at each instance's points, [A, ..., T]."""
    flat = values.flatten(-2)
    index = places.time[rows] * values.shape[-1] + places.place[rows]
    if values.dim() == 3:
        return flat.gather(-1, index)
    return flat.gather(-1, index.unsqueeze(1).expand(-1, values.shape[1], -1))
