"""Fit through the solver: one Gaussian q over parameters and inducing values together, by maximising the ELBO.

First the mode of the joint density is found by L-BFGS, then q starts as Laplace's Gaussian there and is improved by
stochastic gradients, either of a mean and a Cholesky factor (Adam) or natural ones.
Shapes: `S` samples, `B` instances, `W` unknowns, `L` forces, `R` features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from distlfm.config import Config
from distlfm.gp.variational import (
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
    notices_of,
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
    """num_inducing: points a force, by default from the data; `learn_inducing` moves them too (with `adam`).
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

    @model_validator(mode="after")
    def _learnable(self) -> VariationalConfig:
        if self.learn_inducing and self.gradient == "natural":
            raise ValueError("learn_inducing needs gradient adam: natural gradients move q alone; set one of the two")
        return self


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
    climb = _climb_natural if options.gradient == "natural" else _climb_adam
    forward, q, trace, status = climb(forward, laplace, best.status.clone(), seeds, options)
    noise = _normal(seeds, options.draws, forward.size)
    posterior = SolvedPosterior("variational", forward, q.sample_whitened(noise)[:, :, 0], seeds, options.features)
    bound = trace[-options.window :].mean(0) if len(trace) else -best.value
    drawn = torch.full_like(bound, options.draws)
    return Fit(posterior, bound, status, best.iterations, drawn, trace, notices_of(posterior, best.z))


def _normal(seeds: Sequence[int], count: int, size: int) -> Tensor:
    """[count, B, 1, size] standard normal numbers of each instance's own."""
    streams = [torch.Generator().manual_seed(seed + 1) for seed in seeds]
    each = [torch.randn(count, 1, size, generator=stream, dtype=torch.float64) for stream in streams]
    return torch.stack(each, 1)


class _Noise:
    """Fresh randomness every iteration, from each instance's own stream."""

    def __init__(self, forward: Forward, seeds: Sequence[int], options: VariationalConfig) -> None:
        self.streams = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.whitened = (options.samples, 1, forward.size)
        self.features = (options.samples, len(forward.model.kernels), 2, options.features)

    def draw(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """[S, A, 1, W] for q and [S, A, L, 2, R] for what the inducing values leave open."""
        streams = [self.streams[int(i)] for i in rows]
        first = [torch.randn(self.whitened, generator=one, dtype=torch.float64) for one in streams]
        second = [torch.randn(self.features, generator=one, dtype=torch.float64) for one in streams]
        return torch.stack(first, 1), torch.stack(second, 1)


def _elbo(forward: Forward, q: WhitenedGaussian, rows: Tensor, noise: tuple[Tensor, Tensor]) -> Tensor:
    """One estimate of the bound of each instance [A]; draws whose solve failed are left out, all failed: −∞."""
    density = forward.log_likelihood(q.sample_whitened(noise[0])[:, :, 0], rows, noise[1])
    ok = torch.isfinite(density)
    mean = torch.where(ok, density, torch.zeros_like(density)).sum(0) / ok.sum(0).clamp_min(1)
    return torch.where(ok.any(0), mean - q.kl(), -torch.inf)


class _Progress:
    """Which instances still run: one stops when its averaged bound no longer rises beyond its own noise.

    status: [B]; bounds of an iteration are those of the instances `rows` [A] that ran.
    """

    def __init__(self, status: Tensor, options: VariationalConfig) -> None:
        self.status, self.options = status, options
        self.stopped = status == Status.DIVERGED
        self.trace: list[Tensor] = []

    def rows(self) -> Tensor:
        return torch.nonzero(~self.stopped).squeeze(-1)

    def record(self, rows: Tensor, elbo: Tensor) -> None:
        latest = self.trace[-1].clone() if self.trace else torch.full(self.stopped.shape, -torch.inf).to(elbo)
        latest[rows] = elbo.detach()
        self.trace.append(latest)
        self.status[rows[~torch.isfinite(elbo)]] = int(Status.DIVERGED)
        self.stopped[rows[~torch.isfinite(elbo)]] = True
        window = self.options.window
        if len(self.trace) % window == 0 and len(self.trace) >= 2 * window:
            recent, before = torch.stack(self.trace[-window:]), torch.stack(self.trace[-2 * window : -window])
            error = (recent.var(0) / window + before.var(0) / window).sqrt()
            calm = (recent.mean(0) - before.mean(0)) < self.options.tolerance * error
            done = calm & ~self.stopped
            self.status[done] = int(Status.CONVERGED)
            self.stopped |= done

    def settled(self) -> Tensor:
        """Status of all; one that was still rising when the iterations ran out says so."""
        rising = ~self.stopped
        return torch.where(rising, int(Status.MAX_ITERATIONS), self.status) if self.trace else self.status

    def result(self) -> Tensor:
        return torch.stack(self.trace) if self.trace else torch.zeros(0, len(self.status), dtype=torch.float64)


def _climb_adam(
    forward: Forward, q: WhitenedGaussian, status: Tensor, seeds: Sequence[int], options: VariationalConfig
) -> tuple[Forward, WhitenedGaussian, Tensor, Tensor]:
    progress = _Progress(status, options)
    noise = _Noise(forward, seeds, options)
    # Steps are taken in units of Laplace's own deviations: w = mean + root · (I + change) · noise.
    change = torch.zeros_like(q.scale, requires_grad=True)
    shift = torch.zeros_like(q.mean, requires_grad=True)
    moves = torch.zeros_like(forward.inducing, requires_grad=True)
    learned = (shift, change, moves) if options.learn_inducing else (shift, change)
    adam = torch.optim.Adam(learned, lr=options.learning_rate)
    gap = (forward.domain.upper - forward.domain.lower).unsqueeze(1) / (forward.num_inducing - 1)

    def placed() -> Forward:
        return forward.with_inducing(forward.inducing + REACH * gap * torch.tanh(moves))

    for iteration in range(options.iterations):
        stepped("variational step", iteration + 1, options.iterations)
        rows = progress.rows()
        if len(rows) == 0:
            break
        now = _moved(q, shift, change)
        here = WhitenedGaussian(now.mean[rows], now.scale[rows])
        elbo = _elbo(placed() if options.learn_inducing else forward, here, rows, noise.draw(rows))
        adam.zero_grad()
        (-elbo[torch.isfinite(elbo)].sum()).backward()
        _cut(*learned)
        still = progress.stopped.clone()
        kept = [tensor.detach()[still].clone() for tensor in learned]
        adam.step()
        with torch.no_grad():  # Adam's momentum must not carry on an instance that has stopped
            for tensor, value in zip(learned, kept, strict=True):
                tensor[still] = value
        progress.record(rows, elbo)
    with torch.no_grad():
        return placed(), _moved(q, shift, change), progress.result(), progress.settled()


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
    forward: Forward, q: WhitenedGaussian, status: Tensor, seeds: Sequence[int], options: VariationalConfig
) -> tuple[Forward, WhitenedGaussian, Tensor, Tensor]:
    progress = _Progress(status, options)
    noise = _Noise(forward, seeds, options)
    state = natural_from_gaussian(q)
    for iteration in range(options.iterations):
        stepped("variational step", iteration + 1, options.iterations)
        rows = progress.rows()
        if len(rows) == 0:
            break
        numbers = noise.draw(rows)
        found: list[Tensor] = []

        def loss(
            here: WhitenedGaussian,
            rows: Tensor = rows,
            numbers: tuple[Tensor, Tensor] = numbers,
            found: list[Tensor] = found,
        ) -> Tensor:
            elbo = _elbo(forward, here, rows, numbers)
            found.append(elbo.detach())
            return torch.where(torch.isfinite(elbo), -elbo, torch.zeros_like(elbo))

        part = type(state)(state.first[rows], state.second[rows])
        step = natural_step(part, expectation_gradient(part, loss), options.learning_rate)
        first, second = state.first.clone(), state.second.clone()
        first[rows], second[rows] = step.state.first, step.state.second
        state = type(state)(first, second)
        progress.record(rows, found[0])
    return forward, gaussian_from_natural(state), progress.result(), progress.settled()


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
