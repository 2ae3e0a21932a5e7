"""The whitened Gaussian: its KL and samples, and natural gradients that solve a conjugate problem in one step."""

from __future__ import annotations

from collections.abc import Callable

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import MultivariateNormal, kl_divergence

from distlfm.gp.linalg import safe_cholesky
from distlfm.gp.variational import (
    ExpectationGradient,
    NaturalState,
    WhitenedGaussian,
    gaussian_from_natural,
    gaussian_from_unconstrained,
    natural_step,
)


def gaussian_from_moments(mean: Tensor, covariance: Tensor) -> tuple[WhitenedGaussian, Tensor]:
    """Gaussian of mean [B, L, M] and covariance [B, L, M, M], and [B] whether the covariance has a factor."""
    factor, ok = safe_cholesky(covariance, jitter=0.0)
    return WhitenedGaussian(mean, factor), ok.all(-1)


def natural_from_gaussian(gaussian: WhitenedGaussian) -> NaturalState:
    """Natural parameters of a Gaussian."""
    precision = torch.cholesky_inverse(gaussian.scale)
    return NaturalState((precision @ gaussian.mean[..., None])[..., 0], -0.5 * precision)


def expectation_gradient(state: NaturalState, loss: Callable[[WhitenedGaussian], Tensor]) -> ExpectationGradient:
    """Gradient of `loss` [B], each entry of which depends on its own instance only, at `state`.

    By the chain rule from the moments: dL/dη₂ = dL/dΣ and dL/dη₁ = dL/dm − 2 (dL/dΣ) m (Hensman et al. 2013).
    """
    with torch.enable_grad():
        gaussian = gaussian_from_natural(state)
        mean = gaussian.mean.detach().requires_grad_()
        covariance = gaussian.covariance.detach().requires_grad_()
        value = loss(gaussian_from_moments(mean, covariance)[0]).sum()
        by_mean, by_covariance = torch.autograd.grad(value, (mean, covariance), materialize_grads=True)
    by_covariance = 0.5 * (by_covariance + by_covariance.mT)
    return ExpectationGradient(by_mean - 2 * (by_covariance @ mean.detach()[..., None])[..., 0], by_covariance)


def random_gaussian(*shape: int, seed: int = 0) -> WhitenedGaussian:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(shape, generator=generator, dtype=torch.float64)
    raw = 0.3 * torch.randn((*shape, shape[-1]), generator=generator, dtype=torch.float64)
    return gaussian_from_unconstrained(mean, raw)


def natural_prior(*shape: int) -> NaturalState:
    """The state in which q is the prior."""
    mean = torch.zeros(shape, dtype=torch.float64)
    return natural_from_gaussian(gaussian_from_unconstrained(mean, torch.zeros((*shape, shape[-1])).double()))


class Conjugate:
    """y = A v + noise for each instance and force; the exact posterior of v is Gaussian."""

    def __init__(self, batch: int, num_forces: int, num_inducing: int) -> None:
        generator = torch.Generator().manual_seed(3)
        self.design = torch.randn(batch, num_forces, 9, num_inducing, generator=generator, dtype=torch.float64)
        self.observed = torch.randn(batch, num_forces, 9, generator=generator, dtype=torch.float64)
        self.noise_variance = 0.1 + torch.rand(batch, 1, generator=generator, dtype=torch.float64)

    def loss(self, gaussian: WhitenedGaussian) -> Tensor:
        """Negative evidence lower bound [B], in closed form."""
        residual = self.observed - (self.design @ gaussian.mean[..., None])[..., 0]
        spread = (self.design @ gaussian.scale).square().sum((-2, -1))
        expected = 0.5 * (residual.square().sum(-1) + spread) / self.noise_variance
        return expected.sum(-1) + gaussian.kl()

    def posterior(self) -> tuple[Tensor, Tensor]:
        weight = 1 / self.noise_variance[..., None, None]
        precision = torch.eye(self.design.shape[-1]).double() + weight * self.design.mT @ self.design
        covariance = torch.linalg.inv(precision)
        mean = covariance @ (weight * self.design.mT @ self.observed[..., None])
        return mean[..., 0], covariance


def test_one_natural_step_of_rate_one_solves_a_conjugate_problem() -> None:
    problem = Conjugate(3, 2, 5)
    state = natural_from_gaussian(random_gaussian(3, 2, 5))
    state, ok = natural_step(state, expectation_gradient(state, problem.loss), 1.0)
    assert ok.all()
    mean, covariance = problem.posterior()
    found = gaussian_from_natural(state)
    torch.testing.assert_close(found.mean, mean, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.covariance, covariance, rtol=1e-9, atol=1e-9)


def test_half_steps_by_instance_move_only_those_instances() -> None:
    problem = Conjugate(3, 2, 4)
    start = natural_prior(3, 2, 4)
    gradient = expectation_gradient(start, problem.loss)
    moved = natural_step(start, gradient, torch.tensor([0.0, 0.5, 1.0])).state
    assert torch.equal(moved.second[0], start.second[0])
    whole = natural_step(start, gradient, 1.0).state
    torch.testing.assert_close(moved.second[1], 0.5 * (start.second[1] + whole.second[1]))
    torch.testing.assert_close(moved.first[2], whole.first[2])


def test_natural_gradients_of_sampled_losses_agree_with_the_closed_form() -> None:
    problem = Conjugate(2, 1, 3)
    state = natural_from_gaussian(random_gaussian(2, 1, 3))
    noise = torch.randn(40_000, 2, 1, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def sampled(gaussian: WhitenedGaussian) -> Tensor:
        v = gaussian.sample_whitened(noise)
        residual = problem.observed - (problem.design @ v[..., None])[..., 0]
        return (0.5 * residual.square().sum(-1) / problem.noise_variance).sum(-1).mean(0) + gaussian.kl()

    exact, estimate = expectation_gradient(state, problem.loss), expectation_gradient(state, sampled)
    torch.testing.assert_close(estimate.first, exact.first, rtol=0.05, atol=2.0)
    torch.testing.assert_close(estimate.second, exact.second, rtol=0.05, atol=1.0)


def test_a_step_too_far_is_not_taken_and_changes_no_bit_of_the_others() -> None:
    start = natural_prior(3, 1, 4)
    gradient = expectation_gradient(start, Conjugate(3, 1, 4).loss)
    expected = natural_step(start, gradient, 1.0).state
    for spoil in (-1e6, torch.nan, torch.inf):
        second = gradient.second.clone()
        second[1] = spoil
        state, ok = natural_step(start, ExpectationGradient(gradient.first, second), 1.0)
        assert ok.tolist() == [True, False, True]
        assert torch.equal(state.first[1], start.first[1])
        assert torch.equal(state.second[1], start.second[1])
        assert torch.equal(state.second[[0, 2]], expected.second[[0, 2]])


@settings(max_examples=20, deadline=None)
@given(batch=st.integers(1, 3), num_forces=st.integers(1, 2), num_inducing=st.integers(1, 5), seed=st.integers(0, 99))
def test_kl_is_torchs_and_parametrisations_agree(batch: int, num_forces: int, num_inducing: int, seed: int) -> None:
    gaussian = random_gaussian(batch, num_forces, num_inducing, seed=seed)
    normal = MultivariateNormal(gaussian.mean, scale_tril=gaussian.scale)
    standard = MultivariateNormal(torch.zeros(num_inducing).double(), torch.eye(num_inducing).double())
    torch.testing.assert_close(gaussian.kl(), kl_divergence(normal, standard).sum(-1))
    again = gaussian_from_natural(natural_from_gaussian(gaussian))
    torch.testing.assert_close(again.mean, gaussian.mean, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(again.covariance, gaussian.covariance, rtol=1e-8, atol=1e-8)
    from_moments, ok = gaussian_from_moments(gaussian.mean, gaussian.covariance)
    assert ok.all()
    torch.testing.assert_close(from_moments.scale, gaussian.scale, rtol=1e-7, atol=1e-7)
    noise = torch.randn(6, batch, num_forces, num_inducing, dtype=torch.float64)
    assert gaussian.sample_whitened(noise).shape == noise.shape


def test_zeros_are_the_prior() -> None:
    gaussian = gaussian_from_unconstrained(torch.zeros(2, 1, 3), torch.zeros(2, 1, 3, 3))
    assert gaussian.kl().tolist() == [0, 0]
    prior = gaussian_from_natural(natural_prior(2, 1, 3))
    assert prior.kl().tolist() == [0, 0]


def test_the_upper_triangle_of_the_raw_scale_does_not_count() -> None:
    raw = torch.randn(1, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    mean = torch.zeros(1, 1, 3)
    first = gaussian_from_unconstrained(mean, raw).scale
    assert torch.equal(gaussian_from_unconstrained(mean, raw + torch.ones(3, 3).triu(1)).scale, first)


def test_samples_have_the_moments() -> None:
    gaussian = random_gaussian(1, 1, 3)
    noise = torch.randn(50_000, 1, 1, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    samples = gaussian.sample_whitened(noise)
    torch.testing.assert_close(samples.mean(0), gaussian.mean, rtol=0, atol=0.03)
    torch.testing.assert_close(samples[:, 0, 0].mT.cov(), gaussian.covariance[0, 0], rtol=0, atol=0.05)
