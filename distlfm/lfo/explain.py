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
from distlfm.lfo.tables import table

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
    scale = noise.unsqueeze(-1)
    at = _windows(residual / scale)
    moves = _moves(model, values, prediction) / scale.unsqueeze(1)
    start, moves = at.flatten(1), _windows(moves).flatten(2)  # [B, P·R], [B, D, P·R]
    gram = moves @ moves.mT + FREE * torch.eye(moves.shape[1], dtype=moves.dtype, device=moves.device)
    step = torch.linalg.solve(gram, -(moves @ start.unsqueeze(-1)))  # [B, D, 1]
    left = start + (moves.mT @ step).squeeze(-1)
    forces, params = step.squeeze(-1).square().split([prediction.force.shape[1] * WAVES, len(equation.learned)], -1)
    return Explained(left.view_as(at), torch.stack([forces.mean(-1), params.mean(-1)], -1))


def _moves(model: FourierOperator, values: Tensor, prediction: Prediction) -> Tensor:
    """How the residual [B, D, P, COARSE] changes if a force or a parameter is moved by a standard deviation."""
    equation = model.equation
    assert equation is not None
    thin = spline(values.shape[-1], COARSE, values.dtype, values.device).T
    waves, ones = _directions(
        prediction.force.shape[1], prediction.params.shape[1], equation.learned, values.dtype, values.device
    )
    force_sd = (0.5 * prediction.force_logvar.mean(-1)).exp()[:, None, :, None]
    params_sd = (0.5 * prediction.params_logvar).exp().unsqueeze(1)
    force = (prediction.force @ thin).unsqueeze(1) + force_sd * waves
    params = prediction.params.unsqueeze(1) + params_sd * ones
    every = equation.residual(
        (values @ thin).repeat_interleave(len(ones), 0),
        force.flatten(0, 1),
        model.normal.physical(params.flatten(0, 1)),
    ).unflatten(0, (len(values), len(ones)))
    found: Tensor = every[:, 1:] - every[:, :1]
    return found


def _windows(residual: Tensor) -> Tensor:
    """Averages [..., R] over windows of time of what is unexplained [..., T]."""
    table = local_fit(residual.shape[-1], 0.5 / WINDOWS, WINDOWS, residual.dtype, residual.device)[0]
    return residual @ table.T


@table
def _directions(
    forces: int, params: int, chosen: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What is added to the forces, [1 + D, L, COARSE], and to the parameters, [1 + D, K], in standard deviations.

    First nothing; then, one at a time, cosines of mean square one to each force, and one to each chosen parameter.
    """
    number = 1 + forces * WAVES + len(chosen)
    waves, ones = torch.zeros(number, forces, COARSE, dtype=dtype), torch.zeros(number, params, dtype=dtype)
    cosines = torch.cos(
        torch.arange(WAVES, dtype=dtype).unsqueeze(-1) * torch.linspace(0, math.pi, COARSE, dtype=dtype)
    )
    cosines[1:] *= math.sqrt(2)
    for i in range(forces):
        waves[1 + i * WAVES : 1 + (i + 1) * WAVES, i] = cosines
    ones[torch.arange(number - len(chosen), number), torch.tensor(chosen, dtype=torch.long)] = 1
    return waves.to(device), ones.to(device)
