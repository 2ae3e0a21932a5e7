"""Curves through the data with their slopes: natural cubic splines, or Gaussian processes where the data are noisy.

A spline is linear in the data it goes through, so value and slope anywhere are weights times data, and their variances
are squared weights times the data's. A Gaussian process with its derivative is again one, so mean and variance of the
slope are known in closed form (Solak et al. 2003). Every series has its own length, size and noise, found by its
marginal likelihood, all series at once.

Shapes: `B` instances, `P` outputs, `T` times, `Q` points asked for, `N = B·P` series.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import torch
from scipy.interpolate import CubicSpline
from torch import Tensor

from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.observations import Observations
from distlfm.inference.optimise import OptimiserConfig, minimise
from distlfm.instance import BoolArray, FloatArray
from distlfm.mechanisms.priors import LogNormal

NEIGHBOURS = 2
"""A value's noise is judged by the polynomial through this many neighbours on either side, fewer if there are fewer."""


class Splines(NamedTuple):
    """Each [B, P, Q]. Variances are what the data's noise makes of them; `within`: between observations, where slopes

    mean something. Beyond the ends a natural spline goes on as a line.
    """

    value: FloatArray
    slope: FloatArray
    value_var: FloatArray
    slope_var: FloatArray
    within: BoolArray


def natural_splines(
    times: FloatArray, values: FloatArray, mask: BoolArray, variance: FloatArray, at: FloatArray
) -> Splines:
    """Splines of values [B, P, T] at times [B, T], seen where mask [B, P, T], with noise variance [B, P, T].

    at: [B, Q]. Two observations give a line, one a constant, and none zero.
    """
    shape = (*mask.shape[:2], at.shape[-1])
    value, slope, value_var, slope_var = (np.zeros(shape) for _ in range(4))
    within = np.zeros(shape, dtype=bool)
    known: dict[tuple[bytes, bytes], tuple[FloatArray, FloatArray]] = {}
    for b, p in np.ndindex(*shape[:2]):
        seen = mask[b, p]
        t = times[b][seen]
        if len(t) == 0:
            continue
        key = (t.tobytes(), at[b].tobytes())
        if key not in known:
            known[key] = spline_weights(t, at[b])
        by_value, by_slope = known[key]
        y, noise = values[b, p][seen], variance[b, p][seen]
        value[b, p], slope[b, p] = by_value @ y, by_slope @ y
        value_var[b, p], slope_var[b, p] = by_value**2 @ noise, by_slope**2 @ noise
        within[b, p] = (at[b] >= t[0]) & (at[b] <= t[-1]) & (len(t) > 1)
    return Splines(value, slope, value_var, slope_var, within)


def spline_weights(t: FloatArray, at: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Weights [Q, n] with which data at `t` [n], increasing, make value and slope at `at` [Q]."""
    if len(t) == 1:
        return np.ones((len(at), 1)), np.zeros((len(at), 1))
    basis = CubicSpline(t, np.eye(len(t)), bc_type="natural")
    inside = np.clip(at, t[0], t[-1])
    slope = np.asarray(basis(inside, 1), dtype=np.float64)
    return np.asarray(basis(inside)) + (at - inside)[:, None] * slope, slope


def noise_level(times: FloatArray, values: FloatArray, mask: BoolArray) -> FloatArray:
    """Standard deviation of the noise of each series, [B, P]; NaN where fewer than three values are seen.

    Each value is compared with the cubic (or, of three or four values, the line) through its neighbours, and the
    differences are scaled by what independent noise would make of them (Gasser, Sroka & Jennen-Steinmetz 1986). What a
    polynomial cannot follow counts as noise: for data that are sparse for their curvature the level is an upper bound.
    """
    level = np.full(mask.shape[:2], np.nan)
    for b, p in np.ndindex(*level.shape):
        seen = mask[b, p]
        t, y = times[b][seen], values[b, p][seen]
        reach = min(NEIGHBOURS, (len(t) - 1) // 2)
        if reach > 0:
            level[b, p] = _scatter(t, y, reach)
    return level


def _scatter(t: FloatArray, y: FloatArray, reach: int) -> float:
    """Root mean square of the scaled differences from Lagrange's polynomial through `reach` neighbours on each side."""
    middle = np.arange(reach, len(t) - reach)
    offsets = np.array([k for k in range(-reach, reach + 1) if k])
    near = middle[:, None] + offsets
    nodes, here = t[near], t[middle]
    weights = np.ones(near.shape)
    for i in range(len(offsets)):
        for j in range(len(offsets)):
            if i != j:
                weights[:, i] *= (here - nodes[:, j]) / (nodes[:, i] - nodes[:, j])
    off = y[middle] - (weights * y[near]).sum(-1)
    return float(np.sqrt(np.mean(off**2 / (1 + (weights**2).sum(-1)))))


Smoothness = Literal["rbf", "matern52"]

LENGTH = LogNormal(median=0.3, spread=1.0)
"""Prior of a series' lengthscale, in units of the instance's time span."""

SIZE = LogNormal(median=1.0, spread=1.0)
"""Prior of its standard deviation, in units of that of its values."""

NOISE = LogNormal(median=0.05, spread=1.5)
"""Prior of its noise, in the same units."""

STARTS = ((0.0, 0.0, 0.0), (-1.0, 0.0, -0.5), (-2.0, 0.0, -0.5))
"""Where the search for length, size and noise begins, in standard deviations of their priors."""

OPTIMISER = OptimiserConfig(iterations=60, gradient=1e-3)


@dataclass(frozen=True)
class Interpolated:
    """What the data say of value and slope at points: each [B, P, Q], with standard deviations.

    within: [B, P, Q], where the slope means something. noise: [B, P], NaN where the data cannot tell.
    """

    value: Tensor
    slope: Tensor
    value_sd: Tensor
    slope_sd: Tensor
    within: Tensor
    noise: Tensor


def by_splines(data: Observations, at: Tensor, known: Tensor | None = None) -> Interpolated:
    """Natural cubic splines at `at` [B, Q]. known: [B, P, T], the noise variance where it is given with the data."""
    times, values, mask = data.times.numpy(), data.values.numpy(), data.mask.numpy()
    noise = torch.from_numpy(noise_level(times, values, mask))
    variance = noise.nan_to_num(0.0).square().unsqueeze(-1).expand(data.values.shape) if known is None else known
    found = natural_splines(times, values, mask, variance.numpy(), at.numpy())
    value, slope, value_var, slope_var, within = (torch.from_numpy(one) for one in found)
    return Interpolated(value, slope, value_var.sqrt(), slope_var.sqrt(), within, noise)


@torch.no_grad()
def by_processes(
    data: Observations, at: Tensor, known: Tensor | None = None, smoothness: Smoothness = "matern52"
) -> Interpolated:
    """Gaussian-process regression at `at` [B, Q]. known: [B, P, T], the noise variance where it is given."""
    series = _Series(data, known, smoothness)
    num_outputs = data.mask.shape[1]
    points = ((at - series.origin) / series.span).repeat_interleave(num_outputs, 0)
    value, slope, value_var, slope_var, noise = series.posterior(series.best(), points)
    shape, size = (*data.mask.shape[:2], -1), series.size[:, None]
    span = series.span.repeat_interleave(num_outputs, 0)
    return Interpolated(
        (series.centre[:, None] + size * value).reshape(shape),
        (size * slope / span).reshape(shape),
        (size * value_var.clamp_min(0).sqrt()).reshape(shape),
        (size * slope_var.clamp_min(0).sqrt() / span).reshape(shape),
        (data.mask.sum(-1) > 1).unsqueeze(-1).expand(*shape[:2], at.shape[-1]),
        torch.where(data.mask.sum(-1) > 2, (series.size * noise).reshape(shape[:2]), torch.nan),
    )


class _Series:
    """Every output of every instance in units of its own. x, y, seen: [N, T]; known: [N, T] variance or None.

    centre, size: [N] of the values; origin, span: [B, 1] of the times.
    """

    def __init__(self, data: Observations, known: Tensor | None, smoothness: Smoothness) -> None:
        self.smoothness = smoothness
        self.origin = data.times[:, :1]
        self.span = (data.times[:, -1:] - self.origin).clamp_min(torch.finfo(data.times.dtype).tiny)
        self.x = ((data.times - self.origin) / self.span).repeat_interleave(data.mask.shape[1], 0)
        self.seen, values = data.mask.flatten(0, 1), data.values.flatten(0, 1)
        count = self.seen.sum(-1).clamp_min(1)
        self.centre = torch.where(self.seen, values, 0.0).sum(-1) / count
        off = torch.where(self.seen, values - self.centre[:, None], 0.0)
        size = (off.square().sum(-1) / count).sqrt()
        self.size = torch.where(size > 1e-12 * self.centre.abs(), size, torch.ones_like(size))
        self.y = off / self.size[:, None]
        self.known = None if known is None else known.flatten(0, 1) / self.size[:, None] ** 2

    def objective(self, z: Tensor, rows: Tensor) -> Tensor:
        """Minus the log of marginal likelihood and prior, [A], at z [A, 3]."""
        factor, ok = self._factor(z, rows)
        steps = torch.linalg.solve_triangular(factor, self.y[rows].unsqueeze(-1), upper=False).squeeze(-1)
        value = 0.5 * steps.square().sum(-1) + factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return torch.where(ok, value + 0.5 * z.square().sum(-1), torch.inf)

    def best(self) -> Tensor:
        """z [N, 3] of the most likely hyperparameters. A search from a long lengthscale may call everything noise."""
        num_series = len(self.seen)
        starts = self.y.new_tensor(STARTS).repeat_interleave(num_series, 0)
        which = torch.arange(num_series).repeat(len(STARTS))
        with torch.enable_grad():
            found = minimise(lambda z, rows: self.objective(z, which[rows]), starts, OPTIMISER)
        choice = found.value.nan_to_num(torch.inf).reshape(len(STARTS), num_series).argmin(0)
        return found.z[choice * num_series + torch.arange(num_series)]

    def posterior(self, z: Tensor, points: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Value and slope at points [N, Q], their variances, and the noise [N], in the series' own units."""
        length, size, noise = self._hyper(z)
        factor, _ = self._factor(z, torch.arange(len(z)))
        weights = torch.cholesky_solve(self.y.unsqueeze(-1), factor)
        shape, tilt = _kernel((points.unsqueeze(-1) - self.x.unsqueeze(-2)) / length, self.smoothness)
        cross = torch.where(self.seen.unsqueeze(-2), 1 + size**2 * shape, 0.0)
        slope_cross = torch.where(self.seen.unsqueeze(-2), size**2 / length * tilt, 0.0)
        solved, slope_solved = (
            torch.linalg.solve_triangular(factor, one.mT, upper=False).square().sum(-2) for one in (cross, slope_cross)
        )
        curvature = 1.0 if self.smoothness == "rbf" else 5 / 3
        value_var = (1 + size**2).squeeze(-1) - solved
        slope_var = (curvature * size**2 / length**2).squeeze(-1) - slope_solved
        value, slope = (cross @ weights).squeeze(-1), (slope_cross @ weights).squeeze(-1)
        return value, slope, value_var, slope_var, noise.flatten()

    def _factor(self, z: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Cholesky factor [A, T, T] of the data's covariance, the identity where nothing is seen."""
        length, size, noise = self._hyper(z)
        x, seen = self.x[rows], self.seen[rows]
        shape, _ = _kernel((x.unsqueeze(-1) - x.unsqueeze(-2)) / length, self.smoothness)
        both = seen.unsqueeze(-1) & seen.unsqueeze(-2)
        # The 1 is the variance of an unknown level, which has no slope.
        variance = noise.squeeze(-1) ** 2 if self.known is None else self.known[rows]
        diagonal = torch.where(seen, variance, 1.0)
        return safe_cholesky(torch.where(both, 1 + size**2 * shape, 0.0) + torch.diag_embed(diagonal))

    def _hyper(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Lengthscale, size and noise, each [A, 1, 1]."""
        length, size, noise = (prior.natural(z[:, i, None, None]) for i, prior in enumerate((LENGTH, SIZE, NOISE)))
        return length, size, noise


def _kernel(r: Tensor, smoothness: Smoothness) -> tuple[Tensor, Tensor]:
    """Correlation at the scaled distance r, and its derivative in r."""
    if smoothness == "rbf":
        shape = torch.exp(-0.5 * r.square())
        return shape, -r * shape
    far = math.sqrt(5) * r.abs()
    decay = torch.exp(-far)
    return (1 + far + far.square() / 3) * decay, -5 / 3 * r * (1 + far) * decay
