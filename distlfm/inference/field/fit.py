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
from distlfm.inference.base import Fit, Unknowns
from distlfm.inference.collapsed import CollapsedPosterior, Starts, best_of_starts
from distlfm.inference.curvature import find_modes
from distlfm.inference.field.marginal import FieldGaussian
from distlfm.inference.field.method import FieldMethod
from distlfm.inference.field.settings import FieldSettings, build_map, open_field, shown_points
from distlfm.inference.marginal import Marginal
from distlfm.inference.method import register_method
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.optimise import OptimiserConfig, Optimum
from distlfm.inference.posterior import PosteriorConfig, infer
from distlfm.inference.result import FitResult, results_of
from distlfm.instance import Instance
from distlfm.mechanisms.priors import Values
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


FAR, NEAR = 1.5, 0.4
"""How far samples are from the prior's middle, and from a mode, in units of the prior's deviation."""

LEVELLED = 2
"""How often the level that noise grows with is taken from the fit."""

MANY, FEW_DRAWS = 200, 32
"""With more whitened numbers than this, force and outputs are integrated over this many draws."""


class _Fitter:
    """Instances that need the same refinement go on together, so that none depends on its neighbours."""

    def __init__(
        self,
        model: Model,
        instances: Sequence[Instance],
        seeds: Sequence[int],
        optimiser: OptimiserConfig,
        posterior: PosteriorConfig,
        starts: Starts,
    ) -> None:
        self.model, self.instances, self.seeds = model, instances, seeds
        self.optimiser, self.posterior, self.starts = optimiser, posterior, starts
        self.observations = collate([instance.blind() for instance in instances], model.system.outputs)
        self.found: dict[int, FitResult] = {}

    def fit(self, rows: Tensor, settings: FieldSettings, start: Tensor | None, refinements: int) -> None:
        """Fit the instances `rows`, from `start` [A, n] if given."""
        began = time.perf_counter()
        stepped("mesh")
        full = build_map(self.model, settings)
        data = self.observations.rows(rows)
        marginal = FieldGaussian(self.model, data, full.reduced(_samples(self.model, None)), settings)
        best = _mode(marginal, [self.seeds[int(i)] for i in rows], self.optimiser, self.starts, start)
        if marginal.map.engine is not full.engine:
            marginal = FieldGaussian(self.model, data, full.reduced(_samples(self.model, best.z)), settings)
            best = _mode(marginal, [], self.optimiser, self.starts, best.z)
        for _ in range(LEVELLED if self.model.likelihood.options.relative is not None else 0):
            marginal = _levelled(marginal, best.z)
            best = _mode(marginal, [], self.optimiser, self.starts, best.z)
        needs = _unsettled(marginal, settings, best.z)
        stated = self.model.field.field.mesh.size is not None
        wanted = needs & ~Needs.MESH if stated else needs
        done = wanted == 0 if refinements else torch.ones_like(wanted, dtype=torch.bool)
        if bool(done.any()):
            kept = torch.nonzero(done).squeeze(-1)
            own = [self.instances[int(i)] for i in rows[kept]]
            fit = self._settled(marginal, best, kept, [self.seeds[int(i)] for i in rows[kept]])
            grids = shown_points(marginal.map, settings, len(own))
            results = results_of(fit, own, grids, time.perf_counter() - began)
            results = [warned(one, int(need)) for one, need in zip(results, needs[kept], strict=True)]
            self.found |= dict(zip(rows[kept].tolist(), results, strict=True))
        for need in torch.unique(wanted[~done]).tolist():
            group = ~done & (wanted == need)
            with during("refined"):
                self.fit(rows[group], refined(settings, need), best.z[group], refinements - 1)

    def _settled(self, marginal: FieldGaussian, best: Optimum, kept: Tensor, seeds: Sequence[int]) -> Fit:
        """The posterior of the instances `kept`, whose modes are found."""
        own = FieldGaussian(self.model, marginal.observations.rows(kept), marginal.map, marginal.settings)

        def objective(z: Tensor, rows: Tensor) -> Tensor:
            return -own.log_joint(z, rows)

        times, places = own.map.inducing.counts
        options = self.posterior
        if times * places > MANY:
            options = options.model_copy(update={"draws": min(options.draws, FEW_DRAWS)})
        found = infer(objective, best.z[kept], seeds, options)
        return Fit(
            posterior=CollapsedPosterior("collapsed", own, found.draws, Unknowns(found.proposals, found.weights)),
            bound=-best.value[kept],
            status=best.status[kept],
            iterations=best.iterations[kept],
            effective=found.effective,
            trace=-best.trace[:, kept],
        )


def _samples(model: Model, around: Tensor | None) -> Values:
    """Values at which to look for the shapes of solutions: the middle, and away from it along what shapes them.

    around: modes [B, n] to stay near to; None is the whole prior.
    """
    middle = torch.zeros(1, model.space.num_free, dtype=torch.float64) if around is None else around
    names = [name for name in model.space.free_names if _shapes_solutions(model, name)]
    found = [middle]
    for name in names:
        step = torch.zeros(model.space.num_free, dtype=torch.float64)
        step[model.space.free_names.index(name)] = FAR if around is None else NEAR
        found += [middle + step, middle - step]
    return model.space.unpack(torch.cat(found))


def _shapes_solutions(model: Model, name: str) -> bool:
    plain = name.split("[")[0]
    return model.space[plain].kind == "mechanism" or (plain.endswith("lengthscale") and not name.endswith("[t]"))


@torch.no_grad()
def _levelled(marginal: FieldGaussian, z: Tensor) -> FieldGaussian:
    """The same, with the noise growing with the fitted field in place of the noisy values."""
    level = marginal.fitted(z, torch.arange(len(z))).abs().unsqueeze(1)
    return FieldGaussian(marginal.model, replace(marginal.observations, level=level), marginal.map, marginal.settings)


def _mode(
    marginal: FieldGaussian, seeds: Sequence[int], optimiser: OptimiserConfig, starts: Starts, start: Tensor | None
) -> Optimum:
    def objective(z: Tensor, rows: Tensor) -> Tensor:
        return -marginal.log_joint(z, rows)

    if start is not None:
        return find_modes(objective, start, optimiser)
    return best_of_starts(objective, seeds, marginal.model.space.num_free, optimiser, starts)


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
        other = FieldGaussian(model, data, finer).fitted(z, rows)
        return torch.where(data.mask[:, 0], (other - fitted).abs() / noise, 0.0).amax(-1) > MOVED

    needs = int(Needs.POINTS) * (marginal.lost_share(z, rows) > LOST).long()
    needs += int(Needs.STEPS) * moves(settings.finer_steps()).long()
    halved = settings.finer_mesh()
    if halved is not None:
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
        starts = Starts(options.restarts, options.random_start)
        fitter = _Fitter(model, instances, seeds, options.optimiser, options.posterior, starts)
        fitter.fit(torch.arange(len(instances)), options.settled, None, options.field.refinements)
        return [fitter.found[i] for i in range(len(instances))]

    @classmethod
    def marginal(
        cls, model: Model, observations: Observations, settings: FieldSettings, state: dict[str, Tensor]
    ) -> Marginal:
        if "level" in state:
            observations = replace(observations, level=state["level"][..., : observations.times.shape[1]])
        return FieldGaussian(model, observations, build_map(model, settings), settings)
