"""Fit a batch of instances with the method that suits the mechanism."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.inference.base import Fit
from distlfm.inference.collapsed import Starts, fit_collapsed
from distlfm.inference.exact import AnalyticMotif
from distlfm.inference.forward import Forward
from distlfm.inference.linear import LinearGaussian, choose_quadrature
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.optimise import OptimiserConfig
from distlfm.inference.posterior import PosteriorConfig
from distlfm.inference.preestimate import PreestimateConfig, fit_preestimate, matched_start
from distlfm.inference.result import FitResult, results_of
from distlfm.inference.variational import VariationalConfig, fit_variational
from distlfm.instance import Instance
from distlfm.solvers.linear import probe

GRID_POINTS = 100


class InferenceConfig(Config):
    """How a fit is done.

    method: `auto` probes the mechanism and takes `collapsed` where it is linear and `variational` elsewhere;
    `exact` is the analytic covariance of the single-input motif; `preestimate` is quick, and solves no equation.
    restarts: starts of the optimiser, of which the best by the bound is kept; the first is the prior's middle, unless
    `random_start`.
    until: force and outputs are predicted up to this time; by default to the last observation.
    """

    method: Literal["auto", "collapsed", "exact", "variational", "preestimate"] = "auto"
    restarts: int = Field(default=1, ge=1)
    random_start: bool = False
    optimiser: OptimiserConfig = OptimiserConfig()
    posterior: PosteriorConfig = PosteriorConfig()
    preestimate: PreestimateConfig = PreestimateConfig()
    variational: VariationalConfig = VariationalConfig()
    grid_points: int = GRID_POINTS
    until: float | None = None


def seed_of(seed: int, instance: str) -> int:
    """An instance's own seed: the same whatever its neighbours and its place."""
    digest = hashlib.sha256(f"{seed}:{instance}".encode()).digest()
    return int.from_bytes(digest[:7], "big")


def fit_instances(
    model: Model, instances: Sequence[Instance], options: InferenceConfig, seed: int = 0
) -> list[FitResult]:
    """Fit instances in one batch. The truth that an instance may carry is not looked at."""
    start = time.perf_counter()
    observations = collate([instance.blind() for instance in instances], model.mechanism.outputs)
    seeds = [seed_of(seed, instance.id) for instance in instances]
    fit = _fit(model, observations, seeds, options)
    seconds = time.perf_counter() - start
    return results_of(fit, instances, _grids(observations, options), seconds)


def _fit(model: Model, observations: Observations, seeds: list[int], options: InferenceConfig) -> Fit:
    linearity = probe(model.mechanism, model.space)
    linear = linearity.affine and model.likelihood.kind == "gaussian"
    method = options.method
    starts = Starts(options.restarts, options.random_start)
    if method == "auto":
        method = "collapsed" if linear else "variational"
    if method in ("variational", "preestimate"):
        forward = Forward(model, observations, options.variational.solver, options.variational.num_inducing)
        if method == "preestimate":
            return fit_preestimate(forward, seeds, options.optimiser, options.preestimate, starts)
        start = matched_start(forward, seeds, options.preestimate, starts) if options.preestimate.enabled else None
        return fit_variational(forward, seeds, options.optimiser, options.variational, starts, start)
    if method == "collapsed" and not linear:
        raise UsageError(
            "The method 'collapsed' needs a linear mechanism with Gaussian noise, and "
            f"{model.mechanism.options.kind!r} with the likelihood {model.likelihood.kind!r} is none.",
            "Use inference.method=variational, or auto.",
        )
    if method == "exact":
        marginal: AnalyticMotif | LinearGaussian = AnalyticMotif(model, observations)
    else:
        quadrature = choose_quadrature(model, observations, linearity)
        marginal = LinearGaussian(model, observations, linearity, quadrature)
    return fit_collapsed(method, marginal, seeds, options.optimiser, options.posterior, starts)


def _grids(observations: Observations, options: InferenceConfig) -> Tensor:
    """Evenly spaced times [B, Q] from each instance's first observation to its last, or to `until`."""
    first, last = observations.times[:, :1], observations.times[:, -1:]
    if options.until is not None:
        last = torch.maximum(last, torch.full_like(last, options.until))
    return first + (last - first) * torch.linspace(0, 1, options.grid_points, dtype=first.dtype)
