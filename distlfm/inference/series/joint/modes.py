"""Modes of the joint density by damped Gauss–Newton steps, with the noise held at its evidence.

The joint density of noise and force has no useful mode: a force that passes through all data asks for no noise. So the
noise is where the Laplace evidence is highest, which is where the expected log density of the data is (an EM step: the
spread of the outputs under the Gaussian of all else counts as residual too).

Shapes: `K` starts, `A` instances, `n` parameters, `W` unknowns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.series.joint.density import Density, Linearised
from distlfm.runtime.reporting import stepped

ITERATIONS = 40
"""Steps of a search, at most."""

LONGEST = 2.0
"""Largest change of an unknown in one step."""

ARRIVED = 1e-2
"""A search ends when its step has this length in units of the Gaussian at hand."""

NOISE_STEP = 0.7
"""Largest change of a parameter of the noise in one step."""

FIRST_DAMPING, MOST_DAMPING = 1e-2, 1e8


@dataclass(frozen=True)
class Modes:
    """w: [K, A, W]; root: [K, A, W, W], whose square is the covariance there; evidence: [K, A], −∞ where it failed.

    settled: [K, A]; iterations: [K, A].
    """

    w: Tensor
    root: Tensor
    evidence: Tensor
    settled: Tensor
    iterations: Tensor

    def rows(self, index: Tensor) -> Modes:
        """Of the instances at `index`."""
        parts = (self.w, self.root, self.evidence, self.settled, self.iterations)
        return Modes(*(one[:, index] for one in parts))


@torch.no_grad()
def climb(density: Density, w: Tensor, iterations: int = ITERATIONS) -> Modes:
    """Search from w [K, A, W]."""
    w = w * density.active
    damping = torch.full(w.shape[:2], FIRST_DAMPING, dtype=w.dtype)
    settled = torch.zeros(w.shape[:2], dtype=torch.bool)
    used = torch.zeros(w.shape[:2], dtype=torch.long)
    for iteration in range(iterations):
        stepped("search step", iteration + 1, iterations)
        rows = torch.nonzero(~settled.all(0)).squeeze(-1)
        if len(rows) == 0:
            break
        part = density.rows(rows)
        here = part.linearised(w[:, rows])
        moved, size, lighter = _step(part, here, w[:, rows], damping[:, rows])
        still = settled[:, rows]
        w[:, rows] = torch.where(still.unsqueeze(-1), w[:, rows], moved)
        used[:, rows] += (~still).long()
        damping[:, rows] = torch.where(still, damping[:, rows], lighter)
        settled[:, rows] = still | (size < ARRIVED) | (lighter > MOST_DAMPING)
    return _summary(density, w, settled, used)


def _curvature(density: Density, here: Linearised, w: Tensor) -> tuple[Tensor, Tensor]:
    """Curvature [K, A, W, W] of minus the log density but for the noise's rows, and its gradient [K, A, W]."""
    white = density.weighted(here.values, here.outputs, here.jacobian)
    curvature = white.mT @ white + torch.eye(w.shape[-1], dtype=w.dtype)
    gradient = w - (_pull(density, here).unsqueeze(-2) @ here.jacobian.flatten(2, 3)).squeeze(-2)
    noise = torch.nonzero(density.noise).squeeze(-1)
    curvature[..., noise, :] = 0.0
    curvature[..., :, noise] = 0.0
    curvature[..., noise, noise] = 1.0
    gradient[..., noise] = 0.0
    return curvature, gradient


def _pull(density: Density, here: Linearised) -> Tensor:
    """Gradient [K, A, P·T] of the log likelihood by the outputs."""
    with torch.enable_grad():
        outputs = here.outputs.detach().requires_grad_()
        total = density.model.likelihood.log_prob(here.values, outputs, density.data)
        (pull,) = torch.autograd.grad(torch.where(torch.isfinite(total), total, 0.0).sum(), outputs)
    return pull.nan_to_num(0.0, 0.0, 0.0).flatten(-2)


def _step(density: Density, here: Linearised, w: Tensor, damping: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Where to go, how far that is in units of the Gaussian [K, A], and the damping of the next step [K, A]."""
    curvature, gradient = _curvature(density, here, w)
    factor = torch.linalg.cholesky_ex(curvature).L
    noise = density.noise
    before = density.log_density(w)
    w_noise = _noise_step(density, here, w, factor) if bool(noise.any()) else w[..., : density.num_free]
    diagonal = torch.diagonal(curvature, dim1=-2, dim2=-1)
    damped = curvature + torch.diag_embed(damping.unsqueeze(-1) * diagonal)
    step = -torch.cholesky_solve(gradient.unsqueeze(-1), torch.linalg.cholesky_ex(damped).L).squeeze(-1)
    step = step.nan_to_num(0.0, 0.0, 0.0)
    step = step * (LONGEST / step.abs().amax(-1, keepdim=True).clamp_min(LONGEST))
    after = density.log_density(w + step)
    better = torch.isfinite(after) & (after >= before)
    size = (factor.mT @ step.unsqueeze(-1)).squeeze(-1).abs().amax(-1)
    moved = torch.where(better.unsqueeze(-1), w + step, w)
    change = torch.where(noise, w_noise - w[..., : density.num_free], 0.0)
    moved[..., : density.num_free] += change
    size = torch.maximum(torch.where(better, size, torch.inf), change.abs().sum(-1))
    # A step within rounding of the mode may go up by rounding.
    flat = ~better & ((after - before).abs() < 1e-9 * (1 + before.abs()))
    size = torch.where(flat, change.abs().sum(-1), size)
    lighter = torch.where(better | flat, damping * 0.1, (damping * 10).clamp_min(1e-3))
    return moved, size, lighter


def _noise_step(density: Density, here: Linearised, w: Tensor, factor: Tensor) -> Tensor:
    """z [K, A, n] after one Newton step of the noise's parameters towards the highest evidence."""
    _, gradient, curvature = _noise_terms(density, here, w, factor)
    values, vectors = torch.linalg.eigh(curvature)
    turned = (vectors.mT @ gradient.unsqueeze(-1)).squeeze(-1) / values.abs().clamp_min(0.5)
    step = (vectors @ turned.unsqueeze(-1)).squeeze(-1)
    z = w[..., : density.num_free].clone()
    z[..., density.noise] += step.clamp(-NOISE_STEP, NOISE_STEP)
    return z


def _noise_terms(density: Density, here: Linearised, w: Tensor, factor: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Expected log density of the data and the noise's prior, with gradient [K, A, m] and minus its curvature in the

    m parameters of the noise. factor: of the curvature of all else, which gives the outputs their spread.
    """
    noise, space = density.noise, density.model.space
    jacobian = here.jacobian
    spread = torch.linalg.solve_triangular(factor, jacobian.flatten(2, 3).mT, upper=False).mT.unflatten(
        2, jacobian.shape[2:4]
    )
    with torch.enable_grad():
        own = w[..., : density.num_free][..., noise].detach().requires_grad_()
        z = w[..., : density.num_free].detach().clone()
        z[..., noise] = own
        values = space.unpack(z)
        fitted = density.model.likelihood.log_prob(values, here.outputs, density.data)
        white = density.weighted(values, here.outputs, spread)
        total = fitted - 0.5 * white.square().sum((-2, -1)) - 0.5 * own.square().sum(-1)
        total = torch.where(torch.isfinite(total), total, 0.0)
        (gradient,) = torch.autograd.grad(total.sum(), own, create_graph=True)
        rows = []
        for i in range(own.shape[-1]):
            (row,) = torch.autograd.grad(gradient[..., i].sum(), own, retain_graph=True)
            rows.append(-row)
    curvature = torch.stack(rows, -2).nan_to_num(1.0, 1.0, 1.0)
    return total.detach(), gradient.detach().nan_to_num(0.0, 0.0, 0.0), 0.5 * (curvature + curvature.mT)


def _summary(density: Density, w: Tensor, settled: Tensor, used: Tensor) -> Modes:
    here = density.linearised(w)
    curvature, _ = _curvature(density, here, w)
    if bool(density.noise.any()):
        _, _, own = _noise_terms(density, here, w, torch.linalg.cholesky_ex(curvature).L)
        values, vectors = torch.linalg.eigh(own)
        own = vectors @ torch.diag_embed(values.abs().clamp_min(0.5)) @ vectors.mT
        place = torch.nonzero(density.noise).squeeze(-1)
        curvature[..., place.unsqueeze(-1), place] = own
    factor, ok = safe_cholesky(curvature)
    identity = torch.eye(w.shape[-1], dtype=w.dtype).expand_as(factor)
    covariance = torch.cholesky_solve(identity, factor)
    root, fine = safe_cholesky(covariance)
    evidence = density.log_density(w) - torch.log(torch.diagonal(factor, dim1=-2, dim2=-1)).sum(-1)
    return Modes(w, root, torch.where(ok & fine & here.ok, evidence, -torch.inf), settled, used)
