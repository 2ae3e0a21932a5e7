"""Choices that a fit leaves to its user: any kernel, inducing points that move."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gpytorch.kernels import RQKernel

from benchmarks.evidence import best_matched_mode
from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.inference.archive import load_fit, save_fit
from distlfm.inference.collapsed import Starts
from distlfm.inference.findings.scores import figures
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import Model
from distlfm.inference.observations import collate
from distlfm.inference.optimise import OptimiserConfig
from distlfm.inference.series.forward import Forward
from distlfm.inference.series.preestimate import PreestimateConfig
from distlfm.instance import Instance
from distlfm.mechanisms import build_mechanism
from distlfm.runs.settings import SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.solvers.base import SolverConfig
from distlfm.verbs.demo import MODEL

NAMES = ["output_0", "output_1"]


def instances_and_config(**mechanism: object) -> tuple[list[Instance], SimulateConfig]:
    content = {**MODEL, "mechanism": {**MODEL["mechanism"], **mechanism}, "instances": 1, "num_outputs": 2}
    config = build(SimulateConfig, content)
    return simulate_from(config), config


def test_any_gpytorch_kernel_can_be_the_forces_prior(tmp_path: Path) -> None:
    instances, config = instances_and_config()
    mechanism = build_mechanism(config.mechanism, NAMES)
    model = Model(mechanism, config.force, config.likelihood, kernel=RQKernel())
    assert "force.alpha" in [parameter.name for parameter in model.space.parameters]
    (result,) = fit_instances(model, instances, InferenceConfig())
    assert result.method == "collapsed"
    assert figures(result)["latent_q2"] > 0.8
    with pytest.raises(UsageError, match="RQKernel cannot be saved"):
        save_fit(result, tmp_path / "fit.npz")


def learning(content: dict[str, Any], learn: bool) -> InferenceConfig:
    return build(InferenceConfig, {"method": "variational", "variational": {**content, "learn_inducing": learn}})


@pytest.mark.slow
def test_learned_inducing_points_move_within_their_reach_and_are_kept(tmp_path: Path) -> None:
    instances, config = instances_and_config(response={"kind": "softplus"})
    model = Model(build_mechanism(config.mechanism, NAMES), config.force, config.likelihood)
    content = {"num_inducing": 8, "iterations": 12, "samples": 4, "draws": 8}
    still, moved = (fit_instances(model, instances, learning(content, learn))[0] for learn in (False, True))
    before, after = still.posterior.forward.inducing, moved.posterior.forward.inducing
    assert not torch.equal(before, after)
    domain = moved.posterior.forward.domain
    gap = float((domain.upper - domain.lower) / 7)
    assert float((after - before).abs().max()) <= 0.4 * gap
    save_fit(moved, tmp_path / "fit.npz")
    times = [2.0, 7.0]
    np.testing.assert_allclose(
        load_fit(tmp_path / "fit.npz").predict(times).force.mean, moved.predict(times).force.mean
    )


@pytest.mark.slow
def test_more_starts_through_the_solver_never_end_at_a_lower_density() -> None:
    instances, config = instances_and_config(response={"kind": "softplus"})
    model = Model(build_mechanism(config.mechanism, NAMES), config.force, config.likelihood)
    forward = Forward(model, collate(instances, NAMES), SolverConfig(), num_inducing=8)
    once, thrice = (
        best_matched_mode(forward, [5], OptimiserConfig(rounds=1), PreestimateConfig(), Starts(count))
        for count in (1, 3)
    )
    assert float(thrice.value) <= float(once.value)


def test_impossible_counts_are_refused_with_the_value() -> None:
    instances, config = instances_and_config()
    likelihood = config.likelihood.model_copy(update={"kind": "poisson"})
    model = Model(build_mechanism(config.mechanism, NAMES), config.force, likelihood)
    with pytest.raises(UsageError, match=r"which is not a count.*whole numbers from 0"):
        fit_instances(model, instances, InferenceConfig())
