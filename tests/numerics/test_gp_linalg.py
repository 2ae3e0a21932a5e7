"""Cholesky factors: exact where they can be, flagged where they cannot, and each alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from distlfm.gp.linalg import JITTER, safe_cholesky


def positive_definite(*shape: int, seed: int = 0) -> Tensor:
    root = torch.randn(*shape, shape[-1], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return root @ root.mT + torch.eye(shape[-1], dtype=torch.float64)


def rbf_matrix(lengthscale: float, n: int = 40) -> Tensor:
    x = torch.linspace(0, 1, n, dtype=torch.float64)
    return torch.exp(-0.5 * ((x[:, None] - x) / lengthscale) ** 2)


def test_the_factor_reproduces_the_matrix() -> None:
    matrix = positive_definite(2, 3, 6)
    factor, ok = safe_cholesky(matrix)
    assert ok.shape == (2, 3)
    assert ok.all()
    torch.testing.assert_close(factor @ factor.mT, matrix, rtol=1e-8, atol=1e-8)


def test_a_singular_matrix_is_mended_by_jitter_of_the_stated_size() -> None:
    matrix = rbf_matrix(5.0)
    assert torch.linalg.cholesky_ex(matrix).info > 0
    factor, ok = safe_cholesky(matrix)
    assert ok
    assert (factor @ factor.mT - matrix).abs().max() < 2 * JITTER[torch.float64]


def test_more_jitter_is_given_only_to_those_that_need_it() -> None:
    needy = torch.diag(torch.tensor([1.0, 1.0, -1e-7], dtype=torch.float64))
    matrix = torch.stack([positive_definite(3), needy, positive_definite(3, seed=1)])
    factor, ok = safe_cholesky(matrix)
    assert ok.all()
    alone = safe_cholesky(torch.stack([matrix[0], matrix[0], matrix[2]])).factor
    assert torch.equal(factor[0], alone[0])
    assert torch.equal(factor[2], alone[2])


@pytest.mark.parametrize("bad", ["indefinite", "nan", "inf", "zero", "negative"])
def test_a_bad_matrix_is_flagged_and_changes_no_bit_of_the_others(bad: str) -> None:
    good = positive_definite(3, 5)
    spoiled = good.clone()
    spoiled[1] = {
        "indefinite": torch.diag(torch.tensor([1.0, -1, 1, 1, 1]).double()),
        "nan": torch.full((5, 5), torch.nan).double(),
        "inf": torch.full((5, 5), torch.inf).double(),
        "zero": torch.zeros(5, 5).double(),
        "negative": -torch.eye(5).double(),
    }[bad]
    expected = safe_cholesky(good).factor
    factor, ok = safe_cholesky(spoiled.requires_grad_())
    assert ok.tolist() == [True, False, True]
    assert torch.equal(factor[0], expected[0])
    assert torch.equal(factor[2], expected[2])
    assert torch.equal(factor[1], torch.eye(5, dtype=torch.float64))
    factor.square().sum().backward()
    reference = good.clone().requires_grad_()
    safe_cholesky(reference).factor.square().sum().backward()
    assert spoiled.grad is not None
    assert reference.grad is not None
    assert torch.equal(spoiled.grad[0], reference.grad[0])
    assert torch.equal(spoiled.grad[1], torch.zeros(5, 5, dtype=torch.float64))


def test_gradient_matches_finite_differences() -> None:
    root = positive_definite(2, 4).requires_grad_()
    assert torch.autograd.gradcheck(lambda a: safe_cholesky(a @ a.mT).factor, root)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("lengthscale", [0.01, 0.1, 1.0, 10.0])
def test_smooth_kernels_factor_at_the_first_attempt(dtype: torch.dtype, lengthscale: float) -> None:
    matrix = rbf_matrix(lengthscale, 64).to(dtype)
    factor, ok = safe_cholesky(matrix)
    assert ok
    assert (factor @ factor.mT - matrix).abs().max() < 2 * JITTER[dtype]
