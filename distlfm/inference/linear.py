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
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.mechanisms.parameters import Values
from distlfm.solvers.linear import Linearity, extract, panels, response


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
        offset, weight = self._map(values, data.times, data.times)
        nodes = panels(data.times, self.quadrature.substeps, self.quadrature.order).nodes
        covariance = self._propagate(values, weight, nodes, weight, nodes)
        factor, ok, residual, count = self._condition(values, data, offset, covariance)
        fit = (residual * torch.cholesky_solve(residual.unsqueeze(-1), factor).squeeze(-1)).sum(-1)
        volume = 2 * torch.log(torch.diagonal(factor, dim1=-2, dim2=-1)).sum(-1)
        log_density = -0.5 * (fit + volume + count * math.log(2 * math.pi))
        return torch.where(ok & torch.isfinite(log_density), log_density, -torch.inf)

    def _map(self, values: Values, times: Tensor, breaks: Tensor) -> tuple[Tensor, Tensor]:
        """Offset [B, N] and weight [B, L, N, G] of the outputs at `times`, with panels between `breaks`."""
        grid = panels(breaks, self.quadrature.substeps, self.quadrature.order)
        offset, weight = response(extract(self.model.mechanism, values), times, grid, diagonal=self.linearity.diagonal)
        return offset.flatten(-2), weight.flatten(-3, -2)

    def _propagate(self, values: Values, left: Tensor, s1: Tensor, right: Tensor, s2: Tensor) -> Tensor:
        """Prior covariance of two linear functionals of the forces, [B, N1, N2]."""
        total: Tensor | None = None
        for i, (kernel, hyper) in enumerate(zip(self.model.kernels, self.model.hyper(values), strict=True)):
            between = kernel.covariance(hyper, s1.unsqueeze(-1), s2.unsqueeze(-1))
            part = left[:, i] @ between @ right[:, i].mT
            total = part if total is None else total + part
        assert total is not None
        return total

    def _condition(
        self, values: Values, data: Observations, offset: Tensor, covariance: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Factor of the observed covariance [B, N, N], its flag, the residual [B, N], and the number observed [B].

        An unobserved value becomes an independent one that equals its mean, so that shapes stay common.
        """
        mask = data.mask.flatten(-2)
        noise = self.model.noise_variance(values, data).flatten(-2)
        both = mask.unsqueeze(-1) & mask.unsqueeze(-2)
        diagonal = torch.where(mask, noise, torch.ones_like(noise))
        factor, ok = safe_cholesky(covariance * both + torch.diag_embed(diagonal))
        residual = torch.where(mask, data.values.flatten(-2) - offset, torch.zeros_like(offset))
        return factor, ok, residual, mask.sum(-1)

    def posterior(self, z: Tensor, rows: Tensor, times: Tensor) -> Moments:
        """Force and outputs at `times` [A, Q] (sorted, none before the first observation) given z [A, n]."""
        data = self.observations.rows(rows)
        values = self.model.space.unpack(z)
        breaks = torch.sort(torch.cat([data.times, times], -1), -1).values
        nodes = panels(breaks, self.quadrature.substeps, self.quadrature.order).nodes
        offset, weight = self._map(values, data.times, breaks)
        query_offset, query_weight = self._map(values, times, breaks)
        hypers = self.model.hyper(values)

        covariance = self._propagate(values, weight, nodes, weight, nodes)
        factor, _, residual, _ = self._condition(values, data, offset, covariance)
        mask = data.mask.flatten(-2)
        solved = torch.cholesky_solve(residual.unsqueeze(-1), factor)

        force_mean, force_var = [], []
        output_cross, output_prior = torch.zeros(()), torch.zeros(())
        for i, (kernel, hyper) in enumerate(zip(self.model.kernels, hypers, strict=True)):
            at_nodes = kernel.covariance(hyper, times.unsqueeze(-1), nodes.unsqueeze(-1))
            cross = (at_nodes @ weight[:, i].mT) * mask.unsqueeze(-2)
            force_mean.append((cross @ solved).squeeze(-1))
            explained = torch.linalg.solve_triangular(factor, cross.mT, upper=False)
            force_var.append(kernel.diagonal(hyper, times.unsqueeze(-1)) - explained.square().sum(-2))
            among = kernel.covariance(hyper, nodes.unsqueeze(-1), nodes.unsqueeze(-1))
            pushed = query_weight[:, i] @ among
            output_prior = output_prior + (pushed * query_weight[:, i]).sum(-1)
            output_cross = output_cross + (pushed @ weight[:, i].mT) * mask.unsqueeze(-2)
        explained = torch.linalg.solve_triangular(factor, output_cross.mT, upper=False)
        shape = (len(rows), len(self.model.mechanism.outputs), times.shape[-1])
        return Moments(
            torch.stack(force_mean, 1),
            torch.stack(force_var, 1).clamp_min(0),
            (query_offset + (output_cross @ solved).squeeze(-1)).reshape(shape),
            (output_prior - explained.square().sum(-2)).clamp_min(0).reshape(shape),
        )
