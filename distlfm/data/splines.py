"""Natural cubic splines through each output of each instance, and how its noise passes through them.

A spline is linear in the data it goes through, so value and slope anywhere are weights times data, and their variances
are squared weights times the data's. Shapes: `B` instances, `P` outputs, `T` times, `Q` points asked for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.interpolate import CubicSpline

from distlfm.instance import BoolArray, FloatArray

NEIGHBOURS = 2
"""A value's noise is judged by the polynomial through this many neighbours on either side, fewer if there are fewer."""


@dataclass(frozen=True)
class Splines:
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
