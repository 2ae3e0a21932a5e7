"""What the equation leaves unexplained once force and parameters are moved to the best values near an answer.

An answer is never exact, and what is left unexplained by it is mostly its own error. A step of Gauss and Newton takes
that part away: it moves the parameters and a smooth correction of the force, each in units of the answer's own standard
deviation, to where the equation fits best. What remains is noise, unless the data do not follow the equation.

Shapes: `B` instances, `P` outputs, `L` forces, `T` times, `K` parameters, `D` directions, `R` windows of time.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from distlfm.lfo.derivatives import local_fit, spline
from distlfm.lfo.model import FourierOperator, Prediction

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
    count, size, forces = len(values), values.shape[-1], prediction.force.shape[1]
    thin = spline(size, COARSE, values.dtype, values.device)
    chosen = torch.tensor(equation.learned)
    number = 1 + forces * WAVES + len(chosen)
    # The first of each instance is the answer; each of the others has one force or parameter moved.
    force = (prediction.force @ thin.T).unsqueeze(1).repeat(1, number, 1, 1)
    waves = _waves(values.dtype, values.device)
    sd = (0.5 * prediction.force_logvar.mean(-1)).exp()  # [B, L]
    for i in range(forces):
        force[:, 1 + i * WAVES : 1 + (i + 1) * WAVES, i] += sd[:, i].view(-1, 1, 1) * waves
    params = prediction.params.unsqueeze(1).repeat(1, number, 1)
    params[:, torch.arange(number - len(chosen), number), chosen] += (0.5 * prediction.params_logvar[:, chosen]).exp()
    every = equation.residual(
        (values @ thin.T).repeat_interleave(number, 0),
        force.flatten(0, 1),
        model.normal.physical(params.flatten(0, 1)),
    ).unflatten(0, (count, number))
    found: Tensor = every[:, 1:] - every[:, :1]
    return found


def _windows(residual: Tensor) -> Tensor:
    """Averages [..., R] over windows of time of what is unexplained [..., T]."""
    table = local_fit(residual.shape[-1], 0.5 / WINDOWS, WINDOWS, residual.dtype, residual.device)[0]
    return residual @ table.T


@lru_cache(maxsize=64)
def _waves(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Cosines [WAVES, COARSE] over the domain, of mean square one."""
    t = torch.linspace(0, math.pi, COARSE, dtype=dtype, device=device)
    found = torch.cos(torch.arange(WAVES, dtype=dtype, device=device).unsqueeze(-1) * t)
    return found * torch.where(torch.arange(WAVES, device=device) == 0, 1.0, math.sqrt(2)).unsqueeze(-1).to(found)
