"""Cholesky factors of a batch in which one bad matrix neither raises nor changes its neighbours.

`pivoted_root` gives roots of covariances that are nearly of low rank, one pivot at a time: the matrix itself is never
made.

Shapes: `A` rows of a batch, `n` points, `r` columns of the root.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

JITTER = {torch.float64: 1e-10, torch.float32: 1e-5}
"""Added to every matrix, in units of its mean diagonal, so that the objective stays smooth in the hyperparameters.

Unusual dtypes get the one of float32.
"""

JITTER_GROWTH = 100.0
"""A matrix that fails is tried again with this many times more jitter."""

JITTER_ATTEMPTS = 4
"""Tries with growing jitter (float64: up to 1e-4 of the mean diagonal), after which the matrix is flagged."""


class Cholesky(NamedTuple):
    """factor: [..., n, n] lower triangular; the identity where `ok`: [...] is False."""

    factor: Tensor
    ok: Tensor


def safe_cholesky(matrix: Tensor, jitter: float | None = None) -> Cholesky:
    """Factor `matrix` [..., n, n] + jitter · mean(diagonal) · I, with more jitter only for those that need it.

    Differentiable. A matrix that cannot be factored gets the identity, zero gradient and `ok=False`.
    """
    start = JITTER.get(matrix.dtype, JITTER[torch.float32]) if jitter is None else jitter
    level = torch.full(matrix.shape[:-2], start, dtype=matrix.dtype, device=matrix.device)
    factor, ok = _attempt(matrix, level)
    if bool(ok.all()):
        return Cholesky(factor, ok)
    level, ok = _search_level(matrix.detach(), level, ok)
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    # The bad ones are replaced before the factorisation: otherwise its backward pass would make NaN of them.
    factor, _ = _attempt(torch.where(ok[..., None, None], matrix, identity), level)
    return Cholesky(torch.where(ok[..., None, None], factor, identity), ok)


def _attempt(matrix: Tensor, level: Tensor) -> tuple[Tensor, Tensor]:
    diagonal = matrix.diagonal(dim1=-2, dim2=-1)
    shift = (level * diagonal.mean(-1))[..., None].expand(diagonal.shape)
    factor, info = torch.linalg.cholesky_ex(matrix + torch.diag_embed(shift))
    ok = (info == 0) & factor.detach().isfinite().all(-1).all(-1)
    return factor, ok


def _search_level(matrix: Tensor, level: Tensor, ok: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest jitter on the ladder that works, for each matrix that has failed so far."""
    size = matrix.shape[-1]
    flat_matrix, flat_level, flat_ok = matrix.reshape(-1, size, size), level.flatten().clone(), ok.flatten().clone()
    candidate = flat_level.clone()
    for _ in range(JITTER_ATTEMPTS - 1):
        failed = torch.nonzero(~flat_ok).flatten()
        if failed.numel() == 0:
            break
        candidate[failed] *= JITTER_GROWTH
        _, now_ok = _attempt(flat_matrix[failed], candidate[failed])
        mended = failed[now_ok]
        flat_level[mended] = candidate[mended]
        flat_ok[mended] = True
    return flat_level.reshape(level.shape), flat_ok.reshape(ok.shape)


def multiply_samples(matrix: Tensor, samples: Tensor) -> Tensor:
    """`matrix` [..., n, m] times each of `samples` [S, ..., m], as [S, ..., n]; the matrix is never copied S times."""
    return (matrix @ samples.movedim(0, -1)).movedim(-1, 0)


def solve_samples(factor: Tensor, samples: Tensor, *, transposed: bool = False) -> Tensor:
    """factor⁻¹, or factor⁻ᵀ if `transposed`, times each of `samples` [S, ..., n]; `factor` [..., n, n] is lower."""
    columns = samples.movedim(0, -1)
    matrix = factor.mT if transposed else factor
    solved: Tensor = torch.linalg.solve_triangular(matrix, columns, upper=transposed)
    return solved.movedim(-1, 0)


MOST = 256
"""Most columns of a root."""


def pivoted_root(column: Callable[[Tensor], Tensor], diagonal: Tensor, tolerance: float) -> Tensor:
    """A root [A, n, r] of a covariance with this diagonal [A, n]: root rootᵀ is the covariance, but for its rest.

    column: gives the covariance [A, n] of all points with those of the numbers [A]. The diagonal of the rest is nowhere
    above the tolerance, unless that takes more than MOST columns.
    """
    left, rows = diagonal.clone(), torch.arange(len(diagonal))
    most = min(MOST, diagonal.shape[-1])
    root = diagonal.new_zeros(*diagonal.shape, most)
    for count in range(most):
        size, pivot = left.max(-1)
        needed = size > tolerance
        if not bool(needed.any()):
            return root[..., :count]
        known = (root[..., :count] @ root[rows, pivot, :count].unsqueeze(-1)).squeeze(-1)
        new = (column(pivot) - known) * torch.where(needed, size.clamp_min(tolerance).rsqrt(), 0.0).unsqueeze(-1)
        root[..., count] = new
        left = (left - new.square()).clamp_min(0.0)
        # Rounding must not make a pivot twice.
        left[rows, pivot] = torch.where(needed, 0.0, left[rows, pivot])
    return root
