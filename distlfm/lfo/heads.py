"""From channels on a grid to forces and parameters. Parameters are pooled in function space: only integrals are seen.

Shapes: `B` instances, `W` channels, `L` forces, `K` parameters, `S` numbers that summarise an instance.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from distlfm.lfo.settings import OperatorConfig
from distlfm.lfo.spectral import quadrature, ridge, table

RIDGE = 1e-4
"""Added to a correlation matrix, or to the mean square of a channel, before it is inverted."""


class Projection(nn.Module):
    """u [B, *grid, W] → [B, *grid, out], at each point alike, modulated by what is known of the whole instance."""

    def __init__(self, width: int, hidden: int, summary: int, out: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, hidden), nn.Linear(hidden, out)
        self.modulate = nn.Linear(summary, 2 * hidden)

    def forward(self, u: Tensor, summary: Tensor) -> Tensor:
        """summary: [B, S]."""
        gain, shift = self.modulate(summary)[(slice(None), *(None,) * (u.dim() - 2))].chunk(2, -1)
        found: Tensor = self.outer(nn.functional.silu(self.inner(u) * (1 + gain) + shift))
        return found


class HeadOutput(NamedTuple):
    """force, force_logvar: [B, L, *grid]; params, params_logvar: [B, K]; summary: [B, S]. All standardised."""

    force: Tensor
    force_logvar: Tensor
    params: Tensor
    params_logvar: Tensor
    summary: Tensor


class Regressions(nn.Module):
    """Least-squares fits over the domain of some channels by others: coefficients and what they leave, [B, features].

    Parameters of an equation are coefficients between functions; integrals of products tell them only through the
    inverse of a matrix, which is hard to learn and easy to compute.
    """

    def __init__(self, width: int, number: int, regressors: int) -> None:
        super().__init__()
        self.number, self.regressors = number, regressors
        self.mix = nn.Linear(width, number * (regressors + 1))

    def forward(self, u: Tensor) -> Tensor:
        """u: [B, *grid, W]."""
        q = self.mix(u).flatten(1, -2)
        # All products of all channels, of which few are wanted, are one product of matrices and not many small ones.
        every = ((q * domain_weights(u)).mT @ q).unflatten(2, (self.number, -1)).unflatten(1, (self.number, -1))
        products = every.diagonal(dim1=1, dim2=3).movedim(-1, 1)  # [B, number, regressors + 1, regressors + 1]
        norm = (products.diagonal(dim1=-2, dim2=-1) + RIDGE).sqrt()
        products = products / (norm.unsqueeze(-1) * norm.unsqueeze(-2))
        r = self.regressors
        gram = products[..., :r, :r] + ridge(r, RIDGE, q.dtype, q.device)
        right = products[..., :r, r:]
        # Formats for export know products and sums, but not every one of them a solver.
        solve = eliminated if torch.compiler.is_exporting() else torch.linalg.solve
        coefficients = solve(gram, right)
        left = (products[..., r, r] - (right * coefficients).sum((-1, -2))).clamp_min(0) + RIDGE
        found = torch.cat([torch.asinh(coefficients.squeeze(-1)), 0.3 * left.log().unsqueeze(-1)], -1)
        return found.flatten(1)


def eliminated(matrix: Tensor, right: Tensor) -> Tensor:
    """The solution [..., r, c] for small positive definite matrices [..., r, r], by elimination without pivots."""
    size = matrix.shape[-1]
    whole = torch.cat([matrix, right], -1)
    for k in range(size):
        pivot = whole[..., k : k + 1, :] / whole[..., k : k + 1, k : k + 1]
        others = torch.ones(size, 1, dtype=whole.dtype, device=whole.device)
        others[k] = 0
        kept = whole * others - (whole[..., :, k : k + 1] * others) * pivot
        whole = kept + (1 - others) * pivot
    return whole[..., size:]


class Stage(nn.Module):
    """Forces and parameters from channels u [B, *grid, W] and what was known before, [B, S]."""

    def __init__(self, width: int, known: int, config: OperatorConfig, forces: int, params: int) -> None:
        super().__init__()
        pooled = config.pooled
        self.pool = nn.Linear(width, pooled)
        features = pooled + pooled * (pooled + 1) // 2 + known
        self.regress = Regressions(width, config.regressions, config.regressors) if config.regressions else None
        features += config.regressions * (config.regressors + 1)
        self.head = nn.Sequential(
            nn.LayerNorm(features),
            nn.Linear(features, config.head),
            nn.SiLU(),
            nn.Linear(config.head, config.head),
            nn.SiLU(),
        )
        self.estimate = nn.Linear(config.head, 2 * params)
        self.project = Projection(width, 2 * config.width, config.head, 2 * forces)
        self.level = nn.Linear(config.head, forces)

    def forward(self, u: Tensor, known: Tensor) -> HeadOutput:
        inputs = [self.pooled(u), known]
        if self.regress is not None:
            inputs.append(self.regress(u))
        summary = self.head(torch.cat(inputs, -1))
        force, force_logvar = self.project(u, summary).movedim(-1, 1).chunk(2, 1)
        force = force + self.level(summary).view(*force.shape[:2], *(1,) * (force.dim() - 2))
        params, params_logvar = self.estimate(summary).chunk(2, -1)
        return HeadOutput(force, force_logvar, params, params_logvar, summary)

    def pooled(self, u: Tensor) -> Tensor:
        """Integrals over the domain of some channels and of all their products, [B, features]."""
        q = self.pool(u)
        q = q.flatten(1, -2)
        weighted = q * domain_weights(u)
        products = weighted.mT @ q
        return torch.cat([weighted.sum(1), products.flatten(1).index_select(1, upper(q.shape[-1], q.device))], -1)


@table
def upper(size: int, device: torch.device) -> Tensor:
    """Where the upper triangle of a matrix [size, size] is, once that is flat."""
    rows, columns = torch.triu_indices(size, size, device=device)
    index: Tensor = rows * size + columns
    return index


def domain_weights(u: Tensor) -> Tensor:
    """Quadrature weights [points, 1] of the domain of u [B, *points, W]."""
    return _domain_weights(tuple(u.shape[1:-1]), u.dtype, u.device)


@table
def _domain_weights(points: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    weights = torch.ones((), dtype=dtype, device=device)
    for n in points:
        weights = weights.unsqueeze(-1) * quadrature(n, dtype, device)
    return weights.reshape(-1, 1)
