"""Roots of covariances that are nearly of low rank, one pivot at a time: the matrix itself is never made.

Shapes: `A` rows of a batch, `n` points, `r` columns of the root.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

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
