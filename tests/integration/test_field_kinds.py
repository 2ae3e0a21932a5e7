"""Fields of every kind that a config can ask for: starts, meshes from files, flows, and three dimensions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import meshio
import numpy as np
import pytest

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.fleets.fit_job import model_of
from distlfm.inference.archive import load_fit, save_fit
from distlfm.inference.field import laplace as field_laplace
from distlfm.inference.findings.scores import figures
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.result import FitResult
from distlfm.instance import Instance
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from

pytestmark = pytest.mark.slow

FORCE = {
    "priors": {
        "lengthscale": {"kind": "lognormal", "median": 0.5, "spread": 0.2},
        "variance": {"kind": "lognormal", "median": 1.0, "spread": 0.3},
    }
}
LIKELIHOOD = {"prior": {"kind": "lognormal", "median": 0.01, "spread": 0.3}}
SQUARE = {"kind": "rectangle", "lower": [0.0, 0.0], "upper": [1.0, 1.0], "size": 0.2}
RATES = {"sensitivity": 1.0, "decay": 0.5, "diffusion": 0.02}
HILL = {
    "points": [[0, 0], [1, 0], [0, 1], [1, 1], [0.5, 0.5]],
    "values": [0.0, 0.0, 0.0, 0.0, 1.0],
    "scale": {"kind": "lognormal", "median": 1.0, "spread": 1.0},
}


def simulated(mechanism: dict[str, Any], **more: Any) -> Instance:
    parts = {"mechanism": mechanism, "force": FORCE, "likelihood": LIKELIHOOD}
    size = {"instances": 1, "stop": 1.0, "points": 6, "places": 5, "seed": 3}
    return simulate_from(build(SimulateConfig, {**parts, **size, **more}))[0]


def fitted(mechanism: dict[str, Any], instance: Instance, **field: int) -> FitResult:
    config = build(FitConfig, {"mechanism": mechanism, "force": FORCE, "likelihood": LIKELIHOOD})
    inference = {
        "posterior": {"method": "laplace", "draws": 12},
        "field": {"refinements": 0, "num_times": 5, "num_places": 9, **field},
    }
    (result,) = fit_instances(model_of(config, [instance]), [instance], build(InferenceConfig, inference))
    # Nine places and no refinement are coarse on purpose, and some answers say so.
    assert result.status in ("converged", "unreliable")
    return result


def interval_of(result: FitResult, name: str) -> tuple[float, float]:
    (found,) = [one for one in result.estimates if one.parameter == name]
    return found.lower95, found.upper95


def truth_of(instance: Instance, name: str) -> float:
    assert instance.truth is not None
    return float(instance.truth.parameters[name][0])


def test_the_scale_of_a_given_start_is_learned_on_a_square() -> None:
    mechanism = {"kind": "reaction_diffusion", "mesh": SQUARE, "fixed": RATES, "initial": {"kind": "scaled", **HILL}}
    instance = simulated(mechanism)
    low, high = interval_of(fitted(mechanism, instance, num_places=16), "initial_scale")
    assert low < truth_of(instance, "initial_scale") < high
    assert high < 1.3 * low


def test_a_given_start_on_a_square_is_interpolated_and_must_cover_it() -> None:
    hill = {"kind": "given", "points": HILL["points"], "values": HILL["values"]}
    quarters = {**SQUARE, "size": 0.25}
    mechanism = {"kind": "reaction_diffusion", "mesh": quarters, "fixed": RATES, "initial": hill}
    instance = simulated(mechanism)
    first = instance.times == instance.times[0]
    assert instance.truth is not None
    assert instance.truth.outputs is not None
    assert instance.positions is not None
    # A hill of height one with its foot along the edges.
    height = 1 - 2 * np.abs(instance.positions[first] - 0.5).max(-1)
    assert np.abs(instance.truth.outputs[0, first] - height).max() < 1e-9
    for points, word in (
        ([[0, 0], [1, 0], [0, 0.5]], "not given around"),
        ([0.0, 0.5, 1.0], "1 coordinates"),
        ([[0, 0], [0.5, 0.5], [1, 1]], "span no part"),
    ):
        wrong = {"kind": "given", "points": points, "values": [1.0, 2.0, 3.0]}
        with pytest.raises(UsageError, match=word):
            fitted({**mechanism, "initial": wrong}, instance)


def test_the_velocity_of_a_flow_is_found() -> None:
    mechanism = {
        "kind": "advection_diffusion",
        "mesh": {"lower": [0.0], "upper": [1.0], "size": 0.05},
        "boundary": {"left": {"kind": "dirichlet"}},
        "fixed": {**RATES, "decay": 0.3},
        "priors": {"velocity_0": {"kind": "normal", "mean": 0.4, "sd": 0.3}},
        "initial": {"kind": "given", "points": [0, 0.2, 0.4, 0.6, 1], "values": [0, 1, 0, 0, 0]},
    }
    instance = simulated(mechanism, points=9, places=11)
    result = fitted(mechanism, instance)
    low, high = interval_of(result, "velocity_0")
    assert low < truth_of(instance, "velocity_0") < high
    assert figures(result)["output_q2"] > 0.99


def test_a_field_on_a_mesh_from_a_file_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    axis = np.linspace(0, 1, 6)
    points = np.stack([x.ravel() for x in np.meshgrid(axis, axis, indexing="ij")], -1)
    corner = (np.arange(5)[:, None] * 6 + np.arange(5)).ravel()
    cells = np.concatenate([corner[:, None] + [0, 6, 7], corner[:, None] + [0, 7, 1]])
    meshio.Mesh(np.pad(points, ((0, 0), (0, 1))), [("triangle", cells)]).write(tmp_path / "square.msh")
    mechanism = {"kind": "reaction_diffusion", "fixed": RATES}
    instance = simulated({**mechanism, "mesh": SQUARE})
    monkeypatch.chdir(tmp_path)
    result = fitted({**mechanism, "mesh": {"kind": "file", "path": "square.msh"}}, instance)
    made = fitted({**mechanism, "mesh": SQUARE}, instance)
    where = ([0.3, 0.7], np.array([[0.4, 0.2], [0.6, 0.8]]))
    before = result.predict(*where)
    np.testing.assert_allclose(before.force.mean, made.predict(*where).force.mean, rtol=0, atol=0.1)
    save_fit(result, tmp_path / "one.npz")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    np.testing.assert_allclose(load_fit(tmp_path / "one.npz").predict(*where).force.mean, before.force.mean, rtol=1e-6)


def test_a_field_in_three_dimensions_is_solved_and_fitted() -> None:
    box = {"kind": "box", "lower": [0.0] * 3, "upper": [1.0] * 3, "size": 0.34}
    mechanism = {"kind": "reaction_diffusion", "mesh": box, "fixed": RATES}
    instance = simulated(mechanism, places=4)
    result = fitted(mechanism, instance, num_places=27)
    scores = figures(result)
    assert scores["output_q2"] > 0.98
    assert scores["latent_q2"] > 0.6


def test_a_nonlinear_field_on_a_square_is_fitted(monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = {
        "kind": "fisher_kpp",
        "mesh": SQUARE,
        "initial": {"kind": "given", "values": [0.4]},
        "fixed": {"sensitivity": 0.5, "growth": 1.0, "capacity": 1.0, "diffusion": 0.02},
        "step": 0.2,
    }
    instance = simulated(mechanism, points=5, places=4)
    result = fitted(mechanism, instance, num_times=4)
    assert result.method == "laplace"
    assert figures(result)["output_q2"] > 0.98
    monkeypatch.setattr(field_laplace, "memory_bytes", lambda: 1_000)
    with pytest.raises(UsageError, match=r"takes about .* GB, and this machine has 0\.0"):
        fitted(mechanism, instance)
