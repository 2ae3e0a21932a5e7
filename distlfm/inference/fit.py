"""Fit a batch of instances with the method that suits the mechanism.

Methods that do not suit the model, and options without effect, are refused before anything is computed. All of it
follows from the model and the options alone, so a config is refused when it is read, and a model made in Python when it
is fitted.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.inference.base import Fit
from distlfm.inference.collapsed import Starts, fit_collapsed
from distlfm.inference.field.fit import fit_linear_fields
from distlfm.inference.field.laplace import fit_nonlinear_fields
from distlfm.inference.field.settings import FieldOptions, FieldSettings, open_field, settle
from distlfm.inference.field.slopes import fit_field_slopes
from distlfm.inference.marginal import Marginal
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.optimise import OptimiserConfig
from distlfm.inference.posterior import PosteriorConfig
from distlfm.inference.result import FitResult, results_of
from distlfm.inference.series.evidence import FOUND, best_matched_mode
from distlfm.inference.series.exact import AnalyticMotif, check_motif
from distlfm.inference.series.forward import Forward
from distlfm.inference.series.linear import MAX_NODES, MAX_SUBSTEPS, LinearGaussian, Quadrature, choose_quadrature
from distlfm.inference.series.nested import fit_nested
from distlfm.inference.series.preestimate import PreestimateConfig, fit_preestimate
from distlfm.inference.series.statespace import LONG, StateSpace, supports
from distlfm.inference.series.variational import VariationalConfig, fit_variational
from distlfm.instance import Instance
from distlfm.solvers.linear import Linearity, probe

FIELD_METHODS = ("auto", "collapsed", "laplace", "preestimate")
LINEAR_METHODS = ("collapsed", "filter", "exact")


def check_inference(model: Model, options: InferenceConfig) -> None:
    """Refuse a method that cannot fit this model, and options that would change nothing."""
    if model.is_field:
        _check_field(model, options)
    else:
        _check_linear(model, options)


def _check_linear(model: Model, options: InferenceConfig) -> None:
    """Methods that take the force as one linear map of the outputs."""
    method = options.method
    if method not in LINEAR_METHODS:
        return
    linearity = probe(model.mechanism, model.space)
    if not (linearity.affine and model.likelihood.gaussian):
        raise UsageError(
            f"The method {method!r} needs a linear mechanism with Gaussian noise, and "
            f"{model.mechanism.options.kind!r} with the likelihood {model.likelihood.options.kind!r} is none.",
            "Use inference.method=nested, or auto.",
        )
    if method == "exact":
        check_motif(model)
    if method == "filter" and not supports(model, linearity):
        raise UsageError(
            "The method 'filter' needs a stable mechanism and a kernel matern12, matern32 or matern52.",
            "Use inference.method=collapsed, which takes any kernel.",
        )


def _check_field(model: Model, options: InferenceConfig) -> None:
    if options.method not in FIELD_METHODS:
        raise UsageError(
            f"Fields are not fitted by the method {options.method!r}.",
            f"Use one of {', '.join(FIELD_METHODS)} in inference.method.",
        )
    for name in ("until", "grid_points"):
        if getattr(options, name) != type(options).model_fields[name].default:
            raise UsageError(
                f"inference.{name} has no effect on a field.", "Leave it out, and ask the result for any points."
            )
    _check_preestimate(options)
    if not model.likelihood.gaussian:
        raise UsageError(
            f"Fields are fitted with Gaussian noise, and the likelihood is {model.likelihood.options.kind!r}.",
            "Set likelihood.kind=gaussian.",
        )


def _check_preestimate(options: InferenceConfig) -> None:
    """Refuse what only curves in time have: slopes of a field are those of a Gaussian process over time and space."""
    for name, field in PreestimateConfig.model_fields.items():
        if name != "enabled" and getattr(options.preestimate, name) != field.default:
            raise UsageError(
                f"inference.preestimate.{name} has no effect on a field, whose surface is always a Gaussian process.",
                "Leave it out.",
            )
    if options.method == "preestimate" and options.posterior != PosteriorConfig():
        raise UsageError(
            "inference.posterior has no effect on a field's matched slopes, whose draws are always Laplace's.",
            "Leave it out, or use inference.method=auto.",
        )


GRID_POINTS = 100
COARSE = (
    f"Between two observations the force may change faster than {MAX_SUBSTEPS} panels of the quadrature follow: the "
    "answer is rough. Use a longer lengthscale in force.priors, or inference.method=nested."
)
Method = Literal["auto", "collapsed", "filter", "exact", "nested", "variational", "preestimate", "laplace"]


class InferenceConfig(Config):
    """How a fit is done.

    method: `auto` probes the mechanism and takes `collapsed` where it is linear (`filter` for long series with a Matérn
    kernel) and `nested` elsewhere, which goes through the solver with the force summed out; `variational` improves one
    Gaussian of force and parameters instead; `exact` is the analytic covariance of the single-input motif;
    `preestimate` is quick, and solves no equation. Solver, inducing points and features of `nested` are set in
    `variational`. Fields of a linear equation are `collapsed` too; those of others are linearised at
    their mode, which is `laplace`.
    restarts: starts of the optimiser, of which the best by the joint density is kept; the first is the prior's middle,
    unless `random_start`.
    field: of partial differential equations; `settled` is what a fleet's instances share, and is filled in.
    until: force and outputs are predicted up to this time; by default to the last observation.
    """

    method: Method = "auto"
    restarts: int = Field(default=1, ge=1)
    random_start: bool = False
    optimiser: OptimiserConfig = OptimiserConfig()
    posterior: PosteriorConfig = PosteriorConfig()
    preestimate: PreestimateConfig = PreestimateConfig()
    variational: VariationalConfig = VariationalConfig()
    field: FieldOptions = FieldOptions()
    settled: FieldSettings | None = None
    grid_points: int = Field(default=GRID_POINTS, ge=2)
    until: float | None = None

    @model_validator(mode="after")
    def _used(self) -> InferenceConfig:
        if self.method == "variational" and self.posterior != PosteriorConfig():
            raise ValueError(
                "posterior has no effect with method variational, whose draws are set in its own section; "
                "leave it out, or use method nested"
            )
        if self.method != "variational" and self.variational.learn_inducing:
            raise ValueError("variational.learn_inducing needs method variational; set it, or leave the other out")
        return self


def seed_of(seed: int, instance: str) -> int:
    """An instance's own seed: the same whatever its neighbours and its place."""
    digest = hashlib.sha256(f"{seed}:{instance}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def fit_instances(
    model: Model, instances: Sequence[Instance], options: InferenceConfig, seed: int = 0
) -> list[FitResult]:
    """Fit instances in one batch. The truth that an instance may carry is not looked at.

    Each instance gets the method that suits it, so that its answer does not depend on its neighbours.
    """
    check_inference(model, options)
    if model.is_field:
        return _fit_fields(model, instances, options, seed)
    for instance in instances:
        model.likelihood.check(instance)
    linearity = probe(model.mechanism, model.space)
    ways = _ways(model, instances, linearity, options)
    results: dict[int, FitResult] = {}
    for way in dict.fromkeys(ways):
        places = [i for i, one in enumerate(ways) if one == way]
        group = [instances[i] for i in places]
        start = time.perf_counter()
        observations = collate([instance.blind() for instance in group], model.mechanism.outputs)
        seeds = [seed_of(seed, instance.id) for instance in group]
        fit = _fit(model, observations, linearity, way, seeds, options)
        seconds = time.perf_counter() - start
        results |= dict(zip(places, results_of(fit, group, _grids(observations, options), seconds), strict=True))
    return [results[i] for i in range(len(instances))]


def _fit_fields(model: Model, instances: Sequence[Instance], options: InferenceConfig, seed: int) -> list[FitResult]:
    """Fields: linear ones with the force integrated out, others linearised; or slopes matched, and nothing solved."""
    settings = options.settled or settle(model, instances, options.field)
    seeds = [seed_of(seed, instance.id) for instance in instances]
    starts = Starts(options.restarts, options.random_start)
    discretised = open_field(model, settings)
    how = (options.optimiser, options.posterior)
    if options.method == "preestimate":
        return fit_field_slopes(model, instances, settings, seeds, options.optimiser, starts)
    recorded = not discretised.affine or discretised.kind == "taped"
    if options.method == "collapsed" and recorded:
        why = discretised.reason or "its solver is 'taped', which knows no part that is linear in the force."
        raise UsageError(
            f"The method 'collapsed' needs an equation that is linear, and this one is not known to be: {why}",
            "Use inference.method=laplace, or auto.",
        )
    if options.method == "laplace" or recorded:
        return fit_nonlinear_fields(
            model, instances, settings, seeds, *how, options.field, starts, matched=options.preestimate.enabled
        )
    return fit_linear_fields(model, instances, settings, seeds, *how, options.field, starts)


Way = tuple[Method, Quadrature | None]


def _ways(model: Model, instances: Sequence[Instance], linearity: Linearity, options: InferenceConfig) -> list[Way]:
    """Method and quadrature of each instance, from its own times alone."""
    known: dict[bytes, Way] = {}
    ways = []
    for instance in instances:
        key = instance.times.tobytes()
        if key not in known:
            method = _settle(model, len(instance.times), linearity, options)
            quadrature = None
            if method == "collapsed" and linearity.affine and model.likelihood.gaussian:
                alone = collate([instance.blind()], model.mechanism.outputs)
                quadrature = choose_quadrature(model, alone, linearity)
                _check_nodes(instance, quadrature)
            known[key] = (method, quadrature)
        ways.append(known[key])
    return ways


def _check_nodes(instance: Instance, quadrature: Quadrature) -> None:
    """Refuse what dense matrices would take hours and the whole memory for."""
    nodes = quadrature.num_nodes(len(instance.times))
    if nodes <= MAX_NODES:
        return
    raise UsageError(
        f"Instance {instance.id!r} has {len(instance.times)} times, and to follow the force between them takes {nodes} "
        f"nodes; dense matrices are for {MAX_NODES} at most.",
        "Use force.kernel.kind=matern52, for which there is a filter; or set force.priors.lengthscale in the unit of "
        "the times.",
    )


def _fit(
    model: Model,
    observations: Observations,
    linearity: Linearity,
    way: Way,
    seeds: list[int],
    options: InferenceConfig,
) -> Fit:
    method, quadrature = way
    starts = Starts(options.restarts, options.random_start)
    if method in ("nested", "variational", "preestimate"):
        forward = Forward(model, observations, options.variational.solver, options.variational.num_inducing)
        if method == "preestimate":
            return fit_preestimate(forward, seeds, options.optimiser, options.preestimate, starts)
        if method == "nested":
            features = options.variational.features
            return fit_nested(forward, seeds, options.posterior, features, options.preestimate, starts)
        if options.preestimate.enabled:
            mode = best_matched_mode(forward, seeds, options.optimiser, options.preestimate, starts)
            if mode is not None:
                found = fit_variational(forward, seeds, FOUND, options.variational, starts, mode.z)
                return replace(found, status=torch.maximum(found.status, mode.status), iterations=mode.iterations)
        return fit_variational(forward, seeds, options.optimiser, options.variational, starts)
    if method == "exact":
        marginal: Marginal = AnalyticMotif(model, observations)
    elif method == "filter":
        marginal = StateSpace(model, observations)
    else:
        assert quadrature is not None
        marginal = LinearGaussian(model, observations, linearity, quadrature)
    fit = fit_collapsed(method, marginal, seeds, options.optimiser, options.posterior, starts)
    if quadrature is not None and quadrature.substeps >= MAX_SUBSTEPS:
        return replace(fit, notices=(COARSE,) * len(seeds))
    return fit


def _settle(model: Model, num_times: int, linearity: Linearity, options: InferenceConfig) -> Method:
    """The method, where it is left open: dense matrices for short series, a filter for long ones if there is one."""
    if options.method != "auto":
        return options.method
    if not linearity.affine or not model.likelihood.gaussian:
        return "nested"
    return "filter" if num_times >= LONG and supports(model, linearity) else "collapsed"


def instance_bytes(model: Model, num_times: int, options: InferenceConfig) -> int:
    """About how much memory the fit of one instance takes, from which a batch's size follows."""
    if model.is_field:
        return 8 * 400 * num_times * 100
    num_observed = num_times * len(model.mechanism.outputs)
    method = _settle(model, num_times, probe(model.mechanism, model.space), options)
    if method == "filter":
        return 8 * 60 * num_times * (3 + model.mechanism.num_states) ** 2 * options.restarts
    if method in ("collapsed", "exact"):
        nodes = 4 * num_times
        return 8 * 8 * (num_observed**2 + nodes**2 + nodes * num_observed) * options.restarts
    steps = max(32, 4 * num_times)
    return 8 * 40 * steps * options.variational.samples * (model.mechanism.num_states + 40) * options.restarts


def _grids(observations: Observations, options: InferenceConfig) -> Tensor:
    """Evenly spaced times [B, Q] from each instance's first observation to its last, or to `until`."""
    first, last = observations.times[:, :1], observations.times[:, -1:]
    if options.until is not None:
        last = torch.maximum(last, torch.full_like(last, options.until))
    return first + (last - first) * torch.linspace(0, 1, options.grid_points, dtype=first.dtype)
