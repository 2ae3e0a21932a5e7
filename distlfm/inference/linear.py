"""Linear mechanisms are exact: given the unknowns z, outputs and force are jointly Gaussian.

The force enters through its values at the quadrature nodes of `solvers.linear`; it is integrated out in closed form, so
the marginal likelihood of z has no sampling noise and needs no inducing points.

Shapes: `B` instances, `N = P·T` observations, `L` forces, `G` nodes, `Q` query times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.gaussian import log_normal
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.mechanisms.parameters import Values
from distlfm.solvers.linear import Linearity, Panels, extract, panels, response


@dataclass(frozen=True)
class Quadrature:
    """How finely the time between two observations is cut."""

    substeps: int = 1
    order: int = 4

    def finer(self) -> Quadrature:
        return Quadrature(2 * self.substeps, self.order)


@dataclass(frozen=True)
class Moments:
    """Posterior at query times given z. force_mean, force_var: [B, L, Q]; output_mean, output_var: [B, P, Q]."""

    force_mean: Tensor
    force_var: Tensor
    output_mean: Tensor
    output_var: Tensor


class LinearGaussian:
    """The marginal likelihood and the posterior of a linear mechanism."""

    def __init__(self, model: Model, observations: Observations, linearity: Linearity, quadrature: Quadrature) -> None:
        assert linearity.affine
        self.model, self.observations = model, observations
        self.linearity, self.quadrature = linearity, quadrature

    def log_marginal(self, z: Tensor, rows: Tensor) -> Tensor:
        """log p(y | z) of the instances `rows` [A] at z [A, n]; −∞ where the covariance cannot be factored."""
        data = self.observations.rows(rows)
        values = self.model.space.unpack(z)
        grid = self._grid(data.times)
        offset, weight = self._map(values, data.times, grid)
        covariance, residual = self._observed(values, data, offset, self._propagate(values, weight, grid.nodes))
        return log_normal(covariance, residual) - 0.5 * data.mask.flatten(-2).sum(-1) * math.log(2 * math.pi)

    def _grid(self, breaks: Tensor) -> Panels:
        return panels(breaks, self.quadrature.substeps, self.quadrature.order)

    def _map(self, values: Values, times: Tensor, grid: Panels) -> tuple[Tensor, Tensor]:
        """Offset [B, N] and weight [B, L, N, G] of the outputs at `times`."""
        system = extract(self.model.mechanism, values)
        offset, weight = response(system, times, grid, diagonal=self.linearity.diagonal)
        return offset.flatten(-2), weight.flatten(-3, -2)

    def _propagate(self, values: Values, weight: Tensor, nodes: Tensor) -> Tensor:
        """Prior covariance of the outputs, [B, N, N]."""
        total: Tensor | None = None
        for i, (kernel, hyper) in enumerate(zip(self.model.kernels, self.model.hyper(values), strict=True)):
            among = kernel.covariance(hyper, nodes.unsqueeze(-1), nodes.unsqueeze(-1))
            part = weight[:, i] @ among @ weight[:, i].mT
            total = part if total is None else total + part
        assert total is not None
        return total

    def _observed(
        self, values: Values, data: Observations, offset: Tensor, covariance: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Covariance with noise [B, N, N] and residual [B, N] of what was observed.

        An unobserved value becomes an independent one that equals its mean, so that shapes stay common.
        """
        mask = data.mask.flatten(-2)
        noise = self.model.noise_variance(values, data).flatten(-2)
        residual = data.values.flatten(-2) - offset
        if not bool(mask.all()):
            covariance = covariance * (mask.unsqueeze(-1) & mask.unsqueeze(-2))
            noise = torch.where(mask, noise, torch.ones_like(noise))
            residual = torch.where(mask, residual, torch.zeros_like(residual))
        return covariance + torch.diag_embed(noise), residual

    def posterior(self, z: Tensor, rows: Tensor, times: Tensor) -> Moments:
        """Force and outputs at `times` [A, Q] (sorted, none before the first observation) given z [A, n]."""
        data = self.observations.rows(rows)
        values = self.model.space.unpack(z)
        grid = self._grid(torch.sort(torch.cat([data.times, times], -1), -1).values)
        offset, weight = self._map(values, data.times, grid)
        query_offset, query_weight = self._map(values, times, grid)
        covariance, residual = self._observed(values, data, offset, self._propagate(values, weight, grid.nodes))
        factor, _ = safe_cholesky(covariance)
        solved = torch.cholesky_solve(residual.unsqueeze(-1), factor)
        mask = data.mask.flatten(-2).unsqueeze(-2)

        force_mean, force_var = [], []
        output_cross, output_prior = torch.zeros(()), torch.zeros(())
        nodes = grid.nodes.unsqueeze(-1)
        for i, (kernel, hyper) in enumerate(zip(self.model.kernels, self.model.hyper(values), strict=True)):
            at_nodes = kernel.covariance(hyper, times.unsqueeze(-1), nodes)
            cross = (at_nodes @ weight[:, i].mT) * mask
            force_mean.append((cross @ solved).squeeze(-1))
            explained = torch.linalg.solve_triangular(factor, cross.mT, upper=False)
            force_var.append(kernel.diagonal(hyper, times.unsqueeze(-1)) - explained.square().sum(-2))
            pushed = query_weight[:, i] @ kernel.covariance(hyper, nodes, nodes)
            output_prior = output_prior + (pushed * query_weight[:, i]).sum(-1)
            output_cross = output_cross + (pushed @ weight[:, i].mT) * mask
        explained = torch.linalg.solve_triangular(factor, output_cross.mT, upper=False)
        shape = (len(rows), len(self.model.mechanism.outputs), times.shape[-1])
        return Moments(
            torch.stack(force_mean, 1),
            torch.stack(force_var, 1).clamp_min(0),
            (query_offset + (output_cross @ solved).squeeze(-1)).reshape(shape),
            (output_prior - explained.square().sum(-2)).clamp_min(0).reshape(shape),
        )
