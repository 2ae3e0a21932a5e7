"""The Latent Force Operator's network: observations on a grid → forces on the grid and parameters, with variances.

Shapes: `B` instances, `P` outputs, `L` forces, `K` parameters, `W` channels; the grid has any number of points.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from distlfm.lfo.heads import HeadOutput, Stage
from distlfm.lfo.physics import GridSolver, solves
from distlfm.lfo.schema import OperatorSchema
from distlfm.lfo.settings import OperatorConfig
from distlfm.lfo.spectral import SpectralConv, along, local_fit, quadrature, scatter, spline, table

SMALLEST_SIZE = 0.02
"""Fluctuations smaller than this, in units of the training split's, are taken as that large."""

ROUGHNESS = 0.01
"""Scatter around a smooth curve, as a part of the fluctuations, that is too small to matter."""

RESIDUAL_GAIN = 10.0
"""What the first estimate leaves unexplained is about a tenth of the fluctuations."""

LOG_VARIANCE = (-14.0, 6.0)
"""Where the log-variances are, in units of the training set's variances: a smooth limit, not a clamp."""


class OperatorOutput(NamedTuple):
    """force, force_logvar: [B, L, *grid] in the force's unit; params, params_logvar: [B, K] standardised.

    unit: [B, L], the size of a force that counts as one in this instance. summary: [B, S], the instance as a whole.
    """

    force: Tensor
    force_logvar: Tensor
    params: Tensor
    params_logvar: Tensor
    unit: Tensor
    summary: Tensor


class Scaling(nn.Module):
    """What the training split looks like: means and standard deviations. A part of the model, not learned.

    holes: 1 if observations are missing in training. Else the network has never seen a hole, and is given none: it
    takes interpolated values as they are, in place of an input to which its weights give no meaning.
    """

    value_mean: Tensor
    value_sd: Tensor
    force_mean: Tensor
    force_sd: Tensor
    param_mean: Tensor
    param_sd: Tensor
    param_log: Tensor
    param_low: Tensor
    param_high: Tensor
    holes: Tensor

    def __init__(self, outputs: int, forces: int, parameters: int) -> None:
        super().__init__()
        for name, size in (("value", outputs), ("force", forces), ("param", parameters)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_sd", torch.ones(size))
        self.register_buffer("param_log", torch.zeros(parameters))
        self.register_buffer("param_low", torch.full((parameters,), -torch.inf))
        self.register_buffer("param_high", torch.full((parameters,), torch.inf))
        self.register_buffer("holes", torch.zeros(()))

    def standardised(self, params: Tensor) -> Tensor:
        """Parameters [B, K] in the space in which they are learned; some by their logarithm."""
        logs = params.clamp_min(1e-30).log()
        return (torch.where(self.param_log > 0, logs, params) - self.param_mean) / self.param_sd

    def standardised_variance(self, params: Tensor, variance: Tensor) -> Tensor:
        """The variance [B, K] of `standardised` parameters, from that of the parameters; 0 where it is not known."""
        slope = torch.where(self.param_log > 0, 1 / params.clamp_min(1e-30), torch.ones_like(params))
        return torch.nan_to_num(torch.nan_to_num(variance) * (slope / self.param_sd).square())

    def within(self, params: Tensor) -> Tensor:
        """Parameters [B, K] brought into the range that the training split has."""
        return params.clamp(self.param_low, self.param_high)

    def physical(self, z: Tensor) -> Tensor:
        """Parameters [B, K] from the space in which they are learned: the inverse of `standardised`."""
        x, logs = torch.addcmul(self.param_mean, z, self.param_sd), self.param_log > 0
        if not torch.is_grad_enabled():
            return torch.where(logs, x.exp(), x)
        # A large x that is not a logarithm must not overflow: its gradient would be 0 · ∞.
        return torch.where(logs, torch.where(logs, x, torch.zeros_like(x)).exp(), x)


class FourierLayer(nn.Module):
    """u + silu(spectral(u) + pointwise(u)) on [B, *grid, W]."""

    def __init__(self, width: int, modes: tuple[int, ...], padding: float) -> None:
        super().__init__()
        self.spectral = SpectralConv(width, modes, padding)
        self.pointwise = nn.Linear(width, width)

    def forward(self, u: Tensor) -> Tensor:
        return u + nn.functional.silu(self.spectral(u) + self.pointwise(u))


class FourierOperator(nn.Module):
    """Lifting, Fourier layers, projection to forces, and a head that pools in function space for the parameters.

    mixed: a type in which lifting and layers take their products, in training; the rest is small, and wants all digits:
    units, integrals, matrices that are inverted, and the equation.
    With a second stage the log-variances are its own, and those of the first serve nothing.
    """

    def __init__(self, config: OperatorConfig, schema: OperatorSchema) -> None:
        super().__init__()
        self.config = config
        self.mixed: torch.dtype | None = None
        self.num_dims, self.num_forces, self.num_params = len(schema.dims), len(schema.forces), len(schema.parameters)
        outputs, width = len(schema.outputs), config.width
        self.normal = Scaling(outputs, self.num_forces, self.num_params)
        derived = len(config.slopes) * (2 * self.num_dims - 1) + config.integrals
        channels = outputs * (4 + derived) + self.num_dims + 1
        self.points, self.trained = config.points_of(schema.shape), schema.shape
        self.window = min(config.slopes, default=1 / (min(self.points) - 1))
        self.lift = nn.Sequential(nn.Linear(channels, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
        modes = config.modes_of(self.num_dims)
        self.layers = nn.ModuleList(FourierLayer(width, modes, config.padding) for _ in range(config.layers))
        self.first = Stage(width + channels, 0, config, self.num_forces, self.num_params)
        self.equation = equation_of(schema) if config.refine else None
        if self.equation is not None:
            more = outputs + 2 * self.num_forces
            self.second = Stage(width + channels + more, config.head, config, self.num_forces, self.num_params)

    def forward(self, values: Tensor, mask: Tensor) -> OperatorOutput:
        """values, mask: [B, P, *grid], of any number of points; the prediction is on the same grid."""
        grid = tuple(values.shape[2:])
        x, size = self.channels(values, mask)
        u = self._layered(self.lift(x)) if self.mixed is None else self._mixed(x, self.mixed)
        u = torch.cat([u, x], -1)
        unit = size.unsqueeze(-1) * self.normal.force_sd
        output = self.first(u, u.new_zeros(u.shape[0], 0))
        if self.equation is not None:
            left = self._unexplained(values, output, size, unit)
            change = self.second(torch.cat([u, left.movedim(1, -1)], -1), output.summary)
            output = change._replace(force=output.force + change.force, params=output.params + change.params)
        return self.answer(output, unit, grid)

    def answer(self, found: HeadOutput, unit: Tensor, grid: tuple[int, ...]) -> OperatorOutput:
        """What the heads found, on a grid of the data and in the unit [B, L] of each instance's forces."""
        return OperatorOutput(
            force=self._forces(found.force, unit, grid),
            force_logvar=soft_limits(self.shown(found.force_logvar, grid)) + 2 * self._wide(unit).log(),
            params=found.params,
            params_logvar=soft_limits(found.params_logvar),
            unit=unit,
            summary=found.summary,
        )

    def _forces(self, force: Tensor, unit: Tensor, grid: tuple[int, ...]) -> Tensor:
        return self.shown(force, grid) * self._wide(unit) + self._wide(self.normal.force_mean)

    def _wide(self, of_forces: Tensor) -> Tensor:
        return of_forces.view(*of_forces.shape, *(1,) * self.num_dims)

    def _layered(self, u: Tensor) -> Tensor:
        for layer in self.layers:
            u = layer(u)
        return u

    def _mixed(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        """Lifting and layers with products of another type; what the layers add to stays in that of x."""
        with torch.autocast(x.device.type, dtype):
            return self._layered(self.lift(x).to(x.dtype))

    def _unexplained(self, values: Tensor, found: HeadOutput, size: Tensor, unit: Tensor) -> Tensor:
        """What the equation leaves unexplained of the outputs [B, P + 2 L, T], with the force and its integral."""
        assert self.equation is not None
        params = self.normal.within(self.normal.physical(found.params))
        residual = self.equation.residual(values, self._forces(found.force, unit, tuple(values.shape[2:])), params)
        scale = self.normal.value_sd.unsqueeze(-1) * size.view(-1, 1, 1)
        residual = self._taken(RESIDUAL_GAIN * residual / scale)
        return torch.cat([residual, found.force, integral(found.force)], 1)

    def settled(self) -> FourierOperator:
        """This model, whose weights will not change any more: its answers are quicker."""
        for layer in self.layers:
            assert isinstance(layer, FourierLayer)
            layer.spectral.settle()
        return self

    def channels(self, values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """What the lifting sees on the network's grid, [B, *points, C], and the size [B] of the fluctuations.

        Values in units of that size (for a linear mechanism the force grows as they do), with their integrals over time
        and slopes; mask and coordinates; mean and logarithm of the size, which the units have taken away.
        """
        wide = (-1, *(1,) * self.num_dims)
        v = (values - self.normal.value_mean.view(wide)) / self.normal.value_sd.view(wide)
        means = self._mean(v)
        centred = v - means.view(*means.shape, *wide[1:])
        size = (self._mean(centred.square()).mean(-1) + SMALLEST_SIZE**2).sqrt()
        v = v / size.view(-1, 1, *wide[1:])
        rough = self._taken(scatter(self.thinned(v), self.window)).clamp_min(0) + ROUGHNESS**2
        features = torch.cat([means, size.log().unsqueeze(-1)], -1)
        plain, derived = self._derived(v)
        parts = [
            plain,
            self._taken(1 - self.normal.holes * (1 - mask.to(v))),
            rough.log() / -math.log(ROUGHNESS) + 1,
            features.view(*features.shape, *wide[1:]).expand(-1, -1, *self.points),
            *derived,
            coordinates(self.points, v.dtype, v.device).expand(v.shape[0], -1, *self.points),
        ]
        return torch.cat(parts, 1).movedim(1, -1), size

    def _derived(self, v: Tensor) -> tuple[Tensor, list[Tensor]]:
        """v [B, P, *grid] on the network's grid, and its integrals over time and slopes there."""
        slopes, integrals = self.config.slopes, self.config.integrals
        if self.num_dims == 1:
            matrix = series_table(v.shape[2], self.points[0], self.window, slopes, integrals, v.dtype, v.device)
            every = (v @ matrix).unflatten(-1, (-1, self.points[0])).transpose(1, 2)
            return every[:, 0], [every[:, 1:].flatten(1, 2)]
        channels = [self._taken(integral(v))] if integrals else []
        for window in slopes:
            for dim in range(self.num_dims):
                channels.append(self._taken(v, window, dim, 1))
                if dim:
                    channels.append(self._taken(v, window, dim, 2))
        return self._taken(v), channels

    def thinned(self, v: Tensor) -> Tensor:
        """v [B, P, *grid] at the points of the training grid, where that has fewer: noise is measured at those alone.

        What a curve leaves of the observations depends on how many there are, and on whether their noise is white.
        """
        return self.shown(v, tuple(map(min, self.trained, v.shape[2:])))

    def _taken(self, v: Tensor, window: float | None = None, derived: int = 0, order: int = 0) -> Tensor:
        """v [B, P, *grid] on the network's grid by local regression; along one dimension perhaps a derivative of it."""
        for dim, n in enumerate(self.points):
            if window is None and v.shape[dim + 2] == n:
                continue
            table = local_fit(v.shape[dim + 2], window or self.window, n, v.dtype, v.device)
            v = along(table[order if dim == derived else 0], v, dim + 2)
        return v

    def shown(self, v: Tensor, grid: tuple[int, ...]) -> Tensor:
        """v [B, L, *points] on another grid, that of the data."""
        for dim, n in enumerate(grid, 2):
            if n != v.shape[dim]:
                v = along(spline(v.shape[dim], n, v.dtype, v.device), v, dim)
        return v

    def _mean(self, v: Tensor) -> Tensor:
        """Mean over the domain of [B, P, *grid]."""
        for n in reversed(v.shape[2:]):
            v = v @ quadrature(n, v.dtype, v.device)
        return v


@table
def coordinates(points: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """From −1 to 1 along each dimension, [d, *points]."""
    axes = [torch.linspace(-1, 1, n, dtype=dtype, device=device) for n in points]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"))


@table
def series_table(
    size: int,
    points: int,
    window: float,
    slopes: tuple[float, ...],
    integrals: bool,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    """What a series of n even times gives on the network's m: itself, its integral and its slopes, [n, kinds · m]."""
    itself = torch.eye(size, dtype=torch.float64)
    plain = itself if size == points else local_fit(size, window, points)[0].T
    kinds = [plain, *([integral(itself.unsqueeze(0))[0] @ plain] if integrals else [])]
    kinds += [local_fit(size, width, points)[1].T for width in slopes]
    return torch.cat(kinds, -1).to(device, dtype)


def integral(v: Tensor) -> Tensor:
    """Integral over time from its start, of [B, P, T, *space], by the trapezoidal rule; the domain has length 1."""
    inner = (v[:, :, 1:] + v[:, :, :-1]).cumsum(2) / (2 * (v.shape[2] - 1))
    return torch.cat([torch.zeros_like(v[:, :, :1]), inner], 2)


def equation_of(schema: OperatorSchema) -> GridSolver | None:
    """The schema's equation, where it can be held against the outputs."""
    if not solves(schema):
        return None
    equation = GridSolver(schema)
    return equation if equation.reads_states else None


def soft_limits(logvar: Tensor) -> Tensor:
    """Log-variances within `LOG_VARIANCE`, with a gradient everywhere."""
    low, high = LOG_VARIANCE
    middle, half = (low + high) / 2, (high - low) / 2
    return middle + half * torch.tanh((logvar - middle) / half)
