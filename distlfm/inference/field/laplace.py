"""Fit fields of nonlinear equations by linearising again and again: Gauss–Newton in function space.

Around a trajectory the outputs are linear in force, initial state and coefficients, and the force is integrated out as
in a linear field. The mode of that model's unknowns, with the force's mean given them, is where the equation is solved
and linearised next. When the outputs stay, the model around the last point is the answer: a Laplace approximation,
whose intervals hold as far as the equation is nearly linear in the force within them. Unknown coefficients are followed
further, by linearisations on both sides of them (`linear.py`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.inference.collapsed import Starts, fit_at
from distlfm.inference.field.fit import LOST, MOVED, Needs, refined, warned
from distlfm.inference.field.linearised import LinearisedField, Point, gradient_bytes, shown_by, solve_at
from distlfm.inference.field.map import FieldMap
from distlfm.inference.field.method import FieldMethod
from distlfm.inference.field.search import Search, find_point
from distlfm.inference.field.settings import FieldSettings, build_map, shown_points
from distlfm.inference.field.slopes import match_slopes
from distlfm.inference.marginal import Marginal
from distlfm.inference.method import register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.optimise import OptimiserConfig, Status
from distlfm.inference.posterior import PosteriorConfig
from distlfm.inference.result import FitResult, results_of
from distlfm.inference.whitened import noise_of
from distlfm.instance import Instance
from distlfm.runtime.reporting import during, stepped

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

RIDGE = 1e-8
"""Keeps numbers that no inducing point determines at zero when a force is carried over."""

QUICK = OptimiserConfig(iterations=40, rounds=1, gradient=1e-2, change=1e-4, distance=0.3)
"""A start need not be exact."""

ADVICE = (
    "The equation could not be solved where the fit begins: take smaller time steps (mechanism.step), or narrower "
    "priors of the coefficients and of the initial state."
)


@register_method("laplace")
class Laplace(FieldMethod):
    """One field after the other, each linearised at its mode."""

    def fit(
        self, model: Model, instances: Sequence[Instance], options: InferenceConfig, seeds: Sequence[int]
    ) -> list[FitResult]:
        results = []
        for number, (instance, seed) in enumerate(zip(instances, seeds, strict=True), 1):
            with during("instance", number, len(instances)):
                results.append(_fit_one(model, instance, seed, options))
        return results

    @classmethod
    def marginal(cls, observations: Observations, field_map: FieldMap, state: dict[str, Tensor]) -> Marginal:
        sides = Point(state["sides_z"][0], state["sides_w"][0]) if "sides_z" in state else None
        point = Point(state["point_z"], state["point_w"])
        return LinearisedField(observations, field_map, point, sides=sides)


def _fit_one(model: Model, instance: Instance, seed: int, options: InferenceConfig) -> FitResult:
    """Fit one instance, refined until its answer no longer changes."""
    began, settings = time.perf_counter(), options.settled
    assert settings is not None
    data = collate([instance.blind()], model.system.outputs)
    stepped("mesh")
    field_map = build_map(model, settings)
    _check_memory(field_map, data)
    start, starts = None, Starts(options.restarts, options.random_start)
    # The search begins where slopes of a surface match best, unless that is not wanted.
    if options.preestimate.enabled:
        with during("matching slopes"):
            start = match_slopes(data, field_map, seed, QUICK, starts).point()
    search = find_point(data, field_map, start, seed, options.optimiser, starts)
    stated = Needs.MESH if model.field.field.mesh.size is not None else Needs(0)
    refinements = options.field.refinements
    while (needs := _needs(search, settings)) & ~stated and refinements:
        refinements -= 1
        finer = refined(settings, needs & ~stated)
        finer_map = build_map(model, finer)
        if gradient_bytes(finer_map, data) > memory_bytes():
            break
        settings, field_map = finer, finer_map
        start = carried(search.marginal.map, search.marginal.point, field_map)
        with during("refined"):
            search = find_point(data, field_map, start, seed, options.optimiser, starts)
    lost = search.status == Status.DIVERGED
    status, count = torch.tensor([int(search.status)]), torch.tensor([search.linearisations])
    posterior = PosteriorConfig(method="point") if lost else options.posterior
    best = replace(search.best, status=status, iterations=count)
    fit = fit_at(Laplace.name, search.marginal, best, [seed], posterior)
    (result,) = results_of(fit, [instance], shown_points(field_map, settings, 1), time.perf_counter() - began)
    return replace(result, advice=ADVICE) if lost else warned(result, needs)


def memory_bytes() -> int:
    """This machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _check_memory(field_map: FieldMap, data: Observations) -> None:
    needed, there = gradient_bytes(field_map, data), memory_bytes()
    if needed > there:
        points, steps, nodes = data.times.shape[1], field_map.grid.steps, len(field_map.nodes)
        raise UsageError(
            f"To linearise {points} observations of a field with {nodes} nodes and {steps} steps takes about "
            f"{needed / 1e9:.1f} GB, and this machine has {there / 1e9:.1f}.",
            "Take larger cells (mechanism.mesh.size), longer steps (mechanism.step), or a part of the data "
            "(data.fraction).",
        )


@torch.no_grad()
def _needs(search: Search, settings: FieldSettings) -> Needs:
    """Whatever moves an output by a good part of the noise if refined."""
    own = search.marginal
    if search.status == Status.DIVERGED:
        return Needs(0)
    noise = noise_of(own.model, own.model.space.unpack(own.point.z), own.observations).sqrt()

    def moves(finer: FieldSettings | None) -> bool:
        if finer is None:
            return False
        stepped("check of steps and mesh")
        other = build_map(own.model, finer)
        solved = solve_at(other, carried(own.map, own.point, other))
        away = (shown_by(other.places(own.observations.points), solved) - own.reached).abs() / noise
        return bool(torch.where(own.observations.mask[:, 0], away, 0.0).max() > MOVED)

    needs = Needs(0)
    if bool((own.lost_share(own.point.z, torch.arange(1)) > LOST).any()):
        needs |= Needs.POINTS
    if moves(settings.finer_steps()):
        needs |= Needs.STEPS
    return needs | Needs.MESH if moves(settings.finer_mesh()) else needs


@torch.no_grad()
def carried(old: FieldMap, point: Point, new: FieldMap) -> Point:
    """The same force on other inducing points: that which agrees with it there."""
    if torch.equal(old.inducing.times, new.inducing.times) and torch.equal(old.inducing.places, new.inducing.places):
        return point
    values = old.model.space.unpack(point.z)
    where = new.joint_inducing()
    force = old.force_columns(values, where)[0] @ point.w.unsqueeze(-1)
    columns = new.force_columns(values, where)[0]
    ridge = RIDGE * columns.square().sum((-2, -1)) / columns.shape[-1]
    precision = columns.mT @ columns + ridge * torch.eye(columns.shape[-1], dtype=columns.dtype)
    return Point(point.z, torch.linalg.solve(precision, columns.mT @ force).squeeze(-1))
