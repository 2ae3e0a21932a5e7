"""The steps of a chain and paths drawn from it, compiled as `loops.py` is.

Nothing compiled in one file calls what is compiled in another one: what numba keeps on the disk does not notice that a
function of another file has changed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

LANES = 8

ROUNDING = 1e-13
"""Share of a variance that is taken for a rounding error."""

SHORT, TERMS, FARTHEST = 0.5, 14, 1e12
"""Size of a matrix whose exponential is a series of `TERMS` terms or fewer, and what is too large for any."""

LEFT_OUT = 1e-17
"""Size of the first term of such a series that is left out."""

_compiled: Any = njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)


@_compiled
def tabled(drift, stationary, lengths, counts, columns, steps, noises):  # type: ignore[no-untyped-def]
    """Fill in Φ and Q [G, U, n, n, LANES] of the gaps `lengths` [G, U, LANES].

    counts: how many entries of each row of M are not zero, [G, n]; columns: where they are, [G, n, n].
    """
    for g in range(len(drift)):
        _tabled(drift[g], stationary[g], lengths[g], counts[g], columns[g], steps[g], noises[g])


@_compiled
def _tabled(drift, stationary, lengths, counts, columns, steps, noises):  # type: ignore[no-untyped-def]
    """Φ = e^{M Δ} and Q = Π − Φ Π Φᵀ of all gaps [U, LANES], by scaling, a Taylor series and squaring."""
    size = drift.shape[0]
    shape = (size, size, LANES)
    scaled, power, other = np.empty(shape), np.empty(shape), np.empty(shape)
    largest, halvings = np.zeros(LANES), np.zeros(LANES, np.int64)
    for j in range(size):
        total = np.zeros(LANES)
        for i in range(size):
            for w in range(LANES):
                total[w] += abs(drift[i, j, w])
        for w in range(LANES):
            largest[w] = max(largest[w], total[w])
    for u in range(lengths.shape[0]):
        most, farthest = 0, 0.0
        for w in range(LANES):
            # An odd gap or rate stays what it is, and gives a density that is not finite.
            far = largest[w] * lengths[u, w] / SHORT
            halvings[w] = math.ceil(math.log2(far)) if 1.0 < far < FARTHEST else 0
            most = max(most, halvings[w])
            farthest = max(farthest, SHORT * far / 2.0 ** halvings[w])
        terms, left = 1, 0.5 * farthest * farthest
        while terms < TERMS and not left <= LEFT_OUT:
            terms += 1
            left *= farthest / (terms + 1)
        for i in range(size):
            for j in range(size):
                for w in range(LANES):
                    scaled[i, j, w] = drift[i, j, w] * (lengths[u, w] / 2.0 ** halvings[w])
                    power[i, j, w] = 1.0 if i == j else 0.0
        for order in range(terms, 0, -1):
            for i in range(size):
                for j in range(size):
                    for w in range(LANES):
                        other[i, j, w] = 0.0
                    for a in range(counts[i]):
                        k = columns[i, a]
                        for w in range(LANES):
                            other[i, j, w] += scaled[i, k, w] * power[k, j, w]
            for i in range(size):
                for j in range(size):
                    for w in range(LANES):
                        power[i, j, w] = other[i, j, w] / order + (1.0 if i == j else 0.0)
        for number in range(most):
            for i in range(size):
                for j in range(size):
                    for w in range(LANES):
                        other[i, j, w] = 0.0
                    for k in range(size):
                        for w in range(LANES):
                            other[i, j, w] += power[i, k, w] * power[k, j, w]
            for i in range(size):
                for j in range(size):
                    for w in range(LANES):
                        power[i, j, w] = other[i, j, w] if number < halvings[w] else power[i, j, w]
        for i in range(size):
            for j in range(size):
                for w in range(LANES):
                    steps[u, i, j, w] = power[i, j, w]
                    other[i, j, w] = 0.0
                for k in range(size):
                    for w in range(LANES):
                        other[i, j, w] += power[i, k, w] * stationary[k, j, w]
        for i in range(size):
            for j in range(size):
                for w in range(LANES):
                    noises[u, i, j, w] = stationary[i, j, w]
                for k in range(size):
                    for w in range(LANES):
                        noises[u, i, j, w] -= other[i, k, w] * power[j, k, w]


@_compiled
def wandered(steps, noises, which, first, normal, found):  # type: ignore[no-untyped-def]
    """Paths [G, T, n, LANES] of the states, from normal numbers in that shape."""
    groups, gaps, size = steps.shape[:3]
    start, roots = np.empty((size, size, LANES)), np.empty((gaps, size, size, LANES))
    for g in range(groups):
        _rooted(first[g], start)
        for u in range(gaps):
            _rooted(noises[g, u], roots[u])
        for t in range(found.shape[1]):
            for w in range(LANES):
                gap = which[g, t - 1, w]
                root = roots[gap] if t > 0 else start
                for i in range(size):
                    found[g, t, i, w] = 0.0
                    for k in range(i + 1):
                        found[g, t, i, w] += root[i, k, w] * normal[g, t, k, w]
                    for k in range(size if t > 0 else 0):
                        found[g, t, i, w] += steps[g, gap, i, k, w] * found[g, t - 1, k, w]


@_compiled
def _rooted(covariance, root):  # type: ignore[no-untyped-def]
    """Lower triangular root of a covariance; what rounding has left of nothing becomes nothing."""
    size = len(covariance)
    for w in range(LANES):
        for j in range(size):
            for i in range(j):
                root[i, j, w] = 0.0
            rest = covariance[j, j, w]
            for k in range(j):
                rest -= root[j, k, w] * root[j, k, w]
            pivot = math.sqrt(rest) if rest > ROUNDING * covariance[j, j, w] else 0.0
            root[j, j, w] = pivot
            for i in range(j + 1, size):
                total = covariance[i, j, w]
                for k in range(j):
                    total -= root[i, k, w] * root[j, k, w]
                root[i, j, w] = total / pivot if pivot > 0.0 else 0.0
