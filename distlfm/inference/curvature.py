"""Second derivatives of the objective, and modes found with their help.

L-BFGS alone is slow where the data fix some directions a thousand times better than others. So it goes in rounds: each
begins with the curvature where the last one ended, and works in coordinates in which that is the identity.
Shapes: `A` problems, `n` unknowns.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from distlfm.inference.optimise import Objective, OptimiserConfig, Optimum, Status, evaluate, minimise
from distlfm.runtime.reporting import during, stepped

FLATTEST = 0.3
"""Smallest curvature kept: the prior alone has curvature 1, and less than this is a saddle, not knowledge."""

ROWS = 256
"""Rows evaluated in one call."""

DIFFERENCE = 1e-3
"""Step of the central differences of the gradient; unknowns have the scale of a standard normal."""


CHORDS, ROUNDING, CLOSE = 4, 1e-12, 0.1
"""Newton steps that end a search, by what share of itself rounding may raise the objective, and the largest `distance`
of a search that asks for a mode, and not for a place to begin at."""


def find_modes(objective: Objective, z0: Tensor, options: OptimiserConfig) -> Optimum:
    """Minimise from z0 [A, n] in rounds of L-BFGS, the later ones preconditioned by the curvature."""
    found = minimise(objective, z0, options)
    for number in range(options.rounds if z0.shape[-1] else 0):
        rows = torch.nonzero(found.status != Status.DIVERGED).squeeze(-1)
        if len(rows) == 0:
            break
        root = root_of_inverse(hessian(objective, found.z[rows], rows))
        _, grad = evaluate(objective, found.z[rows], rows)
        # The gradient in units of the posterior's deviations: how far the mode still is.
        away = (root.mT @ grad.unsqueeze(-1)).squeeze(-1).abs().amax(-1)
        near = away <= options.distance
        found.status[rows[near]] = int(Status.CONVERGED)
        if options.distance <= CLOSE and bool(near.any()):
            found = _polished(objective, found, rows[near], root[near], grad[near])
        rows, root = rows[~near], root[~near]
        if len(rows) == 0:
            break
        with during("round", number + 1, options.rounds):
            found = _round(objective, found, rows, root, options)
    return found


def _polished(objective: Objective, found: Optimum, rows: Tensor, root: Tensor, grad: Tensor) -> Optimum:
    """Newton steps of the problems `rows`, whose curvature is known: modes are then the same in any batch."""
    z, value = found.z[rows], found.value[rows]
    for _ in range(CHORDS):
        ahead = z - (root @ (root.mT @ grad.unsqueeze(-1))).squeeze(-1)
        level, slope = evaluate(objective, ahead, rows)
        better = torch.isfinite(slope).all(-1) & (level <= value + ROUNDING * (1 + value.abs()))
        z, grad = (torch.where(better.unsqueeze(-1), *pair) for pair in ((ahead, z), (slope, grad)))
        value = torch.where(better, level, value)
    iterations = torch.full_like(rows, CHORDS)
    return found.moved(rows, Optimum(z, value, found.status[rows], iterations, CHORDS, value.unsqueeze(0)))


def _round(objective: Objective, found: Optimum, rows: Tensor, root: Tensor, options: OptimiserConfig) -> Optimum:
    """Continue the problems `rows` in coordinates x with z = z_now + root x."""
    base = found.z[rows]

    def whitened(x: Tensor, some: Tensor) -> Tensor:
        return objective(base[some] + (root[some] @ x.unsqueeze(-1)).squeeze(-1), rows[some])

    closer = options.model_copy(update={"gradient": options.distance, "max_step": 4.0})
    moved = minimise(whitened, torch.zeros_like(base), closer)
    return found.moved(rows, replace(moved, z=base + (root @ moved.z.unsqueeze(-1)).squeeze(-1)))


def hessian(objective: Objective, z: Tensor, rows: Tensor) -> Tensor:
    """Second derivatives of each row's objective at z [A, n] → [A, n, n], by central differences of the gradient."""
    stepped("curvature")
    step = torch.full_like(z, DIFFERENCE)
    matrix = _differences(objective, z, rows, step)
    # Nearly noise-free data leave less room than the first step took: it shrinks to a part of the room found.
    room = torch.diagonal(matrix, dim1=-2, dim2=-1).clamp_min(1.0).rsqrt()
    tight = (0.1 * room < step).any(-1).nonzero().squeeze(-1)
    if len(tight):
        closer = torch.minimum(step, 0.1 * room)[tight]
        matrix[tight] = _differences(objective, z[tight], rows[tight], closer)
    return 0.5 * (matrix + matrix.mT)


def _differences(objective: Objective, z: Tensor, rows: Tensor, step: Tensor) -> Tensor:
    """Differences of the gradient [A, n, n] over steps of length step [A, n] to both sides of z [A, n]."""
    size = z.shape[-1]
    steps = torch.diag_embed(step)
    places = torch.cat([z.unsqueeze(1) + steps, z.unsqueeze(1) - steps], 1).flatten(0, 1)
    which = rows.repeat_interleave(2 * size)
    grads = [evaluate(objective, places[i : i + ROWS], which[i : i + ROWS])[1] for i in range(0, len(places), ROWS)]
    above, below = torch.cat(grads).unflatten(0, (len(z), 2, size)).unbind(1)
    matrix: Tensor = (above - below) / (2 * step.unsqueeze(-1))
    return matrix


def root_of_inverse(curvature: Tensor) -> Tensor:
    """A lower triangular R [B, n, n] with R Rᵀ = |curvature|⁻¹ [B, n, n], flat directions bounded by FLATTEST."""
    usable = torch.isfinite(curvature).all(-1).all(-1)
    curvature = torch.where(usable[:, None, None], curvature, torch.eye(curvature.shape[-1], dtype=curvature.dtype))
    eigenvalues, vectors = torch.linalg.eigh(curvature)
    scaled = vectors / eigenvalues.abs().clamp_min(FLATTEST).sqrt().unsqueeze(-2)
    # By QR, which no spread of the eigenvalues can make fail: one instance must not end the fit of its neighbours.
    upper = torch.linalg.qr(scaled.mT, mode="r").R
    root: Tensor = (upper * torch.diagonal(upper, dim1=-2, dim2=-1).sign().unsqueeze(-1)).mT
    return root
