"""A structured q: a Gaussian of the parameters, and for each of them a Gaussian of the force around its own centre.

One Gaussian of parameters and force together is too narrow: a longer lengthscale wants other inducing values, and lets
them scatter otherwise. So q(z, v) = N(z; mean, root rootᵀ) N(v; centre(z), spread(z)), with the force's part by `Chord`
and the parameters' by linear regression: at the highest ELBO, q's precision and mean are those of a parabola fitted to
the log density over draws of q (Salimans & Knowles 2013). The draws are the same in all rounds: the ELBO is a function.
Shapes: `J` draws, `A` instances of `B`, `n` parameters, `V` inducing values, `W = n + V`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distlfm.inference.series.forward import Forward
from distlfm.inference.series.variational.chord import Chord
from distlfm.runtime.reporting import stepped

ROUNDS, ALTOGETHER = 10, 6000
"""Parabolas at most, and draws of all of them: with sixty parameters one takes two thousand."""

LEAST, OVER = 60, 1.2
"""Draws of a parabola: at least, and for each of its coefficients."""

SLACK = 0.05
"""How far the ELBO may fall in a round; more, and the step is taken back."""

SHORTER = 0.3
"""Part of a step that is tried after it was taken back."""

SHORTEST = 0.05
"""Part of a step below which there is no further one."""

NEAR = 0.1
"""Kullback–Leibler divergence of a round's q from the last one's below which there is no further one."""

LONGEST = 2.0
"""The longest step of the mean, in deviations of q."""

FLATTEST, SHARPEST = 0.1, 25.0
"""Bounds of a round's precision relative to the last one's."""

RIDGE = 1.0
"""Draws' worth of belief that q is right already."""

SEVERE = 20.0
"""Draws whose log density lies further than this and four for each unknown below the best tell nothing near q."""


def structure(forward: Forward, mean: Tensor, root: Tensor, seeds: Sequence[int]) -> Chord:
    """The best q, as layers anchored at its mean, from a Gaussian of mean [B, W] and lower root [B, W, W]."""
    size = forward.model.space.num_free
    chord = Chord.along(forward, mean, root, seeds)
    if size == 0:
        return chord
    search = _Search(chord, seeds)
    rounds = max(2, min(ROUNDS, ALTOGETHER // len(search.noise)))
    for number in range(rounds):
        stepped("parabola", number + 1, rounds)
        rows = torch.nonzero(~search.done).squeeze(-1)
        if len(rows) == 0:
            break
        search.round(rows, last=number == rounds - 1)
    return search.best


class _Search:
    """The best q so far, the one that is tried, and how it was reached."""

    def __init__(self, chord: Chord, seeds: Sequence[int]) -> None:
        count, size = chord.z.shape
        half = (max(LEAST, int(OVER * (size + 1) * (size + 2) / 2)) + 1) // 2
        streams = [torch.Generator().manual_seed(seed + 4) for seed in seeds]
        noise = torch.stack([torch.randn(half, size, generator=one, dtype=torch.float64) for one in streams], 1)
        self.noise = torch.cat([noise, -noise])
        self.best = self.tried = chord
        self.bound = torch.full((count,), -torch.inf, dtype=torch.float64)
        self.done = torch.zeros(count, dtype=torch.bool)
        self.length = torch.ones(count, dtype=torch.float64)
        self.slope = torch.zeros(count, size, dtype=torch.float64)
        self.bend = torch.eye(size, dtype=torch.float64).repeat(count, 1, 1)

    def round(self, rows: Tensor, last: bool) -> None:
        """Judge what is tried for the instances `rows` [A], and try the next, but in the last round."""
        x = self.noise[:, rows]
        value = self._values(rows, x)
        volume = torch.log(torch.diagonal(self.tried.root[rows], dim1=-2, dim2=-1)).sum(-1)
        least = value.amin(0)
        bound = volume - torch.minimum(value, least + 10 * SEVERE).mean(0)
        better = bound > self.bound[rows] - SLACK
        kept, back = rows[better], rows[~better]
        self.best = self.best.taking(self.tried, kept)
        self.bound[kept] = bound[better]
        self.slope[kept], self.bend[kept] = _parabola(x[:, better], value[:, better])
        self.length[kept] = 1.0
        self.length[back] *= SHORTER
        if last:
            return
        mean, root, divergence = self._next(rows)
        self.done[rows] = (divergence < NEAR) & better | (self.length[rows] < SHORTEST)
        on = ~self.done[rows]
        if bool(on.any()):
            self.tried = self.best.placed(mean[on], root[on], rows[on])

    def _values(self, rows: Tensor, x: Tensor) -> Tensor:
        z = self.tried.z[rows] + torch.einsum("aij,kaj->kai", self.tried.root[rows], x)
        found: Tensor = self.tried.negative(z.flatten(0, 1), rows.repeat(len(x))).unflatten(0, x.shape[:2])
        return found

    def _next(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Mean [A, n] and root [A, n, n] to try, and their divergence [A] from the best."""
        length, root = self.length[rows], self.best.root[rows]
        identity = torch.eye(root.shape[-1], dtype=root.dtype)
        eigenvalues, vectors = torch.linalg.eigh(identity + length[:, None, None] * (self.bend[rows] - identity))
        eigenvalues = eigenvalues.clamp(FLATTEST, SHARPEST).unsqueeze(-1)
        step = -(vectors @ ((vectors.mT @ self.slope[rows].unsqueeze(-1)) / eigenvalues)).squeeze(-1)
        step = step * length.unsqueeze(-1)
        step = step * (LONGEST / step.abs().amax(-1, keepdim=True).clamp_min(LONGEST))
        spread = vectors / eigenvalues.mT.sqrt()
        divergence = 0.5 * (step.square().sum(-1) + (1 / eigenvalues + eigenvalues.log() - 1).sum((-2, -1)))
        # A covariance beyond the prior's is no knowledge.
        covariance = root @ spread @ spread.mT @ root.mT
        eigenvalues, vectors = torch.linalg.eigh(covariance)
        covariance = vectors @ (eigenvalues.clamp(max=1.0).unsqueeze(-1) * vectors.mT)
        return (
            self.best.z[rows] + (root @ step.unsqueeze(-1)).squeeze(-1),
            torch.linalg.cholesky(covariance),
            divergence,
        )


def _parabola(x: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Slope [A, n] and curvature [A, n, n] at zero of the parabola through values [J, A] at x [J, A, n], by least

    squares that lean on a standard normal.
    """
    size = x.shape[-1]
    first, second = torch.triu_indices(size, size)
    scale = torch.where(first == second, 0.5, 1.0).to(x)
    terms = torch.cat([torch.ones_like(x[..., :1]), x, scale * x[..., first] * x[..., second]], -1).transpose(0, 1)
    rest = (value - 0.5 * x.square().sum(-1)).T
    least = torch.where(torch.isfinite(rest), rest, torch.inf).amin(1, keepdim=True)
    near = torch.isfinite(rest) & (rest - least < SEVERE + 4 * size)
    rest = torch.where(near, rest - least, 0.0)
    used = near.to(x).unsqueeze(-1) * terms
    lean = RIDGE * torch.eye(terms.shape[-1], dtype=x.dtype)
    lean[0, 0] = 1e-9
    found = torch.linalg.solve(used.mT @ used + lean, used.mT @ rest.unsqueeze(-1)).squeeze(-1)
    bend = torch.eye(size, dtype=x.dtype).repeat(len(found), 1, 1)
    bend[:, first, second] += found[:, 1 + size :]
    bend[:, second, first] = bend[:, first, second]
    return found[:, 1 : 1 + size], bend
