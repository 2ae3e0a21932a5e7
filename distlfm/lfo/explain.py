"""What the equation leaves unexplained once force and parameters are moved to the best values near an answer.

An answer is never exact, and what is left unexplained by it is mostly its own error. A step of Gauss and Newton takes
that part away: it moves the parameters and a smooth correction of the force, each in units of the answer's own standard
deviation, to where the equation fits best. What remains is noise, unless the data do not follow the equation.

Shapes: `B` instances, `P` outputs, `L` forces, `T` times, `K` parameters, `D` directions, `R` windows of time.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from distlfm.lfo.derivatives import local_fit, spline
from distlfm.lfo.model import FourierOperator, Prediction
from distlfm.lfo.tables import ridge, table

WAVES = 14
"""Cosines that a correction of a force is made of."""

WINDOWS = 24
"""Parts of time in which what is unexplained is averaged."""

COARSE = 41
"""Times at which it is found out how moves change what is unexplained: roughly is enough."""

FREE = 0.1
"""Weight of a move by one standard deviation, in the variance of what is left in one window."""


TOGETHER = 32
"""Instances that are looked at together: each is moved in many directions."""


class Explained(NamedTuple):
    """left: [B, P, R], what remains, in units of the noise; moved: [B, 2], mean squares of the moves in standard

    deviations, of the forces and of the parameters.
    """

    left: Tensor
    moved: Tensor


def explain(
    model: FourierOperator, values: Tensor, prediction: Prediction, noise: Tensor, residual: Tensor
) -> Explained:
    """For values [B, P, T] with noise of standard deviation [B, P], and the residual [B, P, T] of the prediction."""
    if len(values) <= TOGETHER:
        return _explain(model, values, prediction, noise, residual)
    pieces = [
        _explain(model, values[at], Prediction(*(one[at] for one in prediction)), noise[at], residual[at])
        for at in (slice(first, first + TOGETHER) for first in range(0, len(values), TOGETHER))
    ]
    return Explained(*(torch.cat(one) for one in zip(*pieces, strict=True)))


def _explain(
    model: FourierOperator, values: Tensor, prediction: Prediction, noise: Tensor, residual: Tensor
) -> Explained:
    equation = model.equation
    assert equation is not None
    at = residual / noise.unsqueeze(-1) @ _windows(residual.shape[-1], residual.dtype, residual.device)
    start = at.flatten(1)  # [B, P·R]
    moves = (_moves(model, values, prediction) / noise[:, None, :, None]).flatten(2)  # [B, D, P·R]
    gram = moves @ moves.mT + ridge(moves.shape[1], FREE, moves.dtype, moves.device)
    step = torch.linalg.solve(gram, -(moves @ start.unsqueeze(-1)))  # [B, D, 1]
    left = start + (moves.mT @ step).squeeze(-1)
    forces, params = step.squeeze(-1).square().split([prediction.force.shape[1] * WAVES, len(equation.learned)], -1)
    return Explained(left.view_as(at), torch.stack([forces.mean(-1), params.mean(-1)], -1))


def _moves(model: FourierOperator, values: Tensor, prediction: Prediction) -> Tensor:
    """How the residual's averages [B, D, P, R] change if a force or a parameter is moved by a standard deviation.

    A force acts on the rates at its own time. So one move of a whole force tells those by each of its waves.
    """
    equation = model.equation
    assert equation is not None
    batch, forces = prediction.force.shape[:2]
    thin = spline(values.shape[-1], COARSE, values.dtype, values.device).T
    lifted, ones = _directions(forces, prediction.params.shape[1], equation.learned, values.dtype, values.device)
    force_sd = (0.5 * prediction.force_logvar.mean(-1)).exp().unsqueeze(1)
    params_sd = (0.5 * prediction.params_logvar).exp().unsqueeze(1)
    force = (prediction.force @ thin).unsqueeze(1) + (force_sd * lifted).unsqueeze(-1)
    params = prediction.params.unsqueeze(1) + params_sd * ones
    start, rates = equation.start_and_rates(
        (values @ thin).repeat_interleave(len(ones), 0),
        force.flatten(0, 1),
        model.normal.physical(params.flatten(0, 1)),
    )
    start, rates = (one.unflatten(0, (batch, len(ones))) for one in (start, rates))
    change = rates[:, 1:] - rates[:, :1]
    by_waves, by_one = _integrals(equation.step(COARSE), values.dtype, values.device)
    by_forces = (change[:, :forces] @ by_waves).unflatten(-1, (WAVES, WINDOWS)).transpose(2, 3).flatten(1, 2)
    by_params = change[:, forces:] @ by_one + (start[:, 1 + forces :] - start[:, :1]).unsqueeze(-1)
    return -torch.cat([by_forces, by_params], 1)


@table
def _windows(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Averages over windows of what is known at n times, [n, R]."""
    return local_fit(size, 0.5 / WINDOWS, WINDOWS)[0].T.to(device, dtype)


@table
def _integrals(step: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The windows' averages of the integral of a rate that is known at COARSE times, [COARSE, R]; before it, the same

    of the rate times each cosine of mean square one, [COARSE, WAVES · R].
    """
    weights = torch.ones(COARSE, COARSE, dtype=torch.float64).triu() - 0.5 * torch.eye(COARSE, dtype=torch.float64)
    weights[0] = 0.5
    weights[0, 0] = 0
    by_one = step * weights @ _windows(COARSE, torch.float64, torch.device("cpu"))
    times = torch.linspace(0, math.pi, COARSE, dtype=torch.float64)
    waves = torch.cos(torch.arange(WAVES, dtype=torch.float64) * times.unsqueeze(-1))
    waves[:, 1:] *= math.sqrt(2)
    by_waves = (waves.unsqueeze(-1) * by_one.unsqueeze(1)).flatten(1)
    return by_waves.to(device, dtype), by_one.to(device, dtype)


@table
def _directions(
    forces: int, params: int, chosen: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What is added to the forces, [1 + L + chosen, L], and to the parameters, [1 + L + chosen, K].

    In standard deviations: first nothing; then, one at a time, one to each force, and one to each chosen parameter.
    """
    number = 1 + forces + len(chosen)
    lifted, ones = torch.zeros(number, forces, dtype=dtype), torch.zeros(number, params, dtype=dtype)
    lifted[1 : 1 + forces] = torch.eye(forces, dtype=dtype)
    ones[torch.arange(1 + forces, number), torch.tensor(chosen, dtype=torch.long)] = 1
    return lifted.to(device), ones.to(device)
