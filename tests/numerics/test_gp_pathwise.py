"""Draws: functions with the right covariance, that pass through the inducing values, each instance by itself.

A draw is linear in its noise, so its covariance is found exactly by giving it all unit vectors as samples.
"""

from __future__ import annotations

import pytest
import torch
from gpytorch.kernels import Kernel, LinearKernel, RBFKernel, RQKernel
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.gp.inducing import place_on_box
from distlfm.gp.kernels import FunctionalKernel, KernelConfig
from distlfm.gp.linalg import solve_samples
from distlfm.gp.pathwise import Domain, Draw, ForcePrior, draw_posterior, draw_prior, instance_noise, make_base_noise

RBF, PERIODIC = KernelConfig(kind="rbf"), KernelConfig(kind="periodic")
CASES: dict[str, tuple[KernelConfig | Kernel, int, int, float]] = {
    "rbf": (RBF, 1, 64, 1e-9),
    "matern12": (KernelConfig(kind="matern12"), 1, 256, 2e-2),
    "matern32": (KernelConfig(kind="matern32"), 1, 128, 2e-4),
    "matern52": (KernelConfig(kind="matern52"), 1, 128, 1e-5),
    "periodic": (PERIODIC, 1, 64, 1e-8),
    "rbf_times_periodic": (KernelConfig(kind="product", parts=(RBF, PERIODIC)), 1, 256, 2e-3),
    "rbf_plus_periodic": (KernelConfig(kind="sum", parts=(RBF, PERIODIC)), 1, 64, 1e-8),
    "ard_in_two_dimensions": (RBF, 2, 256, 1e-6),
    "matern_in_two_dimensions": (KernelConfig(kind="matern52"), 2, 512, 1e-2),
    "user_rq_by_nystrom": (RQKernel(), 1, 64, 1e-8),
    "user_linear_times_rbf_by_nystrom": (LinearKernel() * RBFKernel(), 1, 64, 1e-8),
    "user_rq_in_two_dimensions_by_nystrom": (RQKernel(), 2, 64, 1e-2),
}
"""Kernel, dimensions, features, and the greatest error of a covariance relative to the variance."""


def setup(
    config: KernelConfig | Kernel, num_dims: int, batch: int = 1
) -> tuple[ForcePrior, list[dict[str, Tensor]], Domain]:
    kernel = FunctionalKernel(config, num_dims)
    hyper = {}
    for name, shape in kernel.shapes.items():
        value = 1.5 if name.endswith("variance") else 0.4
        spread = 1 + 0.2 * torch.arange(batch, dtype=torch.float64)
        hyper[name] = (value * spread).reshape(batch, *[1] * len(shape)).expand(batch, *shape).clone()
    lower = torch.zeros(batch, num_dims, dtype=torch.float64)
    return ForcePrior((kernel,)), [hyper], Domain(lower, lower + 1)


def unit_noise(num_features: int) -> Tensor:
    count = 2 * num_features
    return torch.eye(count, dtype=torch.float64).reshape(count, 1, 1, 2, num_features)


def points(num: int, num_dims: int, seed: int = 0) -> Tensor:
    return torch.rand(1, num, num_dims, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", CASES)
def test_prior_draws_have_the_kernels_covariance(name: str) -> None:
    config, num_dims, num_features, error = CASES[name]
    prior, hyper, domain = setup(config, num_dims)
    x = points(100, num_dims)
    values = draw_prior(prior, hyper, domain, unit_noise(num_features))(x)[:, 0, 0]
    exact = prior.covariance(hyper, x, x)[0, 0]
    assert (values.mT @ values - exact).abs().max() < error * exact.max()


@pytest.mark.parametrize("name", CASES)
def test_posterior_draws_have_the_moments_of_the_exact_conditional(name: str) -> None:
    config, num_dims, num_features, error = CASES[name]
    prior, hyper, domain = setup(config, num_dims)
    inducing = place_on_box(*domain, [8 if num_dims == 1 else 4] * num_dims)
    x = points(60, num_dims)
    tiny = 1e-12 * torch.eye(inducing.shape[-2], dtype=torch.float64)  # a linear kernel is zero at zero
    gram, cross = prior.covariance(hyper, inducing, inducing)[0, 0] + tiny, prior.covariance(hyper, x, inducing)[0, 0]
    target = torch.sin(5 * inducing.sum(-1))[0]
    # Without noise the draw is the conditional mean; the unit vectors, with u = 0, give the covariance.
    zero = torch.zeros(1, 1, 1, 2, num_features, dtype=torch.float64)
    whitened = solve_samples(prior.factor(hyper, inducing).factor, target.reshape(1, 1, 1, -1))
    mean = draw_posterior(prior, hyper, domain, zero, inducing, whitened)(x)[0, 0, 0]
    exact_mean = cross @ torch.linalg.solve(gram, target)
    assert (mean - exact_mean).abs().max() < 1e-5
    nothing = torch.zeros(2 * num_features, 1, 1, inducing.shape[-2], dtype=torch.float64)
    values = draw_posterior(prior, hyper, domain, unit_noise(num_features), inducing, nothing)(x)[:, 0, 0]
    own = prior.covariance(hyper, x, x)[0, 0]
    exact = own - cross @ torch.linalg.solve(gram, cross.mT)
    assert (values.mT @ values - exact).abs().max() < 2 * error * own.max()


def test_random_draws_have_the_kernels_covariance_within_sampling_error() -> None:
    prior, hyper, domain = setup(KernelConfig(kind="matern32"), 1)
    x = points(10, 1)
    num_samples = 20_000
    values = draw_prior(prior, hyper, domain, make_base_noise([7], num_samples, 1, 64))(x)[:, 0, 0]
    exact = prior.covariance(hyper, x, x)[0, 0]
    assert (values.mT @ values / num_samples - exact).abs().max() < 5 * exact.max() * (2 / num_samples) ** 0.5
    assert values.mean(0).abs().max() < 5 * (exact.max() / num_samples) ** 0.5


def test_the_variance_that_a_nystrom_basis_misses_is_small_between_its_points() -> None:
    prior, hyper, domain = setup(RQKernel(), 1)
    x = torch.linspace(0, 1, 301, dtype=torch.float64)[None, :, None]
    for num_features, error in ((4, 5e-2), (8, 1e-4), (16, 1e-8)):
        values = draw_prior(prior, hyper, domain, unit_noise(num_features))(x)[:, 0, 0]
        missing = prior.kernels[0].diagonal(hyper[0], x)[0] - values.square().sum(0)
        assert missing.max() < error * hyper[0]["variance"]
        assert missing.min() > -1e-8


@pytest.mark.parametrize("name", CASES)
def test_posterior_draws_pass_through_the_inducing_values(name: str) -> None:
    config, num_dims, num_features, _ = CASES[name]
    prior, hyper, domain = setup(config, num_dims, batch=2)
    inducing = place_on_box(*domain, [8 if num_dims == 1 else 3] * num_dims)
    noise = make_base_noise([1, 2], 3, 1, num_features)
    whitened = instance_noise([3, 4], 3, 1, inducing.shape[-2]).transpose(0, 1)
    factor, _ = prior.factor(hyper, inducing)
    u = (factor @ whitened[..., None])[..., 0]
    draw = draw_posterior(prior, hyper, domain, noise, inducing, whitened)
    assert draw.ok.all()
    torch.testing.assert_close(draw(inducing), u, rtol=0, atol=1e-4)


def two_force_draw(seeds: list[int], spread: Tensor) -> tuple[Draw, Tensor]:
    """A posterior draw of a Matérn and an RQ force, each instance by its own seed and lengthscale [B]."""
    kernels = (FunctionalKernel(KernelConfig(kind="matern52")), FunctionalKernel(RQKernel()))
    hyper = [dict.fromkeys(kernel.parameter_names, 0.3 * spread) for kernel in kernels]
    lower = torch.zeros(len(seeds), 1, dtype=torch.float64)
    domain = Domain(lower, lower + spread[:, None])
    inducing = place_on_box(*domain, [6])
    noise = make_base_noise(seeds, 4, 2, 32)
    whitened = instance_noise([seed + 100 for seed in seeds], 4, 2, 6).transpose(0, 1)
    return draw_posterior(ForcePrior(kernels), hyper, domain, noise, inducing, whitened), inducing


def assert_same(values: Tensor, expected: Tensor) -> None:
    """Equal but for the order of additions, which a Nyström basis (the second force) has large weights to amplify."""
    torch.testing.assert_close(values[..., 0, :], expected[..., 0, :], rtol=0, atol=1e-12)
    torch.testing.assert_close(values[..., 1, :], expected[..., 1, :], rtol=0, atol=1e-8)


def test_a_draw_is_a_function() -> None:
    draw, _ = two_force_draw([1, 2, 3], torch.tensor([1.0, 1.5, 2.0]).double())
    grid = torch.linspace(0, 1, 40, dtype=torch.float64)[:, None]
    first = draw(grid)
    draw(points(7, 1).expand(3, -1, -1))
    assert torch.equal(draw(grid), first)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    assert_same(draw(grid[5:6]), first[..., 5:6])
    assert_same(draw(grid[order]), first[..., order])


def test_inputs_may_be_shared_or_differ_between_instances_and_samples() -> None:
    draw, _ = two_force_draw([1, 2, 3], torch.tensor([1.0, 1.5, 2.0]).double())
    x = points(5, 1)[0]
    shared = draw(x)
    assert shared.shape == (4, 3, 2, 5)
    assert_same(draw(x.expand(3, -1, -1)), shared)
    assert_same(draw(x.expand(4, 3, -1, -1)), shared)
    shifted = x + torch.arange(4).double().reshape(4, 1, 1, 1) / 10
    each = draw(shifted.expand(4, 3, -1, -1))
    assert_same(each[2], draw(x + 0.2)[2])


def test_batch_equals_loop() -> None:
    spread = torch.tensor([1.0, 1.5, 2.0]).double()
    batch, _ = two_force_draw([11, 12, 13], spread)
    x = points(9, 1)[0]
    for b in range(3):
        alone, _ = two_force_draw([11 + b], spread[b : b + 1])
        assert_same(batch(x)[:, b : b + 1], alone(x))


def test_a_bad_instance_is_flagged_and_changes_no_bit_of_the_others() -> None:
    good = torch.tensor([1.0, 1.5, 2.0]).double()
    bad = torch.tensor([1.0, torch.nan, 2.0]).double()
    x = points(9, 1)[0]
    expected, _ = two_force_draw([1, 2, 3], good)
    spoiled, _ = two_force_draw([1, 2, 3], bad)
    assert spoiled.ok.tolist() == [True, False, True]
    assert torch.equal(spoiled(x)[:, [0, 2]], expected(x)[:, [0, 2]])


def test_gradients_reach_hyperparameters_and_whitened_values() -> None:
    prior, hyper, domain = setup(RBF, 1)
    inducing = place_on_box(*domain, [5])
    noise = make_base_noise([5], 2, 1, 16)
    x = points(4, 1)
    whitened = instance_noise([6], 2, 1, 5).transpose(0, 1).requires_grad_()

    def values(variance: Tensor, lengthscale: Tensor, v: Tensor) -> Tensor:
        each = [{"variance": variance, "lengthscale": lengthscale}]
        return draw_posterior(prior, each, domain, noise, inducing, v)(x)

    inputs = (hyper[0]["variance"].requires_grad_(), hyper[0]["lengthscale"].requires_grad_(), whitened)
    assert torch.autograd.gradcheck(values, inputs)


@settings(max_examples=25, deadline=None)
@given(
    num_samples=st.integers(1, 3),
    batch=st.integers(1, 3),
    num_forces=st.integers(1, 3),
    n=st.integers(1, 4),
    num_dims=st.integers(1, 3),
    kind=st.sampled_from(["rbf", "matern12", "periodic", "rq"]),
)
def test_values_have_the_promised_layout(
    num_samples: int, batch: int, num_forces: int, n: int, num_dims: int, kind: str
) -> None:
    config = RQKernel() if kind == "rq" else KernelConfig.model_validate({"kind": kind})
    one, hyper, domain = setup(config, num_dims, batch)
    prior = ForcePrior(one.kernels * num_forces)
    noise = make_base_noise(list(range(batch)), num_samples, num_forces, 16)
    draw = draw_prior(prior, hyper * num_forces, domain, noise)
    values = draw(points(n, num_dims).expand(batch, n, num_dims))
    assert values.shape == (num_samples, batch, num_forces, n)
    assert values.isfinite().all()


def test_too_few_features_for_a_basis_are_refused() -> None:
    prior, hyper, domain = setup(RQKernel(), 3)
    with pytest.raises(UsageError, match="Give more features"):
        draw_prior(prior, hyper, domain, make_base_noise([1], 1, 1, 2))
