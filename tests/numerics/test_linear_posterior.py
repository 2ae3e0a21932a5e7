"""Predictions by variances carried from time to time, against those by covariances of everything with everything."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from distlfm.gp.kernels import KernelConfig
from distlfm.inference.marginal import GaussianMarginal, Moments
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import Observations, collate
from distlfm.inference.series.linear import LinearGaussian, Quadrature, output_variance
from distlfm.instance import Instance
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_mechanism
from distlfm.mechanisms.priors import Values
from distlfm.mechanisms.transcription import Transcription, TranscriptionConfig
from distlfm.solvers.linear import extract, panels, probe, response

PARTS = ("force_mean", "force_var", "output_mean", "output_var")
TOLERANCE = 1e-8
"""Of the largest prior deviation, or variance; what is asked of the rules of quadrature themselves is 3e-4."""


class Sums(Transcription):
    """Observed are the first output, and the sum of all: states that decay by themselves, seen together."""

    def observe(self, y: Tensor, values: Values) -> Tensor:
        del values
        return torch.cat([y[..., :1], y[..., 1:] + y.sum(-1, keepdim=True)], -1)


MECHANISMS: dict[str, Any] = {
    "genes": {"kind": "transcription", "outputs": ("a", "b", "c")},
    "two forces": {"kind": "transcription", "outputs": ("a", "b", "c"), "forces": ("f", "g"), "initial": "free"},
    "oscillator": {"kind": "linear_ode", "order": 2, "free_start": True},
    "cascade": {"kind": "cascade", "outputs": ("a", "b")},
    "sums": Sums(TranscriptionConfig(kind="sums", outputs=("a", "b", "c"), forces=("f", "g"))),
}


def model_of(name: str, kernel: str = "rbf") -> Model:
    options = MECHANISMS[name]
    mechanism = build_mechanism(options) if isinstance(options, dict) else options
    return Model(mechanism, ForceConfig(kernel=KernelConfig(kind=kernel)), LikelihoodConfig())


def data_of(model: Model, counts: tuple[int, ...]) -> Observations:
    """Each instance with irregular times of its own, and values missing."""
    rng, found = np.random.default_rng(1), []
    for i, count in enumerate(counts):
        times = i - 0.5 + np.cumsum(rng.uniform(0.1, 1.2, count))
        values = rng.normal(size=(len(model.mechanism.outputs), count))
        mask = rng.random(values.shape) > 0.2
        mask[0, 0] = mask[-1, -1] = True
        found.append(Instance(f"i{i}", model.mechanism.outputs, times, np.where(mask, values, 0), mask))
    return collate(found, model.mechanism.outputs)


def draws(model: Model, count: int) -> Tensor:
    return 0.7 * torch.randn(
        count, model.space.num_free, generator=torch.Generator().manual_seed(2), dtype=torch.float64
    )


def queries(data: Observations, shares: Tensor) -> Tensor:
    """Times at these shares of each instance's own span, its own times among them."""
    first, last = data.times[:, :1], data.times[:, -1:]
    return torch.cat([first + (last - first) * shares.double(), data.times], -1).sort(-1).values


def check(found: Moments, expected: Moments) -> None:
    for name in PARTS:
        here, there = getattr(found, name), getattr(expected, name)
        torch.testing.assert_close(here, there, rtol=0, atol=TOLERANCE * float(there.abs().max()), msg=name)


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("kernel", ["rbf", "matern32"])
@pytest.mark.parametrize("shares", [torch.linspace(0, 1, 40), torch.tensor([0.0, 0.4, 1.3, 2.0])], ids=["dense", "few"])
def test_predictions_are_those_of_the_covariances_of_all_outputs_at_all_times(
    name: str, kernel: str, shares: Tensor
) -> None:
    model = model_of(name, kernel)
    data = data_of(model, (4, 7))
    for rule in (Quadrature(), Quadrature(3), Quadrature(1, 1)):
        marginal = LinearGaussian(model, data, probe(model.mechanism, model.space), rule)
        z, rows, query = draws(model, 6), torch.arange(2).repeat(3), queries(data, shares).repeat(3, 1)
        expected = GaussianMarginal.posterior(marginal, z, rows, query)
        check(marginal.posterior(z, rows, query), expected)


@pytest.mark.parametrize("noise", [1e-3, 1e-2])
def test_variances_that_data_leave_next_to_nothing_of_are_still_the_same(noise: float) -> None:
    """What is left is a small difference of large numbers: a tenth of the quadrature's own tolerance is asked for."""
    model = model_of("genes")
    data = data_of(model, (12,))
    z, rows = draws(model, 4), torch.zeros(4, dtype=torch.long)
    z[:, model.space.slice_of("noise")] = float(np.log(noise / 0.1))
    query = queries(data, torch.linspace(0, 1.2, 60)).expand(4, -1)
    marginal = LinearGaussian(model, data, probe(model.mechanism, model.space), Quadrature())
    found, expected = marginal.posterior(z, rows, query), GaussianMarginal.posterior(marginal, z, rows, query)
    prior = marginal.query_prior(model.space.unpack(z), data.times.expand(4, -1), query)[1]
    size = prior.variance.amax(-1).sqrt()[:, None, None]
    for name in ("output_mean", "output_var"):
        here, there = getattr(found, name), getattr(expected, name)
        if name == "output_var":
            here, there = here.sqrt(), there.sqrt()
        assert float(((here - there) / size).abs().max()) < 3e-5


def test_a_batch_is_predicted_as_its_members_are_one_by_one() -> None:
    model = model_of("two forces")
    data = data_of(model, (5, 5, 5))
    marginal = LinearGaussian(model, data, probe(model.mechanism, model.space), Quadrature())
    z, rows, query = draws(model, 3), torch.arange(3), queries(data, torch.linspace(0, 1, 50))
    together = marginal.posterior(z, rows, query)
    for i in range(3):
        alone = marginal.posterior(z[i : i + 1], rows[i : i + 1], query[i : i + 1])
        check(alone, Moments(*(getattr(together, name)[i : i + 1] for name in PARTS)))


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_variance_of_outputs_is_the_quadratic_form_of_their_weights(name: str) -> None:
    model = model_of(name)
    system = extract(model.mechanism, model.space.unpack(draws(model, 2)))
    linearity = probe(model.mechanism, model.space)
    times = torch.tensor([[0.0, 0.3, 0.3, 1.0, 2.5], [1.0, 1.1, 1.5, 1.5, 4.0]], dtype=torch.float64)
    grid = panels(times, 2, 2)
    size, forces = grid.nodes.shape[-1], len(model.mechanism.force_names)
    root = torch.randn(2, forces, size, size, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    among = root @ root.mT
    explained = 0.1 * torch.randn(2, 4, forces, size, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    found = output_variance(system, grid, among.unbind(1), explained, diagonal=linearity.diagonal)
    _, weight = response(system, times, grid, diagonal=linearity.diagonal)  # [B, L, P, N, G]
    before = torch.einsum("blptg,blgh,blpth->bpt", weight, among, weight)
    taken = torch.einsum("blptg,bnlg->bnpt", weight, explained).square().sum(1)
    torch.testing.assert_close(found, before - taken, rtol=1e-10, atol=1e-10 * float(before.max()))
