"""Batched L-BFGS: every instance has its own curvature, line search, convergence and failure.

The objective is a function of rows, so instances that are done cost nothing, and no instance sees its neighbours.
Shapes: `B` problems, `n` unknowns, `A` problems still running.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum

import torch
from pydantic import Field
from torch import Tensor

from distlfm.config import Config
from distlfm.runtime.reporting import stepped

Objective = Callable[[Tensor, Tensor], Tensor]
"""(z [A, n], rows [A]) → value [A]; a value that is not finite means that z is not allowed."""

ARMIJO = 1e-4
MIN_CURVATURE = 1e-10


class Status(IntEnum):
    """How the fit of an instance ended."""

    RUNNING = 0
    CONVERGED = 1
    STALLED = 2
    MAX_ITERATIONS = 3
    DIVERGED = 4
    UNRELIABLE = 7
    """It settled, and its answer failed a check; numbers in between are those of rows of a store."""

    @property
    def advice(self) -> str:
        return _ADVICE[self]


_ADVICE = {
    Status.RUNNING: "",
    Status.CONVERGED: "",
    Status.STALLED: "No step improves the objective any more; look at the fit before you trust it.",
    Status.MAX_ITERATIONS: "Raise inference.optimiser.rounds, or inference.variational.iterations.",
    Status.UNRELIABLE: "",
    Status.DIVERGED: "The model gave no finite value: check the units of the data against the priors.",
}


class OptimiserConfig(Config):
    """gradient: largest |gradient| that counts as converged; change: relative change of the objective that does.

    rounds: how often the search goes on, `iterations` more each time, preconditioned by the curvature where it is;
    distance: how near the mode, in posterior standard deviations, is near enough.
    """

    iterations: int = Field(default=80, ge=1)
    rounds: int = Field(default=5, ge=0)
    distance: float = Field(default=0.03, gt=0)
    memory: int = Field(default=12, ge=1)
    gradient: float = 1e-3
    change: float = 1e-8
    patience: int = 5
    max_halvings: int = 16
    max_step: float = 2.0


@dataclass
class Optimum:
    """z: [B, n], value: [B], status: [B] (Status), iterations: [B], evaluations: calls of the objective.

    trace: [iterations, B], the value after each iteration of the slowest problem; one that is done keeps its own.
    """

    z: Tensor
    value: Tensor
    status: Tensor
    iterations: Tensor
    evaluations: int
    trace: Tensor

    def rows(self, index: Tensor) -> Optimum:
        """The problems at `index`."""
        z, value, status, iterations = (one[index] for one in (self.z, self.value, self.status, self.iterations))
        return Optimum(z, value, status, iterations, self.evaluations, self.trace[:, index])

    def moved(self, index: Tensor, later: Optimum) -> Optimum:
        """With the problems at `index` as `later` found them, after these iterations."""
        z, value, status, iterations = (one.clone() for one in (self.z, self.value, self.status, self.iterations))
        z[index], value[index], status[index] = later.z, later.value, later.status
        iterations[index] += later.iterations
        after = self.value.expand(len(later.trace), -1).clone()
        after[:, index] = later.trace
        return Optimum(
            z, value, status, iterations, self.evaluations + later.evaluations, torch.cat([self.trace, after])
        )


def minimise(objective: Objective, z0: Tensor, options: OptimiserConfig) -> Optimum:
    """Minimise each row's objective from z0 [B, n]."""
    num_problems, num_unknowns = z0.shape
    z = z0.clone()
    value, grad = evaluate(objective, z, torch.arange(num_problems))
    evaluations = 1
    status = torch.full((num_problems,), int(Status.RUNNING))
    status[~torch.isfinite(value) | ~torch.isfinite(grad).all(-1)] = int(Status.DIVERGED)
    iterations = torch.zeros(num_problems, dtype=torch.long)
    calm = torch.zeros(num_problems, dtype=torch.long)
    steps = z.new_zeros(options.memory, num_problems, num_unknowns)
    changes = torch.zeros_like(steps)
    weights = z.new_zeros(options.memory, num_problems)
    scale = z.new_ones(num_problems)
    trace = [value.clone()]

    for iteration in range(options.iterations):
        stepped("search step", iteration + 1, options.iterations)
        done = (status == Status.RUNNING) & (grad.abs() <= options.gradient).all(-1)
        status[done] = int(Status.CONVERGED)
        rows = torch.nonzero(status == Status.RUNNING).squeeze(-1)
        if len(rows) == 0:
            break
        direction = -_two_loop(grad[rows], steps[:, rows], changes[:, rows], weights[:, rows], scale[rows], iteration)
        slope = (direction * grad[rows]).sum(-1)
        uphill = slope >= 0
        direction[uphill] = -grad[rows][uphill]
        if iteration == 0:
            direction = direction / direction.norm(dim=-1, keepdim=True).clamp_min(1.0)
        longest = direction.abs().amax(-1, keepdim=True)
        direction = direction * (options.max_step / longest.clamp_min(options.max_step))
        slope = (direction * grad[rows]).sum(-1)

        new_z, new_value, new_grad, moved, tries = _search(
            objective, z[rows], value[rows], grad[rows], direction, slope, rows, options.max_halvings
        )
        evaluations += tries
        iterations[rows] += 1

        step, change = new_z - z[rows], new_grad - grad[rows]
        curvature = (step * change).sum(-1)
        square = (change * change).sum(-1)
        good = moved & (curvature > MIN_CURVATURE * square.clamp_min(1e-300).sqrt() * step.norm(dim=-1))
        slot = iteration % options.memory
        steps[slot, rows], changes[slot, rows] = step, change
        weights[slot, rows] = torch.where(good, 1 / curvature.where(good, torch.ones_like(curvature)), 0.0)
        scale[rows] = torch.where(good, curvature / square.clamp_min(1e-300), scale[rows])

        fell = (value[rows] - new_value) <= options.change * value[rows].abs().clamp_min(1.0)
        calm[rows] = torch.where(fell, calm[rows] + 1, 0)
        z[rows], value[rows], grad[rows] = new_z, new_value, new_grad
        trace.append(value.clone())
        status[rows[calm[rows] >= options.patience]] = int(Status.CONVERGED)
        # A failed search restarts once from steepest descent: stale curvature is the usual cause.
        stuck = rows[~moved]
        weights[:, stuck] = 0.0
        scale[stuck] = 1.0
        status[stuck[calm[stuck] >= 2]] = int(Status.STALLED)

    status[status == Status.RUNNING] = int(Status.MAX_ITERATIONS)
    return Optimum(z, value, status, iterations, evaluations, torch.stack(trace))


def evaluate(objective: Objective, z: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Value [A] and gradient [A, n] of each row's objective."""
    z = z.detach().requires_grad_(True)
    value = objective(z, rows)
    finite = torch.isfinite(value)
    total = torch.where(finite, value, torch.zeros_like(value)).sum()
    (grad,) = torch.autograd.grad(total, z)
    return value.detach(), grad


def _two_loop(grad: Tensor, steps: Tensor, changes: Tensor, weights: Tensor, scale: Tensor, iteration: int) -> Tensor:
    """Inverse Hessian times gradient from the stored pairs [memory, A, n]; a pair of weight zero does nothing."""
    memory = len(steps)
    order = [(iteration - 1 - i) % memory for i in range(min(memory, iteration))]
    direction = grad.clone()
    alphas = {}
    for i in order:
        alphas[i] = weights[i] * (steps[i] * direction).sum(-1)
        direction = direction - alphas[i].unsqueeze(-1) * changes[i]
    direction = direction * scale.unsqueeze(-1)
    for i in reversed(order):
        beta = weights[i] * (changes[i] * direction).sum(-1)
        direction = direction + (alphas[i] - beta).unsqueeze(-1) * steps[i]
    return direction


def _search(
    objective: Objective,
    z: Tensor,
    value: Tensor,
    grad: Tensor,
    direction: Tensor,
    slope: Tensor,
    rows: Tensor,
    max_halvings: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Backtrack each row until it improves enough; rows that never do stay where they are."""
    best_z, best_value, best_grad = z.clone(), value.clone(), grad.clone()
    moved = torch.zeros(len(rows), dtype=torch.bool)
    length = torch.ones_like(value)
    waiting = torch.arange(len(rows))
    tries = 0
    while len(waiting) and tries < max_halvings:
        trial = z[waiting] + length[waiting].unsqueeze(-1) * direction[waiting]
        new_value, new_grad = evaluate(objective, trial, rows[waiting])
        tries += 1
        enough = value[waiting] + ARMIJO * length[waiting] * slope[waiting]
        good = (new_value <= enough) & torch.isfinite(new_value) & torch.isfinite(new_grad).all(-1)
        taken = waiting[good]
        best_z[taken], best_value[taken], best_grad[taken] = trial[good], new_value[good], new_grad[good]
        moved[taken] = True
        rest = waiting[~good]
        # The minimum of the parabola through both values and the slope, kept within a tenth and a half.
        gap = new_value[~good] - value[rest] - length[rest] * slope[rest]
        parabola = -slope[rest] * length[rest] ** 2 / (2 * gap)
        bounded = torch.minimum(torch.maximum(parabola, 0.1 * length[rest]), 0.5 * length[rest])
        length[rest] = torch.where(torch.isfinite(bounded), bounded, 0.1 * length[rest])
        waiting = rest
    return best_z, best_value, best_grad, moved, tries
