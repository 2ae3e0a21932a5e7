"""Draws of a fit are curves of its posterior."""

from __future__ import annotations

import numpy as np
import pytest

from distlfm.config import build
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import Model
from distlfm.inference.result import FitResult
from distlfm.mechanisms import build_mechanism
from distlfm.runs.settings import SimulateConfig
from distlfm.simulation.instances import simulate_from
from distlfm.verbs.demo import MODEL

TIMES = np.linspace(0, 13, 14)


def fitted(method: str, kernel: str = "rbf") -> FitResult:
    content = {**MODEL, "force": {**MODEL["force"], "kernel": {"kind": kernel}}, "instances": 1, "num_outputs": 2}
    config = build(SimulateConfig, {**content, "missing": 0.2})
    model = Model(build_mechanism(config.mechanism, ["output_0", "output_1"]), config.force, config.likelihood)
    own = {"variational": {"iterations": 5}} if method == "variational" else {"posterior": {"method": "point"}}
    options = {"method": method, **own}
    return fit_instances(model, simulate_from(config), build(InferenceConfig, options))[0]


@pytest.mark.parametrize(("method", "kernel"), [("collapsed", "rbf"), ("exact", "rbf"), ("filter", "matern52")])
@pytest.mark.slow
def test_draws_have_the_mean_and_spread_of_the_bands(method: str, kernel: str) -> None:
    result = fitted(method, kernel)
    drawn, band = result.draws(600, TIMES), result.predict(TIMES)
    for curves, expected in ((drawn.force, band.force), (drawn.outputs, band.outputs)):
        error = np.abs(curves.mean(0) - expected.mean) / np.maximum(expected.sd, 1e-6)
        assert error.max() < 0.2
        np.testing.assert_allclose(curves.std(0), expected.sd, rtol=0.15, atol=2e-3)


def test_outputs_of_a_draw_solve_the_equation_with_its_force() -> None:
    result = fitted("collapsed")
    times = np.linspace(0, 11, 441)
    drawn = result.draws(3, times)
    values = {one.name: one.mean for one in result.estimates}
    fixed = result.posterior.model.space["sensitivity"].fixed
    for p, name in enumerate(("output_0", "output_1")):
        gain = fixed.get(name, values.get(f"sensitivity[{name}]", values.get("sensitivity")))
        rate = values[f"basal[{name}]"] + gain * drawn.force[:, 0] - values[f"decay[{name}]"] * drawn.outputs[:, p]
        slope = np.gradient(drawn.outputs[:, p], times, axis=-1)
        assert np.abs(rate - slope)[:, 5:-5].max() < 0.01 * np.abs(slope).max()


def test_a_variational_draw_is_one_of_the_answer_and_seeds_repeat_it() -> None:
    result = fitted("variational")
    one, again, other = (result.draws(5, [3.0, 1.0], seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.force, again.force)
    assert not np.array_equal(one.force, other.force)
    assert one.force.shape == (5, 1, 2)
    assert one.outputs.shape == (5, 2, 2)
