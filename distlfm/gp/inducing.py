"""Where the inducing points of each instance go."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distlfm.errors import UsageError

MIN_INDUCING = 12
"""Fewer points than this save nothing, even for a handful of observations."""

MAX_INDUCING = 64
"""More are not taken by default; the cost grows with the cube."""

UNIFORM_SHARE = 0.1
"""Part of the uniform grid mixed into the quantiles, so that repeated times never give coinciding points."""

FILLER_WEIGHT = 1e-3
"""How much nearer a filler may come than a data point: fillers are used only when the distinct data run out."""


def default_num_inducing(times: Tensor, mask: Tensor | None = None) -> int:
    """One `M` for all instances: the most distinct observed times [B, N] of any, from MIN_INDUCING to MAX_INDUCING.

    Ask once for the whole fleet and keep the answer: asked batch by batch, it would depend on the neighbours.
    """
    observed = _observed(times, mask)
    ordered = torch.where(observed, times, torch.inf).sort(dim=-1).values
    new = torch.ones_like(observed)
    new[..., 1:] = ordered[..., 1:] > ordered[..., :-1]
    distinct = int((new & ordered.isfinite()).sum(-1).max())
    return max(min(distinct, MAX_INDUCING), MIN_INDUCING)


def place_on_times(times: Tensor, mask: Tensor | None = None, *, num_inducing: int) -> Tensor:
    """Points [B, M, 1] from the first to the last observed time of each instance.

    times: [B, N] in any order; mask: [B, N], True where there is an observation. They follow the density of the
    observations. An instance with nothing observed is placed by all its times.
    """
    _check(num_inducing)
    observed = _observed(times, mask)
    ordered = torch.where(observed, times, torch.inf).sort(dim=-1).values
    last = observed.sum(-1, keepdim=True) - 1
    start, end = ordered[..., :1], ordered.gather(-1, last)
    fraction = _unit_steps(num_inducing, times)
    uniform = start + fraction * (end - start)
    rank = fraction * last
    below = rank.floor().long()
    above = torch.minimum(below + 1, last)
    low, high = ordered.gather(-1, below), ordered.gather(-1, above)
    quantile = low + (rank - below) * (high - low)
    return ((1 - UNIFORM_SHARE) * quantile + UNIFORM_SHARE * uniform)[..., None]


def place_on_points(points: Tensor, mask: Tensor | None = None, *, num_inducing: int) -> Tensor:
    """Points [B, M, d] spread over the observed `points` [B, N, d] (mask [B, N]) by farthest-point selection.

    Distances are in units of each instance's range, so that time and space count alike. Where there are fewer
    distinct data than `M`, a Sobol sequence in the instance's bounding box fills up.
    """
    _check(num_inducing)
    observed = _observed(points[..., 0], mask)
    lower = torch.where(observed[..., None], points, torch.inf).amin(-2, keepdim=True)
    upper = torch.where(observed[..., None], points, -torch.inf).amax(-2, keepdim=True)
    extent = torch.where(upper > lower, upper - lower, torch.ones_like(lower))
    sobol = torch.quasirandom.SobolEngine(points.shape[-1])
    fillers = sobol.draw(num_inducing, dtype=points.dtype).to(points.device)
    fillers = fillers.expand(*points.shape[:-2], *fillers.shape)
    unit = torch.cat([(points - lower) / extent, fillers], dim=-2)
    weight = torch.cat([observed.to(points.dtype), torch.full_like(fillers[..., 0], FILLER_WEIGHT)], dim=-1)

    # The corner nearest the origin first; each next one is farthest from all that were chosen.
    chosen = torch.where(weight == 1, unit.sum(-1), torch.inf).argmin(-1, keepdim=True)
    indices = [chosen]
    distance = torch.full_like(weight, torch.inf)
    for _ in range(num_inducing - 1):
        newest = unit.gather(-2, chosen[..., None].expand(*chosen.shape, unit.shape[-1]))
        distance = torch.minimum(distance, (unit - newest).norm(dim=-1))
        chosen = (distance * weight).argmax(-1, keepdim=True)
        indices.append(chosen)
    index = torch.cat(indices, dim=-1)[..., None]
    return lower + extent * unit.gather(-2, index.expand(*index.shape[:-1], unit.shape[-1]))


def place_on_box(lower: Tensor, upper: Tensor, counts: Sequence[int]) -> Tensor:
    """Regular grid [B, ∏counts, d] over boxes `lower` and `upper` [B, d]; the last dimension moves first."""
    if len(counts) != lower.shape[-1]:
        raise UsageError(f"{len(counts)} counts are given for {lower.shape[-1]} dimensions.", "Give one per dimension.")
    for count in counts:
        _check(count)
    axes = torch.meshgrid(*(_unit_steps(count, lower) for count in counts), indexing="ij")
    unit = torch.stack([axis.flatten() for axis in axes], dim=-1)
    return lower[..., None, :] + (upper - lower)[..., None, :] * unit


def _unit_steps(count: int, like: Tensor) -> Tensor:
    """[count] from 0 to 1; a single point goes in the middle."""
    if count == 1:
        return torch.full((1,), 0.5, dtype=like.dtype, device=like.device)
    return torch.linspace(0, 1, count, dtype=like.dtype, device=like.device)


def _observed(times: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return torch.ones_like(times, dtype=torch.bool)
    return mask.bool() | ~mask.bool().any(-1, keepdim=True)


def _check(num_inducing: int) -> None:
    if num_inducing < 1:
        raise UsageError(
            f"num_inducing is {num_inducing}, and at least one point is needed.", "Give a positive number."
        )
