"""The search for the point around which a nonlinear field is linearised.

A step is judged by the equation's own solution: its misfit in place of the linear one. Steps that do not improve are
shortened, and so are those on which the equation cannot be solved. Coefficients are held back in proportion to
their step, less so as steps succeed, which changes the way and not its end (Levenberg and Marquardt).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from distlfm.inference.collapsed import Starts, best_of_starts
from distlfm.inference.curvature import find_modes, hessian, root_of_inverse
from distlfm.inference.field.linearised import LinearisedField, Point, Solved, free_coefficients, shown_by, solve_at
from distlfm.inference.field.map import FieldMap
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.optimise import OptimiserConfig, Optimum, Status
from distlfm.inference.whitened import noise_of
from distlfm.runtime.reporting import during

LINEARISATIONS = 15
"""Most linearisations of one fit."""

STILL = 0.05
"""A fit has converged when no output moves by more than this part of the noise, and no coefficient's z by more."""

HALVINGS = 6
REACH, EASED = 0.5, 4.0
"""Deviation of the prior by which coefficients move at first, and the factor by which that grows or shrinks."""

WORSE = 0.1
"""Log density that a step may lose: less than that is not worth a shorter one."""

BENDS, ASIDE, CENTRED = 3, 1.5, 0.3
"""How often linearisations are placed on both sides of the coefficients, how far, in posterior deviations, and how far

from the middle between them the mode may be."""


@dataclass(frozen=True)
class Search:
    """How a search ended: the model around its last point, the mode of its unknowns, and how many linearisations."""

    marginal: LinearisedField
    best: Optimum
    status: Status
    linearisations: int


def find_point(
    data: Observations, field_map: FieldMap, start: Point | None, seed: int, optimiser: OptimiserConfig, starts: Starts
) -> Search:
    """The point of one instance at which linearising again changes nothing, from `start` or the prior's middle."""
    sizes = field_map.model.space.num_free, math.prod(field_map.inducing.counts) + field_map.num_initial
    middle = Point(*(torch.zeros(1, size, dtype=torch.float64) for size in sizes))
    first = [point for point in (start, middle) if point is not None]
    solved = [solve_at(field_map, point) for point in first]
    which = next((i for i, one in enumerate(solved) if bool(one.ok[0])), len(first) - 1)
    now = LinearisedField(data, field_map, first[which], solved[which])
    quick = optimiser.model_copy(update={"rounds": min(1, optimiser.rounds)})
    if not bool(now.solved.ok[0]):
        return Search(now, _nothing(first[which].z), Status.DIVERGED, 0)
    reach, status, count, trace = REACH, Status.MAX_ITERATIONS, 1, []
    while count < LINEARISATIONS:
        with during("linearisation", count, LINEARISATIONS):
            best = _mode(now, reach, seed, quick, starts if count == 1 and start is None else None)
            taken = _step(now, best.z)
        trace.append(float(best.value[0]))
        if taken is None and reach < 0.1:
            status = Status.STALLED
            break
        if taken is None:
            reach /= EASED
            continue
        point, solved_there, whole = taken
        reach = reach * EASED if whole else reach / EASED
        count += 1
        with during("linearisation", count, LINEARISATIONS):
            before, now = now, LinearisedField(data, field_map, point, solved_there)
        if whole and _moved(before, now) < STILL:
            status = Status.CONVERGED
            break
    with during("last linearisation"):
        last = find_modes(now.negative, now.point.z, optimiser)
    values = torch.tensor([*trace, float(last.value[0])], dtype=torch.float64)
    best = replace(last, trace=values.unsqueeze(-1))
    if best.status[0] != Status.DIVERGED and free_coefficients(field_map):
        with during("both sides of the coefficients"):
            now, best = _bent(now, best, optimiser)
    return Search(now, best, Status.DIVERGED if best.status[0] == Status.DIVERGED else status, count)


def _mode(now: LinearisedField, reach: float, seed: int, optimiser: OptimiserConfig, starts: Starts | None) -> Optimum:
    """The mode of the linear model, its coefficients held back."""
    held = torch.zeros(now.point.z.shape[1], dtype=torch.float64)
    held[_coefficients(now.model)] = 1.0 / reach

    def objective(z: Tensor, rows: Tensor) -> Tensor:
        return -now.log_joint(z, rows) + 0.5 * ((z - now.point.z[rows]) * held).square().sum(-1)

    if starts is not None:
        return best_of_starts(objective, [seed], len(held), optimiser, starts)
    return find_modes(objective, now.point.z, optimiser)


def _bent(now: LinearisedField, best: Optimum, optimiser: OptimiserConfig) -> tuple[LinearisedField, Optimum]:
    """The model with linearisations on both sides of its coefficients, and its mode, until that stays in the middle."""
    held = _coefficients(now.model)[: len(free_coefficients(now.map))]
    for _ in range(BENDS):
        covariance = _covariance(now, best.z)
        spread = covariance[held, held].sqrt()
        if now.sides is not None and bool(((best.z - now.point.z)[0, held].abs() <= CENTRED * spread).all()):
            break
        with torch.no_grad():
            centre = Point(best.z, now.whitened(best.z, torch.arange(1)).mean)
            sides = _sides(now, best.z, covariance, held)
            solved = solve_at(now.map, centre)
        if sides is None or not bool(solved.ok[0]):
            break
        bent = LinearisedField(now.observations, now.map, centre, solved, sides)
        modes = find_modes(bent.negative, centre.z, optimiser)
        if modes.status[0] == Status.DIVERGED:
            break
        now, best = bent, replace(modes, trace=torch.cat([best.trace, modes.value.unsqueeze(0)]))
    return now, best


def _covariance(now: LinearisedField, z: Tensor) -> Tensor:
    """Laplace's covariance [n, n] of the unknowns."""
    root = root_of_inverse(hessian(now.negative, z, torch.arange(1)))[0]
    return root @ root.mT


def _sides(now: LinearisedField, z: Tensor, covariance: Tensor, held: list[int]) -> Point | None:
    """Each coefficient up and down, kernel, noise and force as they go with it; None if none can be solved."""
    sides = []
    for i in held:
        for sign in (1.0, -1.0):
            step = sign * ASIDE * covariance[:, i] / covariance[i, i].sqrt()
            # The model between these points knows of one coefficient at a time.
            step[[j for j in held if j != i]] = 0.0
            for _ in range(HALVINGS):
                point = Point(z + step, now.whitened(z + step, torch.arange(1)).mean)
                if bool(solve_at(now.map, point).ok[0]):
                    sides.append(point)
                    break
                step = step / 2
            else:
                return None
    return Point(torch.cat([one.z for one in sides]), torch.cat([one.w for one in sides]))


@torch.no_grad()
def _step(now: LinearisedField, z: Tensor) -> tuple[Point, Solved, bool] | None:
    """As far towards the linear model's mode as the equation itself improves; whether that is the whole way."""
    rows = torch.arange(1)
    goal = Point(z, now.whitened(z, rows).mean)
    here = _merit(now, now.point, now.reached)
    share = 1.0
    for halving in range(HALVINGS):
        point = now.point.between(goal, share)
        solved = solve_at(now.map, point)
        if bool(solved.ok[0]) and _merit(now, point, shown_by(now.places, solved)) >= here - WORSE:
            return point, solved, halving == 0
        share /= 2
    return None


def _merit(now: LinearisedField, point: Point, outputs: Tensor) -> float:
    """Laplace's log marginal density at a point: data given its real outputs, priors, and the volume of w around it."""
    values, rows = now.model.space.unpack(point.z), torch.arange(1)
    noise, mask = noise_of(now.model, values, now.observations), now.observations.mask[:, 0]
    off = (now.observations.values[:, 0] - outputs).square() / noise + noise.log()
    fit = -0.5 * torch.where(mask, off, 0.0).sum(-1)
    volume = torch.diagonal(now.whitened(point.z, rows).factor, dim1=-2, dim2=-1).log().sum(-1)
    return float(fit - volume - 0.5 * point.w.square().sum(-1) - 0.5 * point.z.square().sum(-1))


def _moved(before: LinearisedField, now: LinearisedField) -> float:
    """How far the last step moved outputs, in units of the noise, or coefficients, in units of their priors."""
    noise = noise_of(now.model, now.model.space.unpack(now.point.z), now.observations).sqrt()
    outputs = torch.where(now.observations.mask[:, 0], (now.reached - before.reached).abs() / noise, 0.0)
    coefficients = (now.point.z - before.point.z)[:, _coefficients(now.model)].abs()
    return max(float(outputs.max()), float(coefficients.max()) if coefficients.numel() else 0.0)


def _coefficients(model: Model) -> list[int]:
    """Places in z of what the equation is linearised in."""
    names = [*model.field.coefficients, "initial_scale"]
    known = [parameter.name for parameter in model.space.parameters]
    parts = [model.space.slice_of(name) for name in names if name in known]
    return [i for part in parts for i in range(part.start, part.stop)]


def _nothing(z: Tensor) -> Optimum:
    worst = torch.full((1,), torch.inf, dtype=torch.float64)
    none = torch.zeros(1, dtype=torch.long)
    return Optimum(z, worst, none + int(Status.DIVERGED), none, 0, worst.unsqueeze(0))
