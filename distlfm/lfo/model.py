"""The Latent Force Operator's network: observations on a grid → forces on the grid and parameters, with variances.

Shapes: `B` instances, `P` outputs, `L` forces, `K` parameters, `W` channels; the grid has any number of points.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from distlfm.lfo.schema import OperatorSchema
from distlfm.lfo.settings import OperatorConfig
from distlfm.lfo.spectral import SpectralConv, quadrature

LOG_VARIANCE = (-14.0, 6.0)
"""Where the log-variances are, in units of the training set's variances: a smooth limit, not a clamp."""


class Prediction(NamedTuple):
    """force, force_logvar: [B, L, *grid] in the force's unit; params, params_logvar: [B, K] standardised."""

    force: Tensor
    force_logvar: Tensor
    params: Tensor
    params_logvar: Tensor


class Normal(nn.Module):
    """What the training split looks like: means and standard deviations. A part of the model, not learned."""

    value_mean: Tensor
    value_sd: Tensor
    force_mean: Tensor
    force_sd: Tensor
    param_mean: Tensor
    param_sd: Tensor
    param_log: Tensor

    def __init__(self, outputs: int, forces: int, parameters: int) -> None:
        super().__init__()
        for name, size in (("value", outputs), ("force", forces), ("param", parameters)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_sd", torch.ones(size))
        self.register_buffer("param_log", torch.zeros(parameters))

    def standardised(self, params: Tensor) -> Tensor:
        """Parameters [B, K] in the space in which they are learned; some by their logarithm."""
        logs = params.clamp_min(1e-30).log()
        return (torch.where(self.param_log > 0, logs, params) - self.param_mean) / self.param_sd

    def physical(self, z: Tensor) -> Tensor:
        """The inverse."""
        x = z * self.param_sd + self.param_mean
        return torch.where(self.param_log > 0, x.exp(), x)


class FourierLayer(nn.Module):
    """u + gelu(spectral(u) + pointwise(u)) on [B, *grid, W]."""

    def __init__(self, width: int, modes: tuple[int, ...], padding: float) -> None:
        super().__init__()
        self.spectral = SpectralConv(width, modes, padding)
        self.pointwise = nn.Linear(width, width)

    def forward(self, u: Tensor) -> Tensor:
        return u + nn.functional.gelu(self.spectral(u) + self.pointwise(u))


class FourierOperator(nn.Module):
    """Lifting, Fourier layers, projection to forces, and a head that pools in function space for the parameters."""

    def __init__(self, config: OperatorConfig, schema: OperatorSchema) -> None:
        super().__init__()
        self.config = config
        self.num_dims, self.num_forces, self.num_params = len(schema.dims), len(schema.forces), len(schema.parameters)
        outputs, width = len(schema.outputs), config.width
        self.normal = Normal(outputs, self.num_forces, self.num_params)
        channels = outputs * (3 if config.integrals else 2) + self.num_dims
        self.lift = nn.Sequential(nn.Linear(channels, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        modes = config.modes_of(self.num_dims)
        self.layers = nn.ModuleList(FourierLayer(width, modes, config.padding) for _ in range(config.layers))
        self.project = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, 2 * self.num_forces))
        pooled = config.pooled
        self.pool = nn.Linear(width + channels, pooled)
        features = pooled + pooled * (pooled + 1) // 2
        self.head = nn.Sequential(
            nn.LayerNorm(features),
            nn.Linear(features, config.head),
            nn.GELU(),
            nn.Linear(config.head, config.head),
            nn.GELU(),
            nn.Linear(config.head, 2 * self.num_params),
        )

    def forward(self, values: Tensor, mask: Tensor) -> Prediction:
        """values, mask: [B, P, *grid]."""
        grid = values.shape[2:]
        x = self.channels(values, mask)
        u = self.lift(x)
        for layer in self.layers:
            u = layer(u)
        mean, logvar = self.project(u).movedim(-1, 1).chunk(2, 1)
        stretch = (-1, *(1,) * len(grid))
        sd, centre = self.normal.force_sd.view(stretch), self.normal.force_mean.view(stretch)
        params, params_logvar = self.head(self.pooled(torch.cat([u, x], -1))).chunk(2, -1)
        return Prediction(mean * sd + centre, soft_limits(logvar) + 2 * sd.log(), params, soft_limits(params_logvar))

    def channels(self, values: Tensor, mask: Tensor) -> Tensor:
        """What the lifting sees, [B, *grid, C]: standardised values, their integrals over time, mask, coordinates."""
        grid = values.shape[2:]
        stretch = (-1, *(1,) * len(grid))
        v = (values - self.normal.value_mean.view(stretch)) / self.normal.value_sd.view(stretch)
        parts = [v, mask.to(v)]
        if self.config.integrals:
            step = 1 / (grid[0] - 1)
            inner = (v[:, :, 1:] + v[:, :, :-1]).cumsum(2) * (step / 2)
            parts.append(torch.cat([torch.zeros_like(v[:, :, :1]), inner], 2))
        axes = torch.meshgrid(*(torch.linspace(-1, 1, n, dtype=v.dtype, device=v.device) for n in grid), indexing="ij")
        parts.append(torch.stack(axes).expand(len(v), -1, *grid))
        return torch.cat(parts, 1).movedim(1, -1)

    def pooled(self, u: Tensor) -> Tensor:
        """Integrals over the domain of some channels and of all their products, [B, features]."""
        q = self.pool(u)
        weights = torch.ones((), dtype=q.dtype, device=q.device)
        for n in u.shape[1:-1]:
            weights = weights.unsqueeze(-1) * quadrature(n).to(q)
        weights = weights.reshape(-1, 1)
        q = q.flatten(1, -2)
        weighted = q * weights
        products = weighted.mT @ q
        rows, columns = torch.triu_indices(q.shape[-1], q.shape[-1], device=q.device)
        return torch.cat([weighted.sum(1), products[:, rows, columns]], -1)


def soft_limits(logvar: Tensor) -> Tensor:
    """Log-variances within `LOG_VARIANCE`, with a gradient everywhere."""
    low, high = LOG_VARIANCE
    middle, half = (low + high) / 2, (high - low) / 2
    return middle + half * torch.tanh((logvar - middle) / half)
