"""Fit fields: all instances of a batch on one mesh, each refined until its own answer no longer changes.

A field's answer may depend on steps, inducing points and mesh besides the data; the first part says how these are
refined.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from enum import IntFlag
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.inference.base import Fit
from distlfm.inference.collapsed import Starts, best_of_starts, fit_at
from distlfm.inference.curvature import find_modes
from distlfm.inference.field.map import FieldMap, samples
from distlfm.inference.field.marginal import FieldGaussian
from distlfm.inference.field.method import FieldMethod
from distlfm.inference.field.settings import FieldSettings, build_map, open_field, shown_points
from distlfm.inference.marginal import Marginal
from distlfm.inference.method import register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.optimise import Optimum
from distlfm.inference.result import FitResult, results_of
from distlfm.instance import Instance
from distlfm.runtime.reporting import during, stepped
from distlfm.solvers.field.meshed import Meshed

if TYPE_CHECKING:
    from distlfm.inference.fit import InferenceConfig

LOST = 0.05
"""Variance that the inducing points may leave open at a point, in units of the noise variance."""

MOVED = 0.25
"""How far halving steps or cells may move an output, in units of the noise's deviation."""


class Needs(IntFlag):
    """What an instance's answer still depends on."""

    STEPS = 1
    POINTS = 2
    MESH = 4


_ADVICE = {
    Needs.STEPS: "shorter time steps (mechanism.step)",
    Needs.POINTS: "more inducing points (inference.field)",
    Needs.MESH: "a finer mesh (mechanism.mesh.size)",
}


def refined(settings: FieldSettings, need: int) -> FieldSettings:
    """Settings with what is needed made finer."""
    if need & Needs.STEPS:
        settings = settings.finer_steps()
    if need & Needs.POINTS:
        settings = settings.more_points()
    return (settings.finer_mesh() or settings) if need & Needs.MESH else settings


def warned(result: FitResult, need: int) -> FitResult:
    """The result, with a word on what would still change it."""
    if not need:
        return result
    finer = [text for flag, text in _ADVICE.items() if need & flag]
    advice = f"Discretisation is not below the noise: {', '.join(finer)} would move an output noticeably."
    return replace(result, advice=" ".join(filter(None, (result.advice, advice))))


LEVELLED = 2
"""How often the level that noise grows with is taken from the fit."""

MANY, FEW_DRAWS = 200, 32
"""With more whitened numbers than this, force and outputs are integrated over this many draws."""


class _Fitter:
    """Instances that need the same refinement go on together, so that none depends on its neighbours."""

    def __init__(
        self, model: Model, instances: Sequence[Instance], seeds: Sequence[int], options: InferenceConfig
    ) -> None:
        self.model, self.instances, self.seeds, self.options = model, instances, seeds, options
        self.observations = collate([instance.blind() for instance in instances], model.system.outputs)
        self.found: dict[int, FitResult] = {}

    def fit(self, rows: Tensor, settings: FieldSettings, start: Tensor | None, refinements: int) -> None:
        """Fit the instances `rows`, from `start` [A, n] if given."""
        began = time.perf_counter()
        stepped("mesh")
        full = build_map(self.model, settings)
        data = self.observations.rows(rows)
        shaping = [name for name in self.model.space.free_names if _shapes_solutions(self.model, name)]
        marginal = FieldGaussian(data, full.reduced(samples(self.model, shaping)))
        best = self._first_mode(marginal, rows) if start is None else self._mode(marginal, start)
        if marginal.map.engine is not full.engine:
            marginal = FieldGaussian(data, full.reduced(samples(self.model, shaping, best.z)))
            best = self._mode(marginal, best.z)
        for _ in range(LEVELLED if self.model.likelihood.takes_level else 0):
            marginal = _levelled(marginal, best.z)
            best = self._mode(marginal, best.z)
        needs = _unsettled(marginal, settings, best.z)
        stated = self.model.field.field.mesh.size is not None
        wanted = needs & ~Needs.MESH if stated else needs
        done = wanted == 0 if refinements else torch.ones_like(wanted, dtype=torch.bool)
        if bool(done.any()):
            kept = torch.nonzero(done).squeeze(-1)
            own = [self.instances[int(i)] for i in rows[kept]]
            fit = self._settled(marginal, best, kept, self._seeds(rows[kept]))
            grids = shown_points(marginal.map, settings, len(own))
            results = results_of(fit, own, grids, time.perf_counter() - began)
            results = [warned(one, int(need)) for one, need in zip(results, needs[kept], strict=True)]
            self.found |= dict(zip(rows[kept].tolist(), results, strict=True))
        for need in torch.unique(wanted[~done]).tolist():
            group = ~done & (wanted == need)
            with during("refined"):
                self.fit(rows[group], refined(settings, need), best.z[group], refinements - 1)

    def _seeds(self, rows: Tensor) -> list[int]:
        return [self.seeds[int(i)] for i in rows]

    def _first_mode(self, marginal: FieldGaussian, rows: Tensor) -> Optimum:
        options, size = self.options, self.model.space.num_free
        starts = Starts(options.restarts, options.random_start)
        return best_of_starts(marginal.negative, self._seeds(rows), size, options.optimiser, starts)

    def _mode(self, marginal: FieldGaussian, start: Tensor) -> Optimum:
        return find_modes(marginal.negative, start, self.options.optimiser)

    def _settled(self, marginal: FieldGaussian, best: Optimum, kept: Tensor, seeds: Sequence[int]) -> Fit:
        """The posterior of the instances `kept`, whose modes are found."""
        own = FieldGaussian(marginal.observations.rows(kept), marginal.map)
        by_row = {name: getattr(best, name)[kept] for name in ("z", "value", "status", "iterations")}
        times, places = own.map.inducing.counts
        options = self.options.posterior
        if times * places > MANY:
            options = options.model_copy(update={"draws": min(options.draws, FEW_DRAWS)})
        return fit_at("collapsed", own, replace(best, **by_row, trace=best.trace[:, kept]), seeds, options)


def _shapes_solutions(model: Model, name: str) -> bool:
    """Whether solutions take other shapes as this unknown changes."""
    plain = name.split("[")[0]
    return model.space[plain].kind == "mechanism" or (plain.endswith("lengthscale") and not name.endswith("[t]"))


@torch.no_grad()
def _levelled(marginal: FieldGaussian, z: Tensor) -> FieldGaussian:
    """The same, with the noise growing with the fitted field in place of the noisy values."""
    level = marginal.fitted(z, torch.arange(len(z))).abs().unsqueeze(1)
    return FieldGaussian(replace(marginal.observations, level=level), marginal.map)


@torch.no_grad()
def _unsettled(marginal: FieldGaussian, settings: FieldSettings, z: Tensor) -> Tensor:
    """What each instance needs [B], as `Needs`: whatever moves an output by a good part of the noise if refined."""
    rows = torch.arange(len(z))
    model, data = marginal.model, marginal.observations
    noise = model.noise_variance(model.space.unpack(z), data)[:, 0].sqrt()
    fitted = marginal.fitted(z, rows)

    def moves(settings: FieldSettings) -> Tensor:
        stepped("check of steps and mesh")
        finer = build_map(model, settings, marginal.map.both_ways)
        other = FieldGaussian(data, finer).fitted(z, rows)
        return torch.where(data.mask[:, 0], (other - fitted).abs() / noise, 0.0).amax(-1) > MOVED

    needs = int(Needs.POINTS) * (marginal.lost_share(z, rows) > LOST).long()
    needs += int(Needs.STEPS) * moves(settings.finer_steps()).long()
    if (halved := settings.finer_mesh()) is not None:
        needs += int(Needs.MESH) * moves(halved).long()
    return needs


def is_recorded(discretised: Meshed) -> bool:
    """Whether a field is known by recorded trajectories alone, and not as linear in the force."""
    return not discretised.affine or discretised.kind == "taped"


@register_method("collapsed")
class CollapsedFields(FieldMethod):
    """The force integrated out; fields whose answer still moves are fitted again, more finely."""

    def fit(
        self, model: Model, instances: Sequence[Instance], options: InferenceConfig, seeds: Sequence[int]
    ) -> list[FitResult]:
        assert options.settled is not None
        discretised = open_field(model, options.settled)
        if is_recorded(discretised):
            why = discretised.reason or "its solver is 'taped', which knows no part that is linear in the force."
            raise UsageError(
                f"The method 'collapsed' needs an equation that is linear, and this one is not known to be: {why}",
                "Use inference.method=laplace, or auto.",
            )
        fitter = _Fitter(model, instances, seeds, options)
        fitter.fit(torch.arange(len(instances)), options.settled, None, options.field.refinements)
        return [fitter.found[i] for i in range(len(instances))]

    @classmethod
    def marginal(cls, observations: Observations, field_map: FieldMap, state: dict[str, Tensor]) -> Marginal:
        if "level" in state:
            observations = replace(observations, level=state["level"][..., : observations.times.shape[1]])
        return FieldGaussian(observations, field_map)
