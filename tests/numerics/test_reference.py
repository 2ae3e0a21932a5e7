"""Long chains of NUTS, with which other methods are compared."""

from __future__ import annotations

import sys
import threading
from typing import Any

import arviz
import numpy as np
import pytest
import torch
from torch import Tensor

from distlfm.config import build
from distlfm.errors import MissingExtra, UsageError
from distlfm.fleets.fit_plan import batch_size
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import collate
from distlfm.inference.series.reference.method import AGREED, Reference
from distlfm.inference.series.reference.nuts import ReferenceConfig, sample
from distlfm.inference.survey import survey
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system

SHORT = ReferenceConfig(chains=4, warmup=150, draws=600)


def gene(response: str = "identity") -> Model:
    """One gene of which the decay alone is unknown, with a force of known smoothness."""
    mechanism = {
        "kind": "transcription",
        "outputs": ("a",),
        "response": {"kind": response},
        "fixed": {"basal": {"a": 0.2}, "sensitivity": {"a": 1.0}},
    }
    force = {"fixed": {"lengthscale": 1.5, "variance": 1.0}}
    return Model(build_system(mechanism), build(ForceConfig, force), build(LikelihoodConfig, {"noise": "given"}))


def observed(name: str = "one") -> Instance:
    times = np.linspace(0, 4, 6)
    values = 0.5 + np.sin(times)[None]
    return Instance(name, ("a",), times, values, np.ones((1, 6), dtype=bool), variance=np.full((1, 6), 0.01))


def options(**lengths: Any) -> InferenceConfig:
    return build(InferenceConfig, {"method": "reference", "grid_points": 5, "reference": lengths})


def test_chains_agree_on_a_posterior_that_is_known() -> None:
    root = torch.tensor([[1.0, 0.0, 0.0], [0.9, 0.1, 0.0], [-0.5, 0.3, 0.05]], dtype=torch.float64)
    middle = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)

    def negative(w: Tensor, rows: Tensor) -> Tensor:
        del rows
        return 0.5 * torch.linalg.solve(root, (w - middle).mT).square().sum(0)

    found = sample(negative, 3, SHORT, seed=1)
    assert found.rhat < AGREED
    assert found.effective > 400
    sd = root.square().sum(-1).sqrt()
    assert float(((found.turns.mean(0) - middle) / sd).abs().max()) < 0.15
    assert float((torch.cov(found.turns.T) - root @ root.T).abs().max()) < 0.15
    assert torch.equal(found.draws[2, 5], found.turns[5 * 4 + 2])


def test_chains_that_see_different_modes_are_not_said_to_agree() -> None:
    def negative(w: Tensor, rows: Tensor) -> Tensor:
        del rows
        modes = torch.tensor([-1.0, 1.0], dtype=torch.float64)
        return -torch.logsumexp(-0.5 * ((w - modes) / 0.02).square(), -1)

    assert sample(negative, 1, SHORT, seed=1).rhat > 1.5


def test_what_ends_the_work_ends_the_chains() -> None:
    calls = []

    def negative(w: Tensor, rows: Tensor) -> Tensor:
        del rows
        calls.append(len(w))
        if len(calls) > 60:
            raise KeyboardInterrupt
        return 0.5 * w.square().sum(-1)

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        sample(negative, 2, SHORT, seed=1)
    assert threading.active_count() == before


def test_chains_are_chains_to_arviz() -> None:
    (result,) = fit_instances(gene(), [observed()], options(chains=3, warmup=60, draws=40))
    found = result.to_arviz(60)
    assert dict(found.posterior.sizes)["chain"] == 3
    assert dict(found.posterior.sizes)["draw"] == 20
    decay = found.posterior["decay"].to_numpy()
    every = result.posterior.unknowns().proposals[:, 0]
    whole = result.posterior.model.space.unpack(every)["decay"].reshape(40, 3).T.numpy()
    np.testing.assert_allclose(decay, whole[:, ::2])
    assert float(arviz.rhat(found)["decay"]) == pytest.approx(result.rhat, abs=0.1)


def test_short_chains_say_that_they_are_short() -> None:
    (result,) = fit_instances(gene(), [observed()], options(chains=2, warmup=20, draws=10))
    assert result.status == "unreliable"
    assert "The chains have not met" in result.advice
    assert "Raise inference.reference.warmup and draws" in result.advice


@pytest.mark.slow
def test_a_force_that_is_sampled_is_the_force_that_is_integrated_out() -> None:
    model, settings = gene(), options(chains=4, warmup=100, draws=150)
    data = collate([observed()], ("a",))
    (closed,) = fit_instances(model, [observed()], settings)
    solved = Reference().infer(model, data, settings, [5])
    at = torch.linspace(0, 4, 5, dtype=torch.float64).unsqueeze(0)
    with torch.no_grad():
        force = solved.posterior.predict(torch.tensor([0]), at).force
    sd = closed.grid.force.sd[0]
    assert np.abs((force.mean[0, 0].numpy() - closed.grid.force.mean[0]) / sd).max() < 0.3
    assert np.abs(np.log(force.variance[0, 0].sqrt().numpy() / sd)).max() < 0.25
    z = solved.posterior.unknowns().proposals[:, 0, 0]
    other = closed.posterior.unknowns().proposals[:, 0, 0]
    assert abs(float((z.mean() - other.mean()) / other.std())) < 0.3
    assert abs(float(torch.log(z.std() / other.std()))) < 0.25


def test_an_instance_is_a_block_of_its_own() -> None:
    instances, settings = [observed(f"n{i}") for i in range(40)], options()
    found = survey(gene(), instances, instances, settings)
    assert batch_size(gene(), found, settings) == 1


def test_without_its_extra_it_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nutpie", None)
    with pytest.raises(MissingExtra) as missing:
        fit_instances(gene(), [observed()], options())
    assert missing.value.fix == 'Install it with: pip install "distlfm[reference]"'


def test_options_of_other_samplers_are_refused() -> None:
    with pytest.raises(UsageError, match="posterior has no effect with method reference"):
        build(InferenceConfig, {"method": "reference", "posterior": {"draws": 50}})
