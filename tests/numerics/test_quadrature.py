"""How finely time is cut for dense matrices, and how many rows go into one call."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from distlfm.config import build
from distlfm.errors import UsageError
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.series.linear import TRIAL_TIMES, LinearGaussian, Quadrature, choose_quadrature
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_mechanism
from distlfm.solvers.linear import probe


def model_of(lengthscale: float) -> Model:
    prior = {"kind": "lognormal", "median": lengthscale, "spread": 0.1}
    force = build(ForceConfig, {"kernel": {"kind": "rbf"}, "priors": {"lengthscale": prior}})
    return Model(build_mechanism({"kind": "transcription"}, ["g0", "g1"]), force, LikelihoodConfig())


def instance_of(times: np.ndarray) -> Instance:
    values = np.random.default_rng(3).normal(size=(2, len(times)))
    return Instance("a", ("g0", "g1"), times, values, np.ones_like(values, dtype=bool))


def observed(model: Model, times: np.ndarray) -> Observations:
    return collate([instance_of(times)], model.mechanism.outputs)


def density(model: Model, data: Observations, rule: Quadrature, z: torch.Tensor) -> torch.Tensor:
    marginal = LinearGaussian(model, data, probe(model.mechanism, model.space), rule)
    return marginal.log_joint(z, torch.zeros(len(z), dtype=torch.long))


def some_z(model: Model, count: int) -> torch.Tensor:
    return 0.3 * torch.randn(
        count, model.space.num_free, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )


def test_a_long_dense_series_takes_one_node_a_gap_and_keeps_its_density() -> None:
    model = model_of(2.0)
    data = observed(model, np.linspace(0, 8, 3 * TRIAL_TIMES))
    rule = choose_quadrature(model, data, probe(model.mechanism, model.space))
    assert rule == Quadrature(1, 1)
    z = some_z(model, 3)
    torch.testing.assert_close(density(model, data, rule, z), density(model, data, Quadrature(), z), rtol=0, atol=0.02)


@pytest.mark.parametrize("place", [3, 100, 3 * TRIAL_TIMES - 2])
def test_one_long_gap_in_a_dense_series_is_cut_finely_wherever_it_is(place: int) -> None:
    model = model_of(0.5)
    steps = np.full(3 * TRIAL_TIMES - 1, 0.01)
    steps[place - 1] = 6.0
    times = np.concatenate([[0.0], np.cumsum(steps)])
    rule = choose_quadrature(model, observed(model, times), probe(model.mechanism, model.space))
    assert rule.substeps * rule.order >= 8


def test_many_rows_are_computed_in_parts_that_equal_the_whole_and_its_gradient() -> None:
    model = model_of(2.0)
    data = observed(model, np.linspace(0, 8, 90))
    whole = LinearGaussian(model, data, probe(model.mechanism, model.space), Quadrature())
    z = some_z(model, 40).requires_grad_(True)
    rows = torch.zeros(len(z), dtype=torch.long)
    assert 1 < whole.rows_at_once < len(z) / 2
    together = whole.log_marginal(z, rows) - 0.5 * z.square().sum(-1)
    parted = whole.log_joint(z, rows)
    torch.testing.assert_close(parted, together, rtol=1e-12, atol=1e-9)
    slopes = [torch.autograd.grad(value.sum(), z)[0] for value in (parted, together)]
    torch.testing.assert_close(slopes[0], slopes[1], rtol=1e-9, atol=1e-9)


def test_a_force_too_quick_for_dense_matrices_is_refused_before_hours_go_by() -> None:
    model = model_of(0.001)
    with pytest.raises(UsageError, match=r"has 200 times, .* dense matrices are for 4096 at most") as refused:
        fit_instances(model, [instance_of(np.linspace(0, 100, 200))], InferenceConfig())
    assert "matern52" in refused.value.fix
