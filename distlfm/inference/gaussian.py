"""The log-density of a centred Gaussian with a gradient of its own.

Differentiating through the Cholesky factorisation costs three triangular solves a matrix; the gradient in closed form,
½ (ααᵀ − Σ⁻¹) with α = Σ⁻¹ r, costs one inverse.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from distlfm.gp.linalg import safe_cholesky


class _LogNormal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, covariance: Tensor, residual: Tensor) -> Tensor:
        factor, ok = safe_cholesky(covariance)
        solved = torch.cholesky_solve(residual.unsqueeze(-1), factor).squeeze(-1)
        volume = torch.log(torch.diagonal(factor, dim1=-2, dim2=-1)).sum(-1)
        ctx.save_for_backward(factor, solved, ok)
        density = -0.5 * (residual * solved).sum(-1) - volume
        return torch.where(ok & torch.isfinite(density), density, -torch.inf)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        factor, solved, ok = ctx.saved_tensors
        share = torch.where(ok, grad, torch.zeros_like(grad))
        inverse = torch.cholesky_inverse(factor)
        outer = solved.unsqueeze(-1) * solved.unsqueeze(-2)
        return 0.5 * share[..., None, None] * (outer - inverse), -share.unsqueeze(-1) * solved


def log_normal(covariance: Tensor, residual: Tensor) -> Tensor:
    """log N(residual | 0, covariance) without its constant, [...]; −∞ where the matrix cannot be factored.

    covariance: [..., N, N], residual: [..., N]. Differentiable once.
    """
    density: Tensor = _LogNormal.apply(covariance, residual)  # type: ignore[no-untyped-call]
    return density
