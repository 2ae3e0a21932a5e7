"""Ascent of the ELBO over one Gaussian q of all unknowns, by natural gradients with the curvature of Gauss–Newton.

The gradient of the ELBO in the moments of q is an average over draws of q: of the gradient of the log density, and of
its curvature, for which Gauss–Newton's never loses its sign (Opper & Archambeau 2009, Khan & Lin 2017). Jacobians are
differences of outputs: many forces for the same parameters share their kernel's matrices, and nothing is taped.
Shapes: `S` draws, `A` problems, `B` instances, `W = n + V` unknowns, of which `V = L·M` inducing values, `N = P·T`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.gp.variational import (
    ExpectationGradient,
    NaturalState,
    WhitenedGaussian,
    gaussian_from_natural,
    natural_step,
)
from distlfm.inference.optimise import Status
from distlfm.inference.series.forward import Forward
from distlfm.inference.series.layers import DIFFERENCE, TRAJECTORIES, curved, slopes_of
from distlfm.mechanisms.priors import Values
from distlfm.runtime.reporting import stepped

LENGTHS = (1.0, 0.5, 0.2, 0.05)
"""Parts of a natural step that are tried with the same noise, until the ELBO no longer rises."""

SETTLING = 8
"""Steps whose average q is, once the ELBO no longer rises."""

LOST = 100.0
"""What the ELBO loses if all draws of q fail in the solver; in truth it is infinite."""

WORSE = 10.0
"""A step by which the ELBO would lose more than this is not taken."""


@dataclass(frozen=True)
class Slopes:
    """Of log p(y | w) at w [A, W]: density [A], gradient [A, W], curvature [A, W, W], and [A] whether all is well."""

    density: Tensor
    gradient: Tensor
    curvature: Tensor
    ok: Tensor


@torch.no_grad()
def responses(forward: Forward, z: Tensor, v: Tensor, rows: Tensor) -> tuple[Values, Tensor, Tensor, Tensor]:
    """Parameters of z [A, n], outputs [A, P, T] at v [A, V], their Jacobian [A, N, V] in v, and [A] if all is well."""
    shape = (len(forward.model.kernels), forward.num_inducing)
    moved = torch.cat([v.unsqueeze(0), v + DIFFERENCE * torch.eye(v.shape[-1], dtype=v.dtype).unsqueeze(1)])
    values, outputs, ok = forward.respond(z, moved.unflatten(-1, shape), rows)
    jacobian = ((outputs[1:] - outputs[0]) / DIFFERENCE).flatten(-2).permute(1, 2, 0)
    return values, outputs[0], jacobian, ok.all(0)


@torch.no_grad()
def slopes(forward: Forward, w: Tensor, rows: Tensor) -> Slopes:
    """By differences, for the instances `rows` [A]."""
    size = max(1, TRAJECTORIES // (1 + w.shape[-1]))
    parts = [_slopes(forward, w[i : i + size], rows[i : i + size]) for i in range(0, len(w), size)]
    names = Slopes.__dataclass_fields__
    return Slopes(**{name: torch.cat([getattr(part, name) for part in parts]) for name in names})


def _slopes(forward: Forward, w: Tensor, rows: Tensor) -> Slopes:
    z, v = forward.split(w)
    values, outputs, by_force, ok = responses(forward, z, v.flatten(-2), rows)
    size = z.shape[-1]
    near = z + DIFFERENCE * torch.eye(size, dtype=z.dtype).unsqueeze(1)
    _, moved, fine = forward.respond(near.flatten(0, 1), v.repeat(size, 1, 1).unsqueeze(0), rows.repeat(size))
    by_parameter = (moved[0].unflatten(0, near.shape[:2]) - outputs) / DIFFERENCE
    jacobian = torch.cat([by_parameter.flatten(-2).permute(1, 2, 0), by_force], -1)
    pull, bend, density = slopes_of(forward, values, outputs, rows)
    gradient = (jacobian.mT @ pull.unsqueeze(-1)).squeeze(-1)
    curvature = curved(forward, values, jacobian, bend, rows)
    own_slope, own_curvature = _own_slopes(forward, z, outputs, rows)
    gradient[:, :size] += own_slope
    curvature[:, :size, :size] += own_curvature
    whole = ok & fine[0].unflatten(0, near.shape[:2]).all(0) & torch.isfinite(density)
    whole &= torch.isfinite(gradient).all(-1) & torch.isfinite(curvature).flatten(1).all(-1)
    return Slopes(
        torch.where(whole, density, -torch.inf),
        torch.where(whole.unsqueeze(-1), gradient, 0.0),
        torch.where(whole[:, None, None], curvature, 0.0),
        whole,
    )


def _own_slopes(forward: Forward, z: Tensor, outputs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Slopes of the log density by the likelihood's own parameters, its outputs [A, P, T] standing still: the gradient

    [A, n], and [A, n, n] with the sign of a curvature; both are zero for all other parameters.
    """
    model, data = forward.model, forward.observations.rows(rows)
    known = {parameter.name for parameter in model.space.parameters}
    places = [model.space.slice_of(one.name) for one in model.likelihood.parameters() if one.name in known]
    columns = [i for place in places for i in range(z.shape[-1])[place]]
    bend = torch.zeros(*z.shape, z.shape[-1], dtype=z.dtype)
    if not columns:
        return torch.zeros_like(z), bend
    with torch.enable_grad():
        free = z.detach().requires_grad_()
        density = model.likelihood.log_prob(model.space.unpack(free), outputs, data)
        (own,) = torch.autograd.grad(density.sum(), free, create_graph=True)
        for i in columns:
            (bend[:, i],) = torch.autograd.grad(-own[:, i].sum(), free, retain_graph=True)
    return own.detach(), bend


@dataclass(frozen=True)
class Ascent:
    """q: of [B, 1, W]; status: [B]; trace: of the ELBO, [iterations, B]; iterations: [B]."""

    q: WhitenedGaussian
    status: Tensor
    trace: Tensor
    iterations: Tensor


@dataclass(frozen=True)
class Pace:
    """pairs: antithetic draws of q in a step; iterations: at most; window: over how many the ELBO is averaged;

    tolerance: standard errors by which its average must rise, else q settles; rate: of all steps, or None: whole steps
    while it rises, then such that q becomes an average.
    """

    pairs: int
    iterations: int
    window: int
    tolerance: float
    rate: float | None


def ascend(forward: Forward, start: Tensor, seeds: Sequence[int], pace: Pace) -> Ascent:
    """Maximise the ELBO of each instance from start [B, W], where q begins with the curvature there."""
    first = slopes(forward, start, torch.arange(len(start)))
    precision = _bounded(first.curvature + torch.eye(start.shape[-1], dtype=start.dtype)).unsqueeze(1)
    q = NaturalState((precision @ start[:, None, :, None]).squeeze(-1), -0.5 * precision)
    climb = _Climb(forward, q, seeds, pace)
    climb.status[~first.ok] = int(Status.DIVERGED)
    for iteration in range(pace.iterations):
        stepped("variational step", iteration + 1, pace.iterations)
        rows = torch.nonzero(climb.status == Status.RUNNING).squeeze(-1)
        if len(rows) == 0:
            break
        climb.step(rows)
    return climb.result()


class _Climb:
    """q of all instances, and how far each has come: settling [B] counts its steps since the ELBO rose last."""

    def __init__(self, forward: Forward, q: NaturalState, seeds: Sequence[int], pace: Pace) -> None:
        self.forward, self.q, self.pace = forward, q, pace
        self.status = torch.full((len(seeds),), int(Status.RUNNING))
        self.settling = torch.full((len(seeds),), -1)
        self.iterations = torch.zeros(len(seeds), dtype=torch.long)
        self.bounds: list[Tensor] = []
        self.streams = [torch.Generator().manual_seed(seed) for seed in seeds]

    @torch.no_grad()
    def step(self, rows: Tensor) -> None:
        """One natural step of the instances `rows` [A]."""
        pace, size = self.pace, self.q.first.shape[-1]
        half = [torch.randn(pace.pairs, 1, size, generator=self.streams[int(i)], dtype=torch.float64) for i in rows]
        noise = torch.stack(half, 1)
        noise = torch.cat([noise, -noise])
        state = NaturalState(self.q.first[rows], self.q.second[rows])
        here = gaussian_from_natural(state)
        gradient = self._gradient(here, rows, noise)
        settling = self.settling[rows] >= 0
        rate = torch.ones(len(rows), dtype=torch.float64)
        if pace.rate is not None:
            rate = rate * pace.rate
        else:
            rate = torch.where(settling, 1 / (2.0 + self.settling[rows]), rate)
        best, before = state, estimated(self.forward, here, rows, noise)
        bound = before
        for number, length in enumerate(LENGTHS):
            tried = natural_step(state, gradient, length * rate).state
            reached = estimated(self.forward, gaussian_from_natural(tried), rows, noise)
            # A search that always took the best for its own noise would follow the noise.
            better = reached > bound
            if number == 0:
                better |= settling & (reached > before - WORSE)
            else:
                better &= ~settling
            best = NaturalState(*(_where(better, one, other) for one, other in zip(tried, best, strict=True)))
            bound = torch.where(better, reached, bound)
        self.q.first[rows], self.q.second[rows] = best
        self.iterations[rows] += 1
        self._record(rows, bound)

    def _gradient(self, q: WhitenedGaussian, rows: Tensor, noise: Tensor) -> ExpectationGradient:
        """Of minus the ELBO in q's expectation parameters; draws that the solver failed on are left out."""
        w = q.sample_whitened(noise)[:, :, 0]
        found = slopes(self.forward, w.flatten(0, 1), rows.repeat(len(noise)))
        shape = (len(noise), len(rows))
        count = found.ok.unflatten(0, shape).sum(0).clamp_min(1)
        uphill = found.gradient.unflatten(0, shape).sum(0) / count.unsqueeze(-1) - q.mean[:, 0]
        curvature = found.curvature.unflatten(0, shape).sum(0) / count[:, None, None]
        wanted = _bounded(curvature + torch.eye(w.shape[-1], dtype=w.dtype))
        by_covariance = 0.5 * (wanted - torch.cholesky_inverse(q.scale[:, 0]))
        by_mean = -uphill - 2 * (by_covariance @ q.mean[:, 0].unsqueeze(-1)).squeeze(-1)
        return ExpectationGradient(by_mean.unsqueeze(1), by_covariance.unsqueeze(1))

    def _record(self, rows: Tensor, bound: Tensor) -> None:
        latest = self.bounds[-1].clone() if self.bounds else torch.full(self.status.shape, -torch.inf).to(bound)
        latest[rows] = bound
        self.bounds.append(latest)
        settling, window = self.settling[rows], self.pace.window
        settling = torch.where(settling >= 0, settling + 1, settling)
        if len(self.bounds) >= 2 * window:
            settling = torch.where(calm(self.bounds, self.pace)[rows] & (settling < 0), 0, settling)
        self.settling[rows] = settling
        self.status[rows[settling >= SETTLING]] = int(Status.CONVERGED)
        self.status[rows[~torch.isfinite(bound)]] = int(Status.DIVERGED)

    def result(self) -> Ascent:
        left = Status.MAX_ITERATIONS if self.bounds else Status.CONVERGED
        status = torch.where(self.status == Status.RUNNING, int(left), self.status)
        trace = torch.stack(self.bounds) if self.bounds else torch.zeros(0, len(status), dtype=torch.float64)
        return Ascent(gaussian_from_natural(self.q), status, trace, self.iterations)


def calm(bounds: Sequence[Tensor], pace: Pace) -> Tensor:
    """Whether [B] the average of the last bounds, each [B], is no longer above that of the ones before."""
    before, recent = torch.stack(list(bounds[-2 * pace.window :])).split(pace.window)
    error = (recent.var(0) / pace.window + before.var(0) / pace.window).sqrt()
    still: Tensor = (recent.mean(0) - before.mean(0)) < pace.tolerance * error
    return still


def estimated(
    forward: Forward, q: WhitenedGaussian, rows: Tensor, noise: Tensor, features: Tensor | None = None
) -> Tensor:
    """The ELBO [A] of q for the instances `rows`, by its draws of noise [S, A, 1, W]; −∞ if the solver failed on all.

    features: [S, A, L, 2, R], of what the inducing values leave open, or None for its mean.
    """
    density = forward.log_likelihood(q.sample_whitened(noise)[:, :, 0], rows, features)
    ok = torch.isfinite(density)
    mean = torch.where(ok, density, 0.0).sum(0) / ok.sum(0).clamp_min(1)
    return torch.where(ok.any(0), mean - LOST * (1 - ok.to(mean).mean(0)) - q.kl(), -torch.inf)


def _bounded(precision: Tensor) -> Tensor:
    """The nearest matrix [..., W, W] whose eigenvalues are the prior's at least: data take no knowledge away."""
    eigenvalues, vectors = torch.linalg.eigh(precision)
    nearest: Tensor = vectors @ (eigenvalues.clamp_min(1.0).unsqueeze(-1) * vectors.mT)
    return nearest


def _where(choice: Tensor, one: Tensor, other: Tensor) -> Tensor:
    return torch.where(choice.reshape(-1, *[1] * (one.dim() - 1)), one, other)
