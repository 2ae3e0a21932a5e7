"""Fields by matched slopes: surfaces through scattered data, and forces without solving anything."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from distlfm.config import build, read_yaml
from distlfm.errors import UsageError
from distlfm.fleets.fit_job import model_of
from distlfm.inference.archive import load_fit, save_fit
from distlfm.inference.field.settings import build_map, settle
from distlfm.inference.field.surface import Surface
from distlfm.inference.findings.scores import figures
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import Model
from distlfm.inference.observations import collate
from distlfm.instance import Instance, Truth
from distlfm.runs.settings import FitConfig, SimulateConfig
from distlfm.simulation.instances import simulate_from

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DECAY, DIFFUSION, NOISE = 0.4, 0.05, 0.01
QUICK = InferenceConfig(method="preestimate")


def wave(t: Tensor, x: Tensor) -> Tensor:
    return torch.sin(math.pi * x) * torch.sin(3 * t)


def pushed(t: Tensor, x: Tensor) -> Tensor:
    """The force that makes `wave` the solution."""
    return torch.sin(math.pi * x) * (3 * torch.cos(3 * t) + (DECAY + DIFFUSION * math.pi**2) * torch.sin(3 * t))


def scattered(count: int, seed: int = 0) -> Instance:
    """Noisy values of the wave at random points, with the truth on a grid."""
    stream = np.random.default_rng(seed)
    points = torch.from_numpy(stream.uniform(size=(count, 2)))
    points = points[points[:, 0].argsort()]
    values = wave(points[:, 0], points[:, 1]).numpy() + NOISE * stream.standard_normal(count)
    t, x = (axis.ravel() for axis in np.meshgrid(np.linspace(0.05, 0.95, 10), np.linspace(0.1, 0.9, 9), indexing="ij"))
    force, outputs = (f(torch.from_numpy(t), torch.from_numpy(x)).numpy()[None] for f in (pushed, wave))
    return Instance(
        "wave",
        ("output",),
        points[:, 0].numpy(),
        values[None],
        np.ones((1, count), dtype=bool),
        positions=points[:, 1:].numpy(),
        truth=Truth(t, force, outputs, x[:, None]),
    )


def reaction(instance: Instance) -> Model:
    mechanism = {
        "kind": "reaction_diffusion",
        "fixed": {"sensitivity": 1.0, "decay": DECAY, "diffusion": DIFFUSION},
        "mesh": {"lower": [0.0], "upper": [1.0], "size": 0.05},
        "boundary": {"all": {"kind": "dirichlet", "value": 0.0}},
        "start": 0.0,
        "step": 0.05,
    }
    likelihood = {"prior": {"kind": "lognormal", "median": 0.02, "spread": 1.0}}
    return model_of(build(FitConfig, {"mechanism": mechanism, "likelihood": likelihood}), [instance])


def test_a_surface_knows_values_slopes_and_noise_of_scattered_data() -> None:
    instance = scattered(150)
    model = reaction(instance)
    field_map = build_map(model, settle(model, [instance], InferenceConfig().field))
    surface = Surface(field_map, collate([instance.blind()], ("output",)))
    assert surface.belief.noise == pytest.approx(NOISE, rel=0.25)
    times, nodes = torch.linspace(0.1, 0.9, 9, dtype=torch.float64), field_map.nodes[1:-1]
    value, slope = (part @ surface.belief.mean for part in surface.columns_on(times, nodes))
    exact = wave(times[:, None], nodes[:, 0])
    assert float((surface.centre + value - exact).abs().max()) < 3 * NOISE
    step = 1e-5
    ahead, behind = (surface.columns_on(times + sign * step, nodes)[0] @ surface.belief.mean for sign in (1, -1))
    torch.testing.assert_close(slope, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-6)
    real = 3 * torch.cos(3 * times)[:, None] * torch.sin(math.pi * nodes[:, 0])
    assert float((slope - real).square().mean().sqrt()) < 0.15


def test_the_force_follows_from_slopes_alone(tmp_path: Path) -> None:
    instance = scattered(150)
    (result,) = fit_instances(reaction(instance), [instance], QUICK)
    assert (result.method, result.status) == ("preestimate", "converged")
    scores = figures(result)
    assert scores["latent_q2"] > 0.97
    assert scores["output_q2"] > 0.999
    assert scores["latent_coverage_95"] > 0.8

    save_fit(result, tmp_path / "one.npz")
    again = load_fit(tmp_path / "one.npz")
    first, second = (one.predict([0.3, 0.7], np.array([0.2, 0.6])) for one in (result, again))
    np.testing.assert_allclose(second.force.mean, first.force.mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(second.outputs.sd, first.outputs.sd, rtol=1e-6, atol=1e-9)

    drawn = result.draws(400, [0.3, 0.7, 2.5], positions=np.array([0.2, 0.6, 0.4]))
    told = result.predict([0.3, 0.7, 2.5], np.array([0.2, 0.6, 0.4]))
    np.testing.assert_allclose(drawn.force.std(0), told.force.sd, rtol=0.15)
    np.testing.assert_allclose(drawn.outputs.std(0), told.outputs.sd, rtol=0.15)
    for times, places, word in (([0.5], [1.4], "outside"), ([-0.5], [0.5], "starts at")):
        with pytest.raises(UsageError, match=word):
            result.predict(times, np.array(places))


@pytest.mark.parametrize(
    "options",
    [
        {"preestimate": {"interpolant": "gp"}},
        {"preestimate": {"points": 30}},
        {"method": "preestimate", "posterior": {"draws": 7}},
    ],
)
def test_options_that_a_field_does_not_have_are_refused(options: dict[str, Any]) -> None:
    instance = scattered(20)
    with pytest.raises(UsageError, match="no effect on a field"):
        fit_instances(reaction(instance), [instance], build(InferenceConfig, options))


def test_more_data_and_less_noise_bring_the_match_closer() -> None:
    few, many = scattered(60), scattered(400)
    scores = [figures(fit_instances(reaction(one), [one], QUICK)[0]) for one in (few, many)]
    assert 1 - scores[1]["latent_q2"] < 0.6 * (1 - scores[0]["latent_q2"])


def test_slopes_of_a_nonlinear_equation_are_matched_too() -> None:
    content = read_yaml(ROOT / "configs/simulate/fisher_kpp.yaml") | {"instances": 1}
    instances = simulate_from(build(SimulateConfig, content))
    truth = instances[0].truth
    assert truth is not None
    fit = read_yaml(ROOT / "configs/fit/fisher_kpp.yaml")
    fit["mechanism"]["fixed"] |= {"growth": float(truth.parameters["growth"][0])}
    (result,) = fit_instances(model_of(build(FitConfig, fit), instances), instances, QUICK)
    assert result.status == "converged"
    assert figures(result)["latent_q2"] > 0.9
