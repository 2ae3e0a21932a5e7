"""Waves in place of dense matrices: the same density, gradient, bands and draws, and a fit that says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from distlfm.config import build
from distlfm.inference.archive import load_fit, save_fit
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import Observations
from distlfm.inference.optimise import evaluate
from distlfm.inference.series import fourier
from distlfm.inference.series.fourier import Basis, FourierGaussian
from distlfm.inference.series.linear import LinearGaussian, Quadrature
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system
from distlfm.mechanisms.priors import LogNormal

FIRST, SECOND = [0.0, 0.4, 1.0, 1.7, 2.1, 3.0, 3.6, 4.4, 5.0], [0.0, 0.7, 1.1, 1.4, 2.6, 2.9, 4.0, 4.5, 6.0]
TIMES = torch.tensor([FIRST, SECOND], dtype=torch.float64)
EQUATIONS: dict[str, dict[str, Any]] = {
    "every output a state": {"kind": "transcription"},
    "a start of its own": {"kind": "transcription", "initial": "free"},
    "two forces": {"kind": "transcription", "forces": ["a", "b"]},
    "states that move each other": {"kind": "cascade"},
}


def model_of(name: str, **likelihood: Any) -> Model:
    system = build_system(EQUATIONS[name], ("p", "q"))
    return Model(system, ForceConfig(), build(LikelihoodConfig, likelihood))


def observed(model: Model, *, holes: bool) -> Observations:
    generator = torch.Generator().manual_seed(3)
    shape = (len(TIMES), len(model.system.outputs), TIMES.shape[1])
    values = torch.randn(shape, generator=generator, dtype=torch.float64)
    mask = torch.rand(shape, generator=generator) < 0.8 if holes else torch.ones(shape, dtype=torch.bool)
    variance = 0.01 + torch.rand(shape, generator=generator, dtype=torch.float64)
    return Observations(("one", "two"), model.system.outputs, TIMES, values, mask, variance)


def unknowns(model: Model) -> Tensor:
    return 0.5 * torch.randn(2, model.space.num_free, generator=torch.Generator().manual_seed(4), dtype=torch.float64)


def both(model: Model, data: Observations) -> tuple[FourierGaussian, LinearGaussian]:
    first, last, short, long = TIMES[:, 0], TIMES[:, -1], torch.full((2,), 0.3), torch.full((2,), 4.0)
    waves = FourierGaussian(model, data, model.linearity, Basis.of(first, last, short, long, 6.0))
    return waves, LinearGaussian(model, data, model.linearity, Quadrature(6, 4))


@pytest.mark.parametrize("holes", [False, True], ids=["whole", "with holes"])
@pytest.mark.parametrize("noise", ["learned", "given"])
@pytest.mark.parametrize("name", EQUATIONS)
def test_density_and_gradient_are_those_of_dense_matrices(name: str, noise: str, holes: bool) -> None:
    model = model_of(name, noise=noise)
    waves, dense = both(model, observed(model, holes=holes))
    z, rows = unknowns(model), torch.arange(2)
    (value, slope), (expected, steep) = (evaluate(one.negative, z, rows) for one in (waves, dense))
    torch.testing.assert_close(value, expected, rtol=1e-6, atol=1e-4)
    torch.testing.assert_close(slope, steep, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", EQUATIONS)
def test_force_and_outputs_given_the_unknowns_are_those_of_dense_matrices(name: str) -> None:
    model = model_of(name)
    waves, dense = both(model, observed(model, holes=True))
    z, rows, query = unknowns(model), torch.arange(2), torch.linspace(0.0, 5.0, 13).double().expand(2, -1)
    found, expected = (one.posterior(z, rows, query) for one in (waves, dense))
    for part in ("force_mean", "force_var", "output_mean", "output_var"):
        torch.testing.assert_close(getattr(found, part), getattr(expected, part), rtol=1e-3, atol=1e-3)


def test_draws_have_the_moments_of_the_posterior() -> None:
    model = model_of("every output a state")
    waves, _ = both(model, observed(model, holes=False))
    query, rows, generator = torch.linspace(0.5, 5.0, 7).double(), torch.arange(2), torch.Generator().manual_seed(0)
    z = unknowns(model)
    many, place = z[:1].expand(1000, -1), torch.zeros(1000, dtype=torch.long)
    force, outputs = waves.draw(many, place, query.expand(1000, -1), generator)
    expected = waves.posterior(z[:1], rows[:1], query.unsqueeze(0))
    for drawn, mean, variance in (
        (force, expected.force_mean, expected.force_var),
        (outputs, expected.output_mean, expected.output_var),
    ):
        error = (drawn.mean(0) - mean[0]).abs() / (variance[0] / 1000).sqrt()
        assert float(error.max()) < 5
        torch.testing.assert_close(drawn.var(0), variance[0], rtol=0.3, atol=1e-6)


def test_far_beyond_the_data_the_circle_does_not_come_round() -> None:
    model = model_of("every output a state")
    waves, dense = both(model, observed(model, holes=False))
    z, rows = unknowns(model), torch.arange(2)
    query = TIMES[:, :1] + waves.basis.length.unsqueeze(-1) + torch.tensor([0.0, 1.0]).double()
    found, expected = (one.posterior(z, rows, query) for one in (waves, dense))
    torch.testing.assert_close(found.force_var, expected.force_var, rtol=1e-2, atol=1e-3)
    assert float((found.force_mean - expected.force_mean).abs().max()) < 1e-2


def fleet(model: Model, count: int) -> list[Instance]:
    times, made = np.linspace(0.0, 8.0, 40), []
    for i in range(count):
        random = np.random.default_rng(i)
        curve = 0.3 + 0.2 * np.sin(times + random.uniform(0, 3)) + 0.1 * random.uniform() * times
        values = np.stack([curve, 0.5 * curve]) + 0.01 * random.standard_normal((2, len(times)))
        made.append(Instance(f"{i}", model.system.outputs, times, values, np.ones_like(values, dtype=bool)))
    return made


def test_a_fit_by_waves_is_that_by_dense_matrices_alone_and_among_others_and_on_the_disk(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    smooth = ForceConfig.model_validate({"priors": {"lengthscale": LogNormal(1.5, 0.2)}})
    model = Model(build_system({"kind": "transcription"}, ("p", "q")), smooth, LikelihoodConfig())
    instances = fleet(model, 3)
    options = InferenceConfig(method="collapsed", grid_points=9)
    results = fit_instances(model, instances, options)
    assert all("circle" in one.posterior.state() for one in results)
    for i, together in enumerate(results):
        alone = fit_instances(model, instances[i : i + 1], options)[0]
        assert torch.equal(alone.posterior.state()["circle"][0], together.posterior.state()["circle"][i])
        assert abs(alone.bound - together.bound) < 1e-6
        np.testing.assert_allclose(alone.force.mean, together.force.mean, atol=1e-4 * together.force.sd.max())
    save_fit(results[0], tmp_path / "fit.npz")
    again = load_fit(tmp_path / "fit.npz").predict([1.0, 2.5])
    np.testing.assert_allclose(again.force.mean, results[0].predict([1.0, 2.5]).force.mean, rtol=1e-9)
    monkeypatch.setattr(fourier, "supports", lambda _: False)
    for waves, dense in zip(results, fit_instances(model, instances, options), strict=True):
        assert "circle" not in dense.posterior.state()
        assert abs(waves.bound - dense.bound) < 0.05
        assert np.abs(waves.force.mean - dense.force.mean).max() < 0.3 * dense.force.sd.max()


def test_a_lengthscale_that_needs_many_waves_is_left_to_dense_matrices() -> None:
    short = ForceConfig.model_validate({"fixed": {"lengthscale": 0.02}})
    model = Model(build_system({"kind": "transcription"}, ("p", "q")), short, LikelihoodConfig())
    whole = fleet(model, 1)[0]
    instance = Instance("few", whole.outputs, whole.times[::4], whole.values[:, ::4], whole.mask[:, ::4])
    found = fit_instances(model, [instance], InferenceConfig(method="collapsed", grid_points=5))[0]
    assert "circle" not in found.posterior.state()
    assert found.ok
