"""Fit through the solver with the force summed out: the mode of the parameters, then their posterior by importance.

The density of the parameters is that of `layers.py`; over it goes the same adaptive importance sampling as where the
force is integrated out in closed form. The noise has a mode of its own there, so nothing needs to hold it.
Shapes: `B` instances, `A` of them, `n` parameters, `W` unknowns with the inducing values, `S` draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from distlfm.inference.base import Fit
from distlfm.inference.curvature import root_of_inverse
from distlfm.inference.method import register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.optimise import Objective, OptimiserConfig, Optimum, Status, minimise
from distlfm.inference.posterior import Coordinates, infer_from
from distlfm.inference.series.forward import (
    MAX_DOUBLINGS,
    SolvedMethod,
    SolvedPosterior,
    doubts_of,
    too_coarse,
)
from distlfm.inference.series.layers import Layers, with_forces
from distlfm.inference.series.preestimate import first_guess
from distlfm.runtime.reporting import during, stepped

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

NEAR = 0.1
"""Step of the differences of the density, in posterior standard deviations."""

ROUNDS = 3
"""How often a search that has not arrived goes on, with the curvature where it is."""

ROUGH = OptimiserConfig(iterations=12, gradient=0.5, change=1e-4, patience=2, max_step=2.0, max_halvings=6)
FINE = OptimiserConfig(iterations=12, gradient=0.15, change=1e-5, patience=2, max_step=2.0, max_halvings=6)
"""Searches of the mode before and after its curvature is known; sampling begins there, and corrects what is left."""


@dataclass(frozen=True)
class _Mode:
    """The mode of the parameters, where the layers are anchored; root: [B, n, n] of the covariance there."""

    layers: Layers
    root: Tensor
    value: Tensor
    status: Tensor
    iterations: Tensor
    trace: Tensor


def _climb(layers: Layers) -> _Mode:
    """From where the layers are: first in units of each parameter's own curvature, then in those of the whole."""
    layers = layers.moved(layers.z)
    rows = torch.arange(len(layers.z))
    found = _search(layers, torch.diag_embed(_own_deviations(layers, rows)), ROUGH)
    layers = layers.moved(found.z)
    mode = _refine(layers, _root(layers), found.iterations)
    for number in range(ROUNDS):
        far = (mode.status != Status.CONVERGED) & (mode.status != Status.DIVERGED)
        if not bool(far.any()):
            break
        # The curvature where the last search ended; those that have arrived stay.
        with during("round", number + 1, ROUNDS):
            mode = _merged(mode, _refine(mode.layers, _root(mode.layers), mode.iterations), far)
    return mode


def _refine(layers: Layers, root: Tensor, iterations: Tensor) -> _Mode:
    found = _search(layers, root, FINE)
    layers = layers.moved(found.z)
    return _Mode(layers, root, found.value, found.status, iterations + found.iterations, found.trace)


def _merged(one: _Mode, other: _Mode, wins: Tensor) -> _Mode:
    """The other's mode of the instances where it wins [B], with the other's steps."""

    def pick(first: Tensor, second: Tensor) -> Tensor:
        return torch.where(wins.reshape(-1, *[1] * (first.dim() - 1)), second, first)

    a, b = one.layers, other.layers
    layers = replace(b, z=pick(a.z, b.z), v=pick(a.v, b.v), follow=pick(a.follow, b.follow))
    length = min(len(one.trace), len(other.trace))
    trace = torch.where(wins, other.trace[-length:], one.trace[-length:])
    root, value = pick(one.root, other.root), pick(one.value, other.value)
    return _Mode(layers, root, value, pick(one.status, other.status), pick(one.iterations, other.iterations), trace)


def _own_deviations(layers: Layers, rows: Tensor) -> Tensor:
    """[B, n]: how far each parameter alone may go, from second differences; the prior's deviation at most."""
    size = layers.z.shape[-1]
    step = torch.full_like(layers.z, NEAR)
    for _ in range(2):
        moves = torch.diag_embed(step)
        places = torch.cat([layers.z.unsqueeze(1), layers.z.unsqueeze(1) + moves, layers.z.unsqueeze(1) - moves], 1)
        value = _at(layers, places, rows)
        curvature = (value[:, 1 : size + 1] + value[:, size + 1 :] - 2 * value[:, :1]) / step.square()
        step = NEAR * curvature.nan_to_num(1e4, 1e4, 1e4).clamp(1.0, 1e8).rsqrt()
    return step / NEAR


def _root(layers: Layers) -> Tensor:
    """Root [B, n, n] of the inverse of the curvature, by second differences of the density."""
    stepped("curvature")
    rows, size = torch.arange(len(layers.z)), layers.z.shape[-1]
    if size == 0:
        return layers.z.new_zeros(len(rows), 0, 0)
    own = _own_deviations(layers, rows)
    first, second = torch.triu_indices(size, size)
    step = 3 * NEAR * torch.diag_embed(own)
    places = layers.z.unsqueeze(1)
    ahead, behind = places + step, places - step
    both = places + step[:, first] + step[:, second]
    apart = places - step[:, first] - step[:, second]
    value = _at(layers, torch.cat([places, ahead, behind, both, apart], 1), rows)
    here, ahead, behind, both, apart = value.split([1, size, size, len(first), len(first)], 1)
    # (f(x+a+b) + f(x−a−b) + 2 f(x) − Σ f(x±a) − Σ f(x±b)) / 2 is the mixed difference.
    around = ahead + behind
    mixed = 0.5 * (both + apart + 2 * here - around[:, first] - around[:, second])
    matrix = value.new_zeros(len(rows), size, size)
    matrix[:, first, second] = matrix[:, second, first] = mixed / (3 * NEAR) ** 2
    # In units of each one's own deviation the bound on flat directions keeps its meaning.
    scaled = torch.diag_embed(1 / own) @ matrix @ torch.diag_embed(1 / own)
    return root_of_inverse(scaled)


def _at(layers: Layers, places: Tensor, rows: Tensor) -> Tensor:
    """The negative log density [B, k] at places [B, k, n]."""
    count = places.shape[1]
    found: Tensor = layers.negative(places.flatten(0, 1), rows.repeat_interleave(count)).unflatten(0, (-1, count))
    return found


def _search(layers: Layers, root: Tensor, options: OptimiserConfig) -> Optimum:
    """Minimise the negative log density from the anchor, in units of root [B, n, n]."""

    def place(x: Tensor, rows: Tensor) -> Tensor:
        return layers.z[rows] + (root[rows] @ x.unsqueeze(-1)).squeeze(-1)

    def values(x: Tensor, rows: Tensor) -> Tensor:
        return layers.negative(place(x, rows), rows)

    start = torch.zeros_like(layers.z)

    def objective(x: Tensor, rows: Tensor) -> Tensor:
        value: Tensor = _Differences.apply(x, rows, values)  # type: ignore[no-untyped-call]
        return value

    found = minimise(objective, start, options)
    return replace(found, z=place(found.z, torch.arange(len(start))))


class _Differences(torch.autograd.Function):
    """A function's value with a gradient by central differences."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: Tensor, values: Objective) -> Tensor:
        size = x.shape[-1]
        step = NEAR * torch.eye(size, dtype=x.dtype)
        places = torch.cat([x.unsqueeze(1), x.unsqueeze(1) + step, x.unsqueeze(1) - step], 1)
        found = values(places.flatten(0, 1), rows.repeat_interleave(2 * size + 1)).unflatten(0, (-1, 2 * size + 1))
        slope = (found[:, 1 : size + 1] - found[:, size + 1 :]) / (2 * NEAR)
        ctx.save_for_backward(slope.nan_to_num(0.0, 0.0, 0.0))
        here: Tensor = found[:, 0]
        return here

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (slope,) = ctx.saved_tensors
        return grads[0].unsqueeze(-1) * slope, None, None


@register_method("nested")
class Nested(SolvedMethod):
    """Through the solver, with the force summed out."""

    def infer(self, model: Model, observations: Observations, options: InferenceConfig, seeds: Sequence[int]) -> Fit:
        """Fit B instances. Of several starts the one with the highest density of the parameters is kept."""
        forward = self.forward(model, observations, options)
        best: _Mode | None = None
        for attempt in range(options.restarts):
            with during("start", attempt + 1, options.restarts):
                random = options.random_start or attempt > 0
                w = first_guess(forward, [seed + attempt for seed in seeds], options.preestimate, random)
                found = _climb(Layers.at(forward, w, seeds))
            if best is not None:
                found = _merged(best, found, (found.value < best.value) & (found.status != Status.DIVERGED))
            best = found
        assert best is not None
        for doubling in range(MAX_DOUBLINGS):
            coarse = too_coarse(forward, best.layers.w)
            if not bool(coarse.any()):
                break
            forward = forward.with_steps(torch.where(coarse, 2, 1) * forward.steps)
            with during("shorter solver steps", doubling + 1, MAX_DOUBLINGS):
                finer = _refine(replace(best.layers, forward=forward), best.root, best.iterations)
            # Those whose steps were short enough stay where they are: a neighbour must not move them.
            best = _merged(best, finer, coarse)
        layers = best.layers
        straight = Coordinates(model.space)
        sampled = infer_from(layers.corrected, layers.z, best.root, seeds, options.posterior, straight)
        stepped("draws of the force")
        whole, _ = with_forces(layers, sampled.draws, seeds)
        posterior = SolvedPosterior(self.name, forward, whole, seeds, options.variational.features)
        return Fit(
            posterior=posterior,
            bound=-best.value,
            status=best.status,
            iterations=best.iterations,
            effective=sampled.effective,
            trace=-best.trace,
            doubts=doubts_of(posterior, layers.w),
            tail=sampled.tail,
        )
