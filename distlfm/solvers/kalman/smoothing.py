"""The smoother of Bryson and Frazier, back through what the filter has met in one group.

It is compiled as `loops.py` is, and calls nothing that is compiled there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

LANES = 8

_compiled: Any = njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)


@_compiled
def smoothed(  # type: ignore[no-untyped-def]
    steps, counts, columns, which, observed, seen, wanted, means, covariances, gains, told, found_mean, found_variance
):
    """Means and variances [K, T, LANES] of the combinations `wanted` [K, n, LANES], given all that is seen."""
    size, outputs, times = steps.shape[1], seen.shape[0], seen.shape[1]
    slope, curve = np.zeros((size, LANES)), np.zeros((size, size, LANES))
    step, pushed = np.empty_like(curve), np.empty_like(curve)
    cross, fresh = np.empty_like(slope), np.empty_like(slope)
    for t in range(times - 1, -1, -1):
        for p in range(outputs - 1, -1, -1):
            if seen[p, t].any():
                _folded(observed[p], gains[t, p], told[t, p], slope, curve, cross, fresh)
        for d in range(len(wanted)):
            _read(
                wanted[d], means[t, 0], covariances[t, 0], slope, curve, cross, found_mean[d, t], found_variance[d, t]
            )
        if t > 0:
            for w in range(LANES):
                step[:, :, w] = steps[which[t - 1, w], :, :, w]
            _carried_back(step, counts, columns, slope, curve, pushed, fresh)


@_compiled
def _folded(observed, gain, told, slope, curve, across, pulled):  # type: ignore[no-untyped-def]
    """Take one number into slope and curve of what is seen later, in place."""
    size = slope.shape[0]
    along, bend = np.zeros(LANES), np.zeros(LANES)
    for i in range(size):
        for w in range(LANES):
            along[w] += gain[i, w] * slope[i, w]
            across[i, w] = 0.0
        for k in range(size):
            for w in range(LANES):
                across[i, w] += curve[i, k, w] * gain[k, w]
    for i in range(size):
        for w in range(LANES):
            bend[w] += gain[i, w] * across[i, w]
    for i in range(size):
        for w in range(LANES):
            slope[i, w] -= observed[i, w] * (along[w] + told[2, w] * told[0, w])
            pulled[i, w] = across[i, w] - 0.5 * (bend[w] + told[2, w]) * observed[i, w]
    for i in range(size):
        for j in range(size):
            for w in range(LANES):
                curve[i, j, w] -= observed[i, w] * pulled[j, w] + pulled[i, w] * observed[j, w]


@_compiled
def _read(direction, mean, covariance, slope, curve, along, found_mean, found_variance):  # type: ignore[no-untyped-def]
    """Mean and variance [LANES] of one combination [n, LANES] of the states."""
    size = mean.shape[0]
    for w in range(LANES):
        found_mean[w] = 0.0
        found_variance[w] = 0.0
    for i in range(size):
        for w in range(LANES):
            along[i, w] = 0.0
        for k in range(size):
            for w in range(LANES):
                along[i, w] += covariance[i, k, w] * direction[k, w]
    for i in range(size):
        for w in range(LANES):
            found_mean[w] += direction[i, w] * mean[i, w] - along[i, w] * slope[i, w]
            found_variance[w] += direction[i, w] * along[i, w]
        for k in range(size):
            for w in range(LANES):
                found_variance[w] -= along[i, w] * curve[i, k, w] * along[k, w]


@_compiled
def _carried_back(step, counts, columns, slope, curve, pushed, fresh):  # type: ignore[no-untyped-def]
    """slope ← Φᵀ slope and curve ← Φᵀ curve Φ, in place."""
    size = slope.shape[0]
    for i in range(size):
        for w in range(LANES):
            fresh[i, w] = 0.0
        for j in range(size):
            for w in range(LANES):
                pushed[i, j, w] = 0.0
        for k in range(size):
            for a in range(counts[k]):
                j = columns[k, a]
                for w in range(LANES):
                    pushed[i, j, w] += curve[i, k, w] * step[k, j, w]
    for k in range(size):
        for a in range(counts[k]):
            i = columns[k, a]
            for w in range(LANES):
                fresh[i, w] += step[k, i, w] * slope[k, w]
    for i in range(size):
        for w in range(LANES):
            slope[i, w] = fresh[i, w]
        for j in range(size):
            for w in range(LANES):
                curve[i, j, w] = 0.0
    for k in range(size):
        for a in range(counts[k]):
            i = columns[k, a]
            for j in range(size):
                for w in range(LANES):
                    curve[i, j, w] += step[k, i, w] * pushed[k, j, w]
