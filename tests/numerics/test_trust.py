"""What fails a check of its own claim is called unreliable, with the reason; what is right is not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from distlfm.config import build
from distlfm.inference.archive import load_fit, save_fit
from distlfm.inference.base import Unknowns
from distlfm.inference.findings import innovations
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.result import UNRELIABLE, FitResult
from distlfm.instance import FloatArray, Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system
from distlfm.runs.settings import SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.solvers import linear
from tests.support.catalogue.linear import Pulsed, pulsed

TIMES = np.linspace(0.0, 10.0, 41)
FAST = InferenceConfig(grid_points=21)


def fitted(
    mechanism: Mapping[str, Any],
    values: FloatArray,
    options: InferenceConfig = FAST,
    likelihood: Mapping[str, Any] | None = None,
    variance: float | None = None,
) -> FitResult:
    names = tuple(f"y{i}" for i in range(len(values)))
    model = Model(build_system(dict(mechanism), names), ForceConfig(), build(LikelihoodConfig, dict(likelihood or {})))
    given = None if variance is None else np.full_like(values, variance)
    instance = Instance("one", names, TIMES, values, np.ones_like(values, dtype=bool), variance=given)
    return fit_instances(model, [instance], options)[0]


def curve(start: float, noise: float, seed: int = 0) -> FloatArray:
    """A leaky tank with a smooth inflow, observed with noise."""
    fine = np.linspace(0.0, 10.0, 4001)
    inflow = 1.0 + np.sin(fine)
    level = np.empty_like(fine)
    level[0] = start
    for i, step in enumerate(np.diff(fine)):
        level[i + 1] = level[i] + step * (inflow[i] - 0.5 * level[i])
    scatter = noise * np.random.default_rng(seed).standard_normal(len(TIMES))
    return (np.interp(TIMES, fine, level) + scatter)[None]


TANK = {"kind": "transcription", "initial": "zero", "fixed": {"sensitivity": 1.0, "basal": 0.0}}
"""ẏ = f − d y from an empty tank."""


def test_a_right_fit_is_converged_and_stays_so_on_the_disk(tmp_path: Any) -> None:
    result = fitted(TANK, curve(0.0, 0.02))
    assert (result.status, result.advice) == ("converged", "")
    assert result.trustworthy
    save_fit(result, tmp_path / "one.npz")
    assert load_fit(tmp_path / "one.npz").tail == result.tail


def test_a_start_that_is_not_where_the_data_are_is_said() -> None:
    result = fitted(TANK, curve(3.0, 0.02))
    assert result.status == UNRELIABLE
    assert not result.trustworthy
    assert "start" in result.advice


def test_data_farther_from_the_curves_than_their_given_noise_are_said() -> None:
    values = np.abs(np.random.default_rng(0).standard_normal((3, len(TIMES))))
    alike = {"kind": "transcription", "fixed": {"basal": 0.1, "sensitivity": 1.0, "decay": 0.5}}
    result = fitted(alike, values, likelihood={"noise": "given"}, variance=0.02**2)
    assert result.status == UNRELIABLE
    assert "miss the data" in result.advice


def test_an_equation_that_only_seemed_linear_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linear, "reads_time", lambda *_: False)
    made = pulsed(np.random.default_rng(0))
    model = Model(Pulsed(), ForceConfig(), LikelihoodConfig())
    (result,) = fit_instances(model, [made], FAST)
    assert (result.method, result.status) == ("collapsed", UNRELIABLE)
    assert "another one" in result.advice


def test_few_draws_with_heavy_weights_are_said() -> None:
    thin = InferenceConfig.model_validate({"grid_points": 5, "posterior": {"stages": [1], "draws": 4}})
    values = np.concatenate([curve(0.4, 0.0005, seed) for seed in range(6)])
    result = fitted({"kind": "transcription"}, values, thin)
    told = "independent ones" in result.advice
    assert told == (result.tail > 1.0 or result.effective_draws < 10)
    assert (result.status == UNRELIABLE) or not told


def test_an_unreliable_fit_is_saved_and_read_as_one(tmp_path: Any) -> None:
    result = fitted(TANK, curve(3.0, 0.02))
    save_fit(result, tmp_path / "one.npz")
    again = load_fit(tmp_path / "one.npz")
    assert (again.status, again.advice) == (result.status, result.advice)


def statuses(instances: Sequence[Instance], model: Model) -> list[str]:
    return [one.status for one in fit_instances(model, instances, FAST)]


def test_innovations_are_asked_of_draws_and_not_of_their_mean_beside_a_bent_ridge() -> None:
    angle = torch.linspace(0.0, 2.0, 40, dtype=torch.float64)
    ridge = torch.stack([angle.cos(), angle.sin()], -1).unsqueeze(1)
    unknowns = Unknowns(ridge, torch.full((40, 1), 1 / 40, dtype=torch.float64))
    fit = cast("FitResult", SimpleNamespace(row=0, posterior=SimpleNamespace(unknowns=lambda: unknowns)))
    for count in (1, 5):
        torch.testing.assert_close(innovations._typical(fit, count).norm(dim=-1), torch.ones(count).double())


def test_a_well_posed_fleet_raises_no_alarm() -> None:
    config = {"mechanism": {"kind": "transcription", "fixed": {"sensitivity": {"output_0": 1.0}}}, "num_outputs": 3}
    priors = {"force": {"priors": {"lengthscale": {"kind": "lognormal", "median": 2.0, "spread": 0.3}}}}
    made = build(SimulateConfig, {**config, **priors, "instances": 24, "points": 25, "stop": 12.0, "seed": 1})
    instances = simulate_from(made)
    model = Model(
        build_system(config["mechanism"], instances[0].outputs), build(ForceConfig, priors["force"]), LikelihoodConfig()
    )
    found = statuses([one.blind() for one in instances], model)
    assert found.count("converged") >= len(found) - 1
