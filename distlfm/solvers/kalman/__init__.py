"""Kalman filter and smoother of many linear systems at once.

A system is dx = M x dt + dw with the stationary covariance Π, so that x(t + Δ) = Φ x(t) + w with Φ = e^{M Δ} and
w ~ N(0, Q = Π − Φ Π Φᵀ). It is seen as y = h·x + v with v ~ N(0, r), one number after another. The loops over times are
compiled where numba is there. Gradients are the adjoint of the same recursion, and the smoother is that of Bryson and
Frazier in its modified form, which inverts nothing but numbers.

Shapes: `R` rows, `G` groups of `LANES` rows, `U` different gaps between times, `T` times, `P` outputs, `n` states, `K`
combinations of states that are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distlfm.solvers.kalman import plain

try:
    from distlfm.solvers.kalman import loops, moves, smoothing
except ImportError:  # a platform that numba has no build for
    loops = None  # type: ignore[assignment]

LANES = 8

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Chain:
    """Systems of R rows and what is seen of them.

    drift: M [R, n, n] of dx = M x dt + dw; stationary: the covariance Π [R, n, n] that it leads to. lengths: the gaps
    that there are, [R, U]; which: the one before each time but the first, [R, T − 1]. first: covariance at the start,
    [R, n, n], where the mean is zero. observed: h of each output, [R, P, n]; residual and noise: y and r, [R, P, T];
    seen: [R, P, T] of bool.
    """

    drift: Tensor
    stationary: Tensor
    lengths: Tensor
    which: Tensor
    first: Tensor
    observed: Tensor
    residual: Tensor
    noise: Tensor
    seen: Tensor

    def moves(self) -> tuple[Tensor, Tensor]:
        """Return Φ and Q of each gap, [R, U, n, n]."""
        steps = torch.linalg.matrix_exp(self.drift.unsqueeze(1) * self.lengths[..., None, None])
        stationary = self.stationary.unsqueeze(1)
        return steps, stationary - steps @ stationary @ steps.mT

    def log_density(self) -> Tensor:
        """Return log p(y) of each row, [R], which can be differentiated once."""
        if loops is None:
            return plain.filtered(self)[0]
        wanted = (self.drift, self.stationary, self.first, self.observed, self.residual, self.noise)
        if not (torch.is_grad_enabled() and any(one.requires_grad for one in wanted)):
            return _rows(loops.filtered(*self._table, *self._packed(), np.empty((0, 0, 0, LANES))), len(self.drift))
        others = (self.first, self.observed, self.residual, self.noise, self.which, self.seen)
        found: Tensor = _Density.apply(*self.moves(), *others)  # type: ignore[no-untyped-call]
        return found

    @torch.no_grad()
    def innovations(self) -> Tensor:
        """Return what each number adds to those before it, in its deviations, [R, P, T]; zero where nothing is seen."""
        if loops is None:
            return plain.innovations(self)
        white = np.zeros_like(_lanes(self.residual))
        loops.filtered(*self._table, *self._packed(), white)
        return _rows(white, len(self.drift))

    @torch.no_grad()
    def smoothed(self, wanted: Tensor) -> tuple[Tensor, Tensor]:
        """Return means and variances [R, K, T] of combinations `wanted` [R, K, n] of the states, given all data."""
        if loops is None:
            return plain.smoothed(self, wanted)
        (outputs, times), size, directions = self.residual.shape[1:], self.drift.shape[-1], _lanes(wanted)
        mean, variance = np.empty((2, len(directions), directions.shape[1], times, LANES))
        before = [np.empty((times, outputs + 1, *shape, LANES)) for shape in ((size,), (size, size))]
        met = [*before, *(np.empty((times, outputs, rows, LANES)) for rows in (size, 3))]
        # One group after another, as much is kept of each.
        for g, group in enumerate(zip(*self._table, *self._packed(), strict=True)):
            loops.visited(*group, np.zeros(LANES), *met)
            steps, _, counts, columns, which, _, observed, _, _, seen = group
            smoothing.smoothed(steps, counts, columns, which, observed, seen, directions[g], *met, mean[g], variance[g])
        return _rows(mean, len(self.drift)), _rows(variance, len(self.drift))

    @torch.no_grad()
    def drawn(self, generator: torch.Generator) -> Tensor:
        """Draw states [R, T, n] that nothing is known of, one path for each row."""
        shape = (len(self.drift), self.residual.shape[-1], self.drift.shape[-1])
        normal = torch.randn(shape, generator=generator, dtype=torch.float64)
        if loops is None:
            return plain.wandered(self, normal)
        parts = [*map(_lanes, (self.which, self.first, normal))]
        found = np.empty_like(parts[-1])
        moves.wandered(*self._table[:2], *parts, found)
        return _rows(found, len(self.drift))

    def seeing(self, residual: Tensor) -> Chain:
        """Return the same with another residual; the steps are not computed again."""
        other = replace(self, residual=residual)
        if loops is not None:
            other.__dict__["_table"] = self._table
        return other

    @cached_property
    def _table(self) -> tuple[NDArray[Any], ...]:
        """Φ and Q of each gap, [G, U, n, n, LANES], and the pattern of Φ."""
        drift, stationary, lengths = map(_lanes, (self.drift, self.stationary, self.lengths))
        shape = (len(drift), lengths.shape[1], *drift.shape[1:])
        steps, noises = np.empty(shape), np.empty(shape)
        moves.tabled(drift, stationary, lengths, *_pattern(drift[:, None]), steps, noises)
        return steps, noises, *_pattern(steps)

    def _packed(self) -> list[Array]:
        parts = (self.which, self.first, self.observed, self.residual, self.noise, self.seen.double())
        return [*map(_lanes, parts)]


def _pattern(steps: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the entries in each row of Φ that are not zero in all gaps and lanes, [G, n]; their columns, [G, n, n]."""
    used = (steps != 0).any((1, -1))
    return used.sum(-1, dtype=np.int64), np.argsort(~used, axis=-1, kind="stable").astype(np.int64, copy=False)


def _lanes(values: Tensor) -> Array:
    """[R, …] as [G, …, LANES]; the last row stands in for those that are missing."""
    missing = -len(values) % LANES
    if missing:
        values = torch.cat([values, values[-1:].expand(missing, *values.shape[1:])])
    return np.ascontiguousarray(values.detach().unflatten(0, (-1, LANES)).movedim(1, -1).numpy())


def _rows(values: Array, count: int) -> Tensor:
    """[G, …, LANES] as [R, …]."""
    return torch.from_numpy(values).movedim(-1, 1).flatten(0, 1)[:count].contiguous()


class _Density(torch.autograd.Function):
    """The log density, whose slopes are computed together with it."""

    @staticmethod
    def forward(ctx: Any, *given: Tensor) -> Tensor:
        steps, noises, first, observed, residual, noise, which, seen = given
        packed = [*map(_lanes, (steps, noises, which, first, observed, residual, noise, seen.double()))]
        slopes = [np.zeros_like(packed[i]) for i in (0, 1, 3, 4, 5, 6)]
        density = loops.with_slopes(*packed[:2], *_pattern(packed[0]), *packed[2:], *slopes)
        ctx.save_for_backward(*(_rows(one, len(steps)) for one in slopes))
        return _rows(density, len(steps))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        slopes = [one * grads[0].reshape(-1, *[1] * (one.dim() - 1)) for one in ctx.saved_tensors]
        return (*slopes, None, None)
