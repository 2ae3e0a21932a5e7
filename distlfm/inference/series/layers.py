"""The force given the parameters, and the density of the parameters with the force summed out, through the solver.

Given the parameters z, the posterior of the inducing values v is close to a Gaussian, even where that of both together
is bent. Gauss–Newton finds it, Laplace's formula gives p(y | z), and weights against the true density correct both
(cf. Rue et al. 2009). Jacobians are differences of outputs: many forces for one z share its kernel matrices.
Shapes: `A` problems, `B` instances, `n` parameters, `V = L·M` inducing values, `P` outputs, `T` times, `K` candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.series.forward import Forward
from distlfm.mechanisms.priors import Values

STEPS = 2
"""Gauss–Newton steps near a known mode, from the linear prediction."""

MANY_STEPS = 10
"""Gauss–Newton steps where nothing is known yet."""

LENGTHS = (1.0, 0.5, 0.2, 0.05, 0.0)
"""Parts of a Gauss–Newton step that are tried; the best is taken."""

DIFFERENCE = 1e-5
"""Step of the differences in v; unknowns have the scale of a standard normal."""

FOLLOW = 0.05
"""Step in z over which it is seen how the force's mode follows."""

PAIRS = 4
"""Antithetic pairs of draws of v that correct the Gaussian of one z."""

CANDIDATES = 8
"""Forces drawn for each z of the answer, of which one is taken by its weight."""

TRAJECTORIES = 8192
"""Solved at once."""


@dataclass(frozen=True)
class Given:
    """The Gaussian of v given z. centre: [A, V]; factor: [A, V, V] of its precision; peak: [A] log p(y, v | z) there;

    ok: [A].
    """

    centre: Tensor
    factor: Tensor
    peak: Tensor
    ok: Tensor

    def draw(self, noise: Tensor) -> Tensor:
        """v [K, A, V] from standard normal noise [K, A, V]."""
        moved: Tensor = torch.linalg.solve_triangular(self.factor.mT, noise.movedim(0, -1), upper=True)
        return self.centre + moved.movedim(-1, 0)

    @property
    def log_volume(self) -> Tensor:
        """Half the logarithm of the covariance's determinant, [A]."""
        return -torch.log(torch.diagonal(self.factor, dim1=-2, dim2=-1)).sum(-1)


@dataclass(frozen=True)
class Layers:
    """Both layers of B instances, near an anchor: z [B, n], v [B, V] and how v follows z, [B, V, n].

    noise: [K, B, V], the same for every z, so that the corrected density is a function.
    """

    forward: Forward
    z: Tensor
    v: Tensor
    follow: Tensor
    noise: Tensor

    @staticmethod
    def at(forward: Forward, w: Tensor, seeds: Sequence[int]) -> Layers:
        """Anchored at w [B, W]."""
        z, v = forward.split(w)
        v = v.flatten(-2)
        streams = [torch.Generator().manual_seed(seed + 2) for seed in seeds]
        half = torch.stack([torch.randn(PAIRS, v.shape[-1], generator=one, dtype=w.dtype) for one in streams], 1)
        return Layers(forward, z, v, w.new_zeros(*v.shape, z.shape[-1]), torch.cat([half, -half]))

    @property
    def w(self) -> Tensor:
        """The anchor as one vector, [B, W]."""
        return torch.cat([self.z, self.v], -1)

    @torch.no_grad()
    def moved(self, z: Tensor) -> Layers:
        """Anchored at z [B, n] instead, at the mode of v there."""
        rows = torch.arange(len(z))
        centre = self.given(z, rows, MANY_STEPS).centre
        still = replace(self, z=z, v=centre, follow=torch.zeros_like(self.follow))
        size = z.shape[-1]
        if size == 0:
            return still
        near = z.unsqueeze(1) + FOLLOW * torch.eye(size, dtype=z.dtype)
        many = self.in_chunks(
            lambda z, rows: still.given(z, rows).centre, near.flatten(0, 1), rows.repeat_interleave(size)
        )
        follow = (many.unflatten(0, near.shape[:2]) - centre.unsqueeze(1)) / FOLLOW
        return replace(still, follow=follow.mT)

    def negative(self, z: Tensor, rows: Tensor) -> Tensor:
        """−log p(y, z) [A] at z [A, n], up to a constant, by Laplace's formula; ∞ where there is none."""
        return self.in_chunks(self._negative, z, rows)

    def corrected(self, z: Tensor, rows: Tensor) -> Tensor:
        """The same, with the Gaussian weighted against the true density."""
        return self.in_chunks(self._corrected, z, rows)

    def draw(self, z: Tensor, rows: Tensor, uniform: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """One v [A, V] for each z [A, n]: of the Gaussian's draws by the normal numbers `noise` [A, K, V], the one that

        `uniform` [A] numbers choose by their weights, whose logarithms [A, K] come second.
        """
        both = self.in_chunks(self._draw, z, rows, uniform, noise)
        return both[:, : self.v.shape[-1]], both[:, self.v.shape[-1] :]

    @torch.no_grad()
    def given(self, z: Tensor, rows: Tensor, steps: int = STEPS) -> Given:
        """The Gaussian of v for the instances `rows` at z [A, n]."""
        follow = (self.follow[rows] @ (z - self.z[rows]).unsqueeze(-1)).squeeze(-1)
        v = self._best(z, rows, self.v[rows] + torch.stack([follow, torch.zeros_like(follow)]))
        lengths = torch.tensor(LENGTHS, dtype=v.dtype)[:, None, None]
        for _ in range(steps):
            v = self._best(z, rows, v + lengths * self._newton(z, rows, v)[0])
        step, factor, peak, ok = self._newton(z, rows, v)
        left = (factor.mT @ step.unsqueeze(-1)).squeeze(-1).square().sum(-1)
        # What is left of the way to the mode is gone without a look, if it is short.
        short = left <= 1.0
        return Given(
            v + torch.where(short.unsqueeze(-1), step, 0.0), factor, peak + torch.where(short, 0.5 * left, 0.0), ok
        )

    def _negative(self, z: Tensor, rows: Tensor) -> Tensor:
        given = self.given(z, rows)
        value = given.peak + given.log_volume - 0.5 * z.square().sum(-1)
        return torch.where(given.ok & torch.isfinite(value), -value, torch.inf)

    def _corrected(self, z: Tensor, rows: Tensor) -> Tensor:
        given = self.given(z, rows)
        _, weight = self._weigh(given, z, rows, self.noise[:, rows])
        value = torch.logsumexp(weight, 0) - math.log(len(weight)) - 0.5 * z.square().sum(-1)
        return torch.where(given.ok & torch.isfinite(value), -value, torch.inf)

    def _draw(self, z: Tensor, rows: Tensor, uniform: Tensor, noise: Tensor) -> Tensor:
        v, weight = self._weigh(self.given(z, rows), z, rows, noise.transpose(0, 1))
        share = torch.softmax(weight.clamp_min(-1e300), 0).cumsum(0)
        chosen = (share < uniform).sum(0).clamp_max(len(v) - 1)
        return torch.cat([v[chosen, torch.arange(len(z))], weight.T], -1)

    def _weigh(self, given: Given, z: Tensor, rows: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The Gaussian's draws v [K, A, V] by `noise`, and the logarithms [K, A] of true density over its own."""
        v = given.draw(noise)
        return v, self._joint(z, rows, v) + 0.5 * noise.square().sum(-1) + given.log_volume

    def in_chunks(self, function: Callable[..., Tensor], *arguments: Tensor) -> Tensor:
        """A function of problems for arguments [A, ...], of few enough problems at a time."""
        size = max(1, TRAJECTORIES // (1 + self.v.shape[-1]))
        count = len(arguments[0])
        return torch.cat([function(*(one[i : i + size] for one in arguments)) for i in range(0, count, size)])

    @torch.no_grad()
    def _joint(self, z: Tensor, rows: Tensor, v: Tensor) -> Tensor:
        """log p(y | z, v) + log p(v), up to a constant, [K, A], for v [K, A, V]; −∞ where the solve failed."""
        values, outputs, ok = self._respond(z, rows, v)
        density = self.forward.model.likelihood.log_prob(values, outputs, self.forward.observations.rows(rows))
        density = density - 0.5 * v.square().sum(-1)
        return torch.where(ok & torch.isfinite(density), density, -torch.inf)

    def _best(self, z: Tensor, rows: Tensor, candidates: Tensor) -> Tensor:
        """The likeliest of candidates [K, A, V], [A, V]."""
        return candidates[self._joint(z, rows, candidates).argmax(0), torch.arange(len(z))]

    def _respond(self, z: Tensor, rows: Tensor, v: Tensor) -> tuple[Values, Tensor, Tensor]:
        shape = (len(self.forward.model.kernels), self.forward.num_inducing)
        return self.forward.respond(z, v.unflatten(-1, shape), rows)

    def _newton(self, z: Tensor, rows: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Gauss–Newton step [A, V], factor [A, V, V] of the precision, log density [A], and [A] whether all is well."""
        identity = torch.eye(v.shape[-1], dtype=v.dtype)
        moved = torch.cat([v.unsqueeze(0), v + DIFFERENCE * identity.unsqueeze(1)])
        values, outputs, ok = self._respond(z, rows, moved)
        jacobian = ((outputs[1:] - outputs[0]) / DIFFERENCE).flatten(-2).permute(1, 2, 0)
        pull, bend, density = slopes_of(self.forward, values, outputs[0], rows)
        precision = curved(self.forward, values, jacobian, bend, rows) + identity
        fine = ok.all(0) & torch.isfinite(precision).flatten(1).all(-1) & torch.isfinite(density)
        factor, factored = safe_cholesky(torch.where(fine[:, None, None], precision, identity), jitter=0.0)
        slope = (jacobian.mT @ pull.unsqueeze(-1)).squeeze(-1) - v
        step = torch.cholesky_solve(torch.where(fine.unsqueeze(-1), slope, 0.0).unsqueeze(-1), factor).squeeze(-1)
        return step, factor, density - 0.5 * v.square().sum(-1), fine & factored


def slopes_of(forward: Forward, values: Values, outputs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """First derivative [A, P·T] of the log-likelihood by each output, minus the second, and its value [A]."""
    data = forward.observations.rows(rows)
    with torch.enable_grad():
        free = outputs.detach().requires_grad_()
        density = forward.model.likelihood.log_prob(values, free, data)
        (pull,) = torch.autograd.grad(density.sum(), free, create_graph=True)
        (bend,) = torch.autograd.grad(pull.sum(), free)
    return pull.detach().flatten(-2), (-bend).clamp_min(0.0).flatten(-2), density.detach()


def curved(forward: Forward, values: Values, jacobian: Tensor, bend: Tensor, rows: Tensor) -> Tensor:
    """Jᵀ H J [A, W, W] of a Jacobian [A, P·T, W] with the curvature H of the likelihood, which is diagonal without a

    drift: `bend` [A, P·T].
    """
    data = forward.observations.rows(rows)
    factor = forward.model.likelihood.noise_factor(values, data)
    if factor is None:
        return jacobian.mT @ (bend.unsqueeze(-1) * jacobian)
    seen = jacobian.unflatten(-2, data.values.shape[-2:]) * data.mask.unsqueeze(-1)
    white: Tensor = torch.linalg.solve_triangular(factor, seen, upper=False)
    flat = white.flatten(-3, -2)
    return flat.mT @ flat


def with_forces(layers: Layers, z: Tensor, seeds: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Draws z [S, B, n] with a force each, [S, B, W], and the logarithms [S, K, B] of weights they were taken by."""
    count, num_instances = z.shape[:2]
    streams = [torch.Generator().manual_seed(seed + 3) for seed in seeds]
    uniform = torch.stack([torch.rand(count, generator=one, dtype=z.dtype) for one in streams], 1)
    shape = (count, CANDIDATES, layers.v.shape[-1])
    noise = torch.stack([torch.randn(shape, generator=one, dtype=z.dtype) for one in streams], 1)
    rows = torch.arange(num_instances).repeat(count)
    v, weight = layers.draw(z.flatten(0, 1), rows, uniform.flatten(), noise.flatten(0, 1))
    whole = torch.cat([z, v.unflatten(0, (count, num_instances))], -1)
    return whole, weight.unflatten(0, (count, num_instances)).transpose(1, 2)
