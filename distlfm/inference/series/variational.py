"""Fit through the solver: one Gaussian q over parameters and inducing values together, by maximising the ELBO.

First the mode of the joint density is found by L-BFGS, then q starts as Laplace's Gaussian there and is improved by
stochastic gradients, either of a mean and a Cholesky factor (Adam) or natural ones.
Shapes: `S` samples, `B` instances, `W` unknowns, `L` forces, `R` features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field
from torch import Tensor

from distlfm.config import Config
from distlfm.gp.pathwise import instance_noise
from distlfm.gp.variational import (
    NaturalState,
    WhitenedGaussian,
    expectation_gradient,
    gaussian_from_natural,
    gaussian_from_unconstrained,
    natural_from_gaussian,
    natural_step,
)
from distlfm.inference.base import Fit
from distlfm.inference.collapsed import ONE_START, Starts, best_of_starts
from distlfm.inference.curvature import find_modes, hessian, root_of_inverse
from distlfm.inference.method import register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.optimise import OptimiserConfig, Status
from distlfm.inference.series.evidence import FOUND, best_matched_mode
from distlfm.inference.series.forward import (
    MAX_DOUBLINGS,
    Forward,
    SolvedMethod,
    SolvedPosterior,
    doubts_of,
    too_coarse,
)
from distlfm.runtime.reporting import during, stepped
from distlfm.solvers.base import SolverConfig

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

REACH = 0.4
"""How far an inducing point may move when places are learned, in units of the mean gap between points."""

FIRST_SHARE = 0.2
"""q starts with this share of the deviations that Laplace's Gaussian has, and grows from there."""

MAX_GRADIENT = 10.0
"""Norm to which an instance's gradient is cut, so that one wild draw does not undo a hundred good ones."""


class VariationalConfig(Config):
    """num_inducing: points per force, by default from the data; `learn_inducing` moves them too (with `adam`).
    samples: draws an iteration. draws: of the answer.

    gradient: `adam` on a mean and a Cholesky factor, or `natural`. tolerance: an instance is done when its ELBO,
    averaged over `window` iterations, gains less than this many of its own standard errors.
    """

    num_inducing: int | None = Field(default=None, ge=2)
    learn_inducing: bool = False
    samples: int = Field(default=8, ge=1)
    iterations: int = Field(default=300, ge=0)
    learning_rate: float = 0.03
    gradient: Literal["adam", "natural"] = "adam"
    window: int = Field(default=40, ge=2)
    tolerance: float = 1.0
    features: int = Field(default=128, ge=8)
    draws: int = Field(default=128, ge=2)
    solver: SolverConfig = SolverConfig()


def fit_variational(
    forward: Forward,
    seeds: Sequence[int],
    optimiser: OptimiserConfig,
    options: VariationalConfig,
    starts: Starts = ONE_START,
    start: Tensor | None = None,
) -> Fit:
    """Fit B instances at once. start: [B, W] where L-BFGS begins, by default the prior's middle."""

    def objective(w: Tensor, rows: Tensor) -> Tensor:
        return 0.5 * w.square().sum(-1) - forward.log_likelihood(w[None], rows)[0]

    if start is None:
        best = best_of_starts(objective, seeds, forward.size, optimiser, starts)
    else:
        best = find_modes(objective, start, optimiser)
    rows = torch.arange(len(seeds))
    for doubling in range(MAX_DOUBLINGS):
        if not bool(too_coarse(forward, best.z).any()):
            break
        assert forward.solver.steps is not None
        forward = forward.with_steps(2 * forward.solver.steps)
        with during("shorter solver steps", doubling + 1, MAX_DOUBLINGS):
            best = find_modes(objective, best.z, optimiser)
    root = root_of_inverse(hessian(objective, best.z, rows))
    # From inside: where the equation bends, Laplace's Gaussian reaches places whose likelihood is astronomically small.
    laplace = WhitenedGaussian(best.z.unsqueeze(1), FIRST_SHARE * root.unsqueeze(1))
    iterations = _Iterations(forward, best.status.clone(), seeds, options)
    climb = _climb_natural if options.gradient == "natural" else _climb_adam
    forward, q = climb(forward, laplace, iterations, options)
    trace = iterations.trace()
    noise = instance_noise([seed + 1 for seed in seeds], options.draws, 1, forward.size).transpose(0, 1).contiguous()
    posterior = SolvedPosterior("variational", forward, q.sample_whitened(noise)[:, :, 0], seeds, options.features)
    bound = trace[-options.window :].mean(0) if len(trace) else -best.value
    drawn = torch.full_like(bound, options.draws)
    doubts = doubts_of(posterior, best.z)
    return Fit(posterior, bound, iterations.settled(), best.iterations, drawn, trace, doubts=doubts)


def _elbo(forward: Forward, q: WhitenedGaussian, rows: Tensor, noise: Sequence[Tensor]) -> Tensor:
    """One estimate of the bound of each instance [A]; draws whose solve failed are left out, all failed: −∞."""
    density = forward.log_likelihood(q.sample_whitened(noise[0])[:, :, 0], rows, noise[1])
    ok = torch.isfinite(density)
    mean = torch.where(ok, density, torch.zeros_like(density)).sum(0) / ok.sum(0).clamp_min(1)
    return torch.where(ok.any(0), mean - q.kl(), -torch.inf)


class _Iterations:
    """The instances [A] that still run and fresh randomness for each, from its own stream, iteration by iteration.

    An instance stops when its averaged bound no longer rises beyond its own noise. status: [B].
    """

    def __init__(self, forward: Forward, status: Tensor, seeds: Sequence[int], options: VariationalConfig) -> None:
        self.status, self.options = status, options
        self.stopped = status == Status.DIVERGED
        self.bounds: list[Tensor] = []
        self.streams = [torch.Generator().manual_seed(seed) for seed in seeds]
        whitened = (options.samples, 1, forward.size)
        features = (options.samples, len(forward.model.kernels), 2, options.features)
        self.shapes = (whitened, features)

    def __iter__(self) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """The rows, and [S, A, 1, W] for q and [S, A, L, 2, R] for what the inducing values leave open."""
        for iteration in range(self.options.iterations):
            stepped("variational step", iteration + 1, self.options.iterations)
            rows = torch.nonzero(~self.stopped).squeeze(-1)
            if len(rows) == 0:
                return
            yield rows, [self._normal(rows, shape) for shape in self.shapes]

    def _normal(self, rows: Tensor, shape: tuple[int, ...]) -> Tensor:
        streams = [self.streams[int(i)] for i in rows]
        return torch.stack([torch.randn(shape, generator=one, dtype=torch.float64) for one in streams], 1)

    def record(self, rows: Tensor, elbo: Tensor) -> None:
        """Take note of the bounds [A] of one iteration."""
        latest = self.bounds[-1].clone() if self.bounds else torch.full(self.stopped.shape, -torch.inf).to(elbo)
        latest[rows] = elbo.detach()
        self.bounds.append(latest)
        self.status[rows[~torch.isfinite(elbo)]] = int(Status.DIVERGED)
        self.stopped[rows[~torch.isfinite(elbo)]] = True
        window = self.options.window
        if len(self.bounds) % window == 0 and len(self.bounds) >= 2 * window:
            recent, before = torch.stack(self.bounds[-window:]), torch.stack(self.bounds[-2 * window : -window])
            error = (recent.var(0) / window + before.var(0) / window).sqrt()
            calm = (recent.mean(0) - before.mean(0)) < self.options.tolerance * error
            done = calm & ~self.stopped
            self.status[done] = int(Status.CONVERGED)
            self.stopped |= done

    def settled(self) -> Tensor:
        """Status of all; one that was still rising when the iterations ran out says so."""
        return torch.where(self.stopped, self.status, int(Status.MAX_ITERATIONS)) if self.bounds else self.status

    def trace(self) -> Tensor:
        """Bounds [iterations, B]."""
        return torch.stack(self.bounds) if self.bounds else torch.zeros(0, len(self.status), dtype=torch.float64)


def _climb_adam(
    forward: Forward, q: WhitenedGaussian, iterations: _Iterations, options: VariationalConfig
) -> tuple[Forward, WhitenedGaussian]:
    # Steps are taken in units of Laplace's own deviations: w = mean + root · (I + change) · noise.
    change = torch.zeros_like(q.scale, requires_grad=True)
    shift = torch.zeros_like(q.mean, requires_grad=True)
    moves = torch.zeros_like(forward.inducing, requires_grad=True)
    learned = (shift, change, moves) if options.learn_inducing else (shift, change)
    adam = torch.optim.Adam(learned, lr=options.learning_rate)
    gap = (forward.domain.upper - forward.domain.lower).unsqueeze(1) / (forward.num_inducing - 1)

    def placed() -> Forward:
        return forward.with_inducing(forward.inducing + REACH * gap * torch.tanh(moves))

    for rows, noise in iterations:
        now = _moved(q, shift, change)
        here = WhitenedGaussian(now.mean[rows], now.scale[rows])
        elbo = _elbo(placed() if options.learn_inducing else forward, here, rows, noise)
        adam.zero_grad()
        (-elbo[torch.isfinite(elbo)].sum()).backward()
        _cut(*learned)
        still = iterations.stopped.clone()
        kept = [tensor.detach()[still].clone() for tensor in learned]
        adam.step()
        with torch.no_grad():  # Adam's momentum must not carry on an instance that has stopped
            for tensor, value in zip(learned, kept, strict=True):
                tensor[still] = value
        iterations.record(rows, elbo)
    with torch.no_grad():
        return placed(), _moved(q, shift, change)


def _cut(*tensors: Tensor) -> None:
    """Bound each instance's gradient, over all tensors [B, ...] together."""
    grads = [tensor.grad.nan_to_num_(0.0, 0.0, 0.0) for tensor in tensors if tensor.grad is not None]
    norm = torch.stack([grad.flatten(1).square().sum(-1) for grad in grads]).sum(0).sqrt()
    share = (MAX_GRADIENT / norm.clamp_min(MAX_GRADIENT)).nan_to_num(0.0)
    for grad in grads:
        grad.mul_(share.reshape(-1, *[1] * (grad.dim() - 1)))


def _moved(q: WhitenedGaussian, shift: Tensor, change: Tensor) -> WhitenedGaussian:
    relative = gaussian_from_unconstrained(shift, change)
    mean = q.mean + (q.scale @ shift.unsqueeze(-1)).squeeze(-1)
    return WhitenedGaussian(mean, q.scale @ relative.scale)


def _climb_natural(
    forward: Forward, q: WhitenedGaussian, iterations: _Iterations, options: VariationalConfig
) -> tuple[Forward, WhitenedGaussian]:
    state = natural_from_gaussian(q)
    for rows, noise in iterations:

        def loss(here: WhitenedGaussian, rows: Tensor = rows, noise: Sequence[Tensor] = noise) -> Tensor:
            elbo = _elbo(forward, here, rows, noise)
            iterations.record(rows, elbo)
            return torch.where(torch.isfinite(elbo), -elbo, torch.zeros_like(elbo))

        part = NaturalState(state.first[rows], state.second[rows])
        step = natural_step(part, expectation_gradient(part, loss), options.learning_rate)
        first, second = state.first.clone(), state.second.clone()
        first[rows], second[rows] = step.state.first, step.state.second
        state = NaturalState(first, second)
    return forward, gaussian_from_natural(state)


@register_method("variational")
class Variational(SolvedMethod):
    """Through the solver, by one Gaussian of force and parameters."""

    def infer(self, model: Model, observations: Observations, options: InferenceConfig, seeds: Sequence[int]) -> Fit:
        forward = self.forward(model, observations, options)
        starts = Starts(options.restarts, options.random_start)
        if options.preestimate.enabled:
            mode = best_matched_mode(forward, seeds, options.optimiser, options.preestimate, starts)
            if mode is not None:
                found = fit_variational(forward, seeds, FOUND, options.variational, starts, mode.z)
                return replace(found, status=torch.maximum(found.status, mode.status), iterations=mode.iterations)
        return fit_variational(forward, seeds, options.optimiser, options.variational, starts)
