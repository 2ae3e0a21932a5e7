"""The loops of the package, compiled by numba: eight rows in step, so that each operation is a vector's.

What is compiled is kept on the disk for the processes that follow. Shapes are those of the package; the last dimension
of every array is that of `LANES` rows.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

LANES = 8
LOG_CIRCLE = math.log(2 * math.pi)

ROUNDING = 1e-13
"""Share of a variance that is taken for a rounding error."""

SHORT, TERMS, FARTHEST = 0.5, 14, 1e12
"""Size of a matrix whose exponential is a series of `TERMS` terms, and what is too large for any."""

_compiled: Any = njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)


@_compiled
def _square(size):  # type: ignore[no-untyped-def]
    return np.empty((size, size, LANES))


@_compiled
def _vector(size):  # type: ignore[no-untyped-def]
    return np.empty((size, LANES))


@_compiled
def _entries(steps):  # type: ignore[no-untyped-def]
    """How many entries of each row of Φ are not zero in all gaps and lanes, [n], and their columns, [n, n]."""
    size = steps.shape[1]
    counts, columns = np.zeros(size, np.int64), np.zeros((size, size), np.int64)
    for i in range(size):
        for j in range(size):
            used = False
            for u in range(steps.shape[0]):
                for w in range(LANES):
                    used = used or steps[u, i, j, w] != 0.0
            if used:
                columns[i, counts[i]] = j
                counts[i] += 1
    return counts, columns


@_compiled
def _tabled(drift, stationary, lengths, steps, noises):  # type: ignore[no-untyped-def]
    """Φ = e^{M Δ} and Q = Π − Φ Π Φᵀ of all gaps [U, LANES], by scaling, a Taylor series and squaring."""
    size = drift.shape[0]
    scaled, power, other = _square(size), _square(size), _square(size)
    largest, halvings = np.zeros(LANES), np.zeros(LANES, np.int64)
    for j in range(size):
        total = np.zeros(LANES)
        for i in range(size):
            for w in range(LANES):
                total[w] += abs(drift[i, j, w])
        for w in range(LANES):
            largest[w] = max(largest[w], total[w])
    counts, columns = _entries(drift.reshape((1, size, size, LANES)))
    for u in range(lengths.shape[0]):
        most = 0
        for w in range(LANES):
            # An odd gap or rate stays what it is, and gives a density that is not finite.
            far = largest[w] * lengths[u, w] / SHORT
            halvings[w] = math.ceil(math.log2(far)) if 1.0 < far < FARTHEST else 0
            most = max(most, halvings[w])
        for i in range(size):
            for j in range(size):
                for w in range(LANES):
                    scaled[i, j, w] = drift[i, j, w] * (lengths[u, w] / 2.0 ** halvings[w])
                    power[i, j, w] = 1.0 if i == j else 0.0
        for order in range(TERMS, 0, -1):
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
def _moved(step, added, counts, columns, mean, covariance, pushed, fresh):  # type: ignore[no-untyped-def]
    """Predict: mean ← Φ mean, covariance ← Φ covariance Φᵀ + Q, in place."""
    size = mean.shape[0]
    for i in range(size):
        for w in range(LANES):
            fresh[i, w] = 0.0
        for a in range(counts[i]):
            k = columns[i, a]
            for w in range(LANES):
                fresh[i, w] += step[i, k, w] * mean[k, w]
        for j in range(size):
            for w in range(LANES):
                pushed[i, j, w] = 0.0
            for a in range(counts[i]):
                k = columns[i, a]
                for w in range(LANES):
                    pushed[i, j, w] += step[i, k, w] * covariance[k, j, w]
    for i in range(size):
        for w in range(LANES):
            mean[i, w] = fresh[i, w]
    for i in range(size):
        for j in range(i + 1):
            for w in range(LANES):
                covariance[i, j, w] = added[i, j, w]
            for a in range(counts[j]):
                k = columns[j, a]
                for w in range(LANES):
                    covariance[i, j, w] += pushed[i, k, w] * step[j, k, w]
            for w in range(LANES):
                covariance[j, i, w] = covariance[i, j, w]


@_compiled
def _loaded(steps, noises, which, last, step, added):  # type: ignore[no-untyped-def]
    """Put Φ and Q of the gaps `which` [LANES] into place, if they are others than the last ones; says so."""
    same = True
    for w in range(LANES):
        same = same and which[w] == last[w]
    if same:
        return False
    for w in range(LANES):
        last[w] = which[w]
    for i in range(step.shape[0]):
        for j in range(step.shape[0]):
            for w in range(LANES):
                step[i, j, w] = steps[which[w], i, j, w]
                added[i, j, w] = noises[which[w], i, j, w]
    return True


@_compiled
def _updated(observed, value, noise, seen, mean, covariance, gain, cross, told, density):  # type: ignore[no-untyped-def]
    """Take in one number of each lane, in place. told: [3, LANES], its error, spread and precision."""
    size = mean.shape[0]
    for w in range(LANES):
        told[0, w] = value[w]
        told[1, w] = noise[w]
    for i in range(size):
        for w in range(LANES):
            cross[i, w] = 0.0
    for k in range(size):
        used = False
        for w in range(LANES):
            used = used or observed[k, w] != 0.0
        if used:
            for w in range(LANES):
                told[0, w] -= observed[k, w] * mean[k, w]
            for i in range(size):
                for w in range(LANES):
                    cross[i, w] += covariance[i, k, w] * observed[k, w]
    for k in range(size):
        for w in range(LANES):
            told[1, w] += observed[k, w] * cross[k, w]
    for w in range(LANES):
        told[2, w] = seen[w] / told[1, w]
        if seen[w] > 0.0:
            density[w] -= 0.5 * (told[0, w] * told[0, w] / told[1, w] + math.log(told[1, w]) + LOG_CIRCLE)
    for i in range(size):
        for w in range(LANES):
            gain[i, w] = cross[i, w] * told[2, w]
            mean[i, w] += gain[i, w] * told[0, w]
    for i in range(size):
        for j in range(i + 1):
            for w in range(LANES):
                covariance[i, j, w] -= gain[i, w] * cross[j, w]
                covariance[j, i, w] = covariance[i, j, w]


@_compiled
def _any_seen(seen):  # type: ignore[no-untyped-def]
    found = False
    for w in range(LANES):
        found = found or seen[w] > 0.0
    return found


@_compiled
def filtered(drift, stationary, lengths, which, first, observed, residual, noise, seen, white):  # type: ignore[no-untyped-def]
    """Log density [G, LANES]; innovations go to `white` [G, P, T, LANES], if it is not empty."""
    size, outputs, times = drift.shape[1], residual.shape[1], residual.shape[2]
    density = np.zeros((len(drift), LANES))
    step, added, pushed = _square(size), _square(size), _square(size)
    gain, cross, fresh, told = _vector(size), _vector(size), _vector(size), _vector(3)
    steps = np.empty((lengths.shape[1], size, size, LANES))
    noises = np.empty_like(steps)
    for g in range(len(drift)):
        _tabled(drift[g], stationary[g], lengths[g], steps, noises)
        counts, columns = _entries(steps)
        last = np.full(LANES, -1)
        mean, covariance = np.zeros((size, LANES)), first[g].copy()
        for t in range(times):
            if t > 0:
                _loaded(steps, noises, which[g, t - 1], last, step, added)
                _moved(step, added, counts, columns, mean, covariance, pushed, fresh)
            for p in range(outputs):
                if not _any_seen(seen[g, p, t]):
                    continue
                _updated(
                    observed[g, p], residual[g, p, t], noise[g, p, t], seen[g, p, t],
                    mean, covariance, gain, cross, told, density[g],
                )  # fmt: skip
                if len(white):
                    for w in range(LANES):
                        white[g, p, t, w] = told[0, w] * math.sqrt(told[2, w])
    return density


@_compiled
def with_slopes(  # type: ignore[no-untyped-def]
    steps, noises, which, first, observed, residual, noise, seen,
    to_steps, to_noises, to_first, to_observed, to_residual, to_noise,
):  # fmt: skip
    """Log density [G, LANES], and its slopes with respect to all that it is made of, in their shapes."""
    size, outputs, times = steps.shape[2], residual.shape[1], residual.shape[2]
    density = np.zeros((len(steps), LANES))
    step, added, pushed = _square(size), _square(size), _square(size)
    gain, cross, fresh, told = _vector(size), _vector(size), _vector(size), _vector(3)
    turned = _square(size)
    means = np.empty((times, outputs + 1, size, LANES))
    covariances = np.empty((times, outputs + 1, size, size, LANES))
    for g in range(len(steps)):
        counts, columns = _entries(steps[g])
        last = np.full(LANES, -1)
        mean, covariance = np.zeros((size, LANES)), first[g].copy()
        for t in range(times):
            if t > 0:
                _loaded(steps[g], noises[g], which[g, t - 1], last, step, added)
                _moved(step, added, counts, columns, mean, covariance, pushed, fresh)
            for p in range(outputs):
                means[t, p], covariances[t, p] = mean, covariance
                if _any_seen(seen[g, p, t]):
                    _updated(
                        observed[g, p], residual[g, p, t], noise[g, p, t], seen[g, p, t],
                        mean, covariance, gain, cross, told, density[g],
                    )  # fmt: skip
            means[t, outputs], covariances[t, outputs] = mean, covariance
        on_mean, on_covariance = np.zeros((size, LANES)), np.zeros((size, size, LANES))
        for t in range(times - 1, -1, -1):
            for p in range(outputs - 1, -1, -1):
                if _any_seen(seen[g, p, t]):
                    _undone(
                        observed[g, p], residual[g, p, t], noise[g, p, t], seen[g, p, t],
                        means[t, p], covariances[t, p], on_mean, on_covariance,
                        to_observed[g, p], to_residual[g, p, t], to_noise[g, p, t], cross, fresh, gain,
                    )  # fmt: skip
            if t == 0:
                break
            _loaded(steps[g], noises[g], which[g, t - 1], last, step, added)
            _unmoved(
                step, counts, columns, means[t - 1, outputs], covariances[t - 1, outputs],
                on_mean, on_covariance, pushed, turned, fresh, which[g, t - 1], to_steps[g], to_noises[g],
            )  # fmt: skip
        to_first[g] = on_covariance
    return density


@_compiled
def _undone(  # type: ignore[no-untyped-def]
    observed, value, noise, seen, mean, covariance, on_mean, on_covariance,
    to_observed, to_value, to_noise, cross, turned, on_cross,
):  # fmt: skip
    """The adjoint of `_updated`: slopes on what came out become slopes on what went in, in place."""
    size = mean.shape[0]
    error, spread = np.empty(LANES), np.empty(LANES)
    on_error, on_spread = np.empty(LANES), np.empty(LANES)
    for w in range(LANES):
        error[w], spread[w] = value[w], noise[w]
    for i in range(size):
        for w in range(LANES):
            cross[i, w] = 0.0
            error[w] -= observed[i, w] * mean[i, w]
        for k in range(size):
            for w in range(LANES):
                cross[i, w] += covariance[i, k, w] * observed[k, w]
        for w in range(LANES):
            spread[w] += observed[i, w] * cross[i, w]
    for w in range(LANES):
        on_error[w] = -error[w] / spread[w]
        on_spread[w] = 0.5 * (on_error[w] * on_error[w] - 1.0 / spread[w])
    for i in range(size):
        for w in range(LANES):
            turned[i, w] = 0.0
        for k in range(size):
            for w in range(LANES):
                turned[i, w] += on_covariance[i, k, w] * cross[k, w]
        for w in range(LANES):
            # The gain is cross / spread: it moves the mean by the error, and takes gain · crossᵀ from the covariance.
            on_gain = on_mean[i, w] * error[w]
            on_error[w] += cross[i, w] / spread[w] * on_mean[i, w]
            on_spread[w] += (cross[i, w] * turned[i, w] - on_gain * cross[i, w]) / (spread[w] * spread[w])
            on_cross[i, w] = (on_gain - 2.0 * turned[i, w]) / spread[w]
    for w in range(LANES):
        on_error[w] *= seen[w]
        on_spread[w] *= seen[w]
        to_value[w] += on_error[w]
        to_noise[w] += on_spread[w]
    for i in range(size):
        for w in range(LANES):
            on_cross[i, w] = seen[w] * on_cross[i, w] + on_spread[w] * observed[i, w]
            to_observed[i, w] += on_spread[w] * cross[i, w] - on_error[w] * mean[i, w]
            on_mean[i, w] -= on_error[w] * observed[i, w]
    for i in range(size):
        for k in range(size):
            for w in range(LANES):
                to_observed[i, w] += covariance[i, k, w] * on_cross[k, w]
                on_covariance[i, k, w] += 0.5 * (on_cross[i, w] * observed[k, w] + observed[i, w] * on_cross[k, w])


@_compiled
def _unmoved(  # type: ignore[no-untyped-def]
    step, counts, columns, mean, covariance, on_mean, on_covariance, pushed, turned, fresh, which, to_steps, to_noises
):
    """The adjoint of `_moved`, in place; mean and covariance are those before the step."""
    size = mean.shape[0]
    for i in range(size):
        for j in range(size):
            for w in range(LANES):
                pushed[i, j, w] = 0.0  # the slope on the covariance, times Φ
        for k in range(size):
            for a in range(counts[k]):
                j = columns[k, a]
                for w in range(LANES):
                    pushed[i, j, w] += on_covariance[i, k, w] * step[k, j, w]
    for i in range(size):
        for a in range(counts[i]):
            j = columns[i, a]
            for w in range(LANES):
                fresh[0, w] = on_mean[i, w] * mean[j, w]
            for k in range(size):
                for w in range(LANES):
                    fresh[0, w] += 2.0 * pushed[i, k, w] * covariance[k, j, w]
            for w in range(LANES):
                to_steps[which[w], i, j, w] += fresh[0, w]
        for j in range(size):
            for w in range(LANES):
                to_noises[which[w], i, j, w] += on_covariance[i, j, w]
                turned[i, j, w] = 0.0
    for k in range(size):
        for a in range(counts[k]):
            i = columns[k, a]
            for j in range(size):
                for w in range(LANES):
                    turned[i, j, w] += step[k, i, w] * pushed[k, j, w]
    for i in range(size):
        for w in range(LANES):
            fresh[i, w] = 0.0
        for j in range(size):
            for w in range(LANES):
                on_covariance[i, j, w] = turned[i, j, w]
    for k in range(size):
        for a in range(counts[k]):
            i = columns[k, a]
            for w in range(LANES):
                fresh[i, w] += step[k, i, w] * on_mean[k, w]
    for i in range(size):
        for w in range(LANES):
            on_mean[i, w] = fresh[i, w]


@_compiled
def smoothed(  # type: ignore[no-untyped-def]
    drift, stationary, lengths, which, first, observed, residual, noise, seen, wanted, found_mean, found_variance
):
    """Means and variances [G, K, T, LANES] of the combinations `wanted` [G, K, n, LANES], given all that is seen."""
    size, outputs, times = drift.shape[1], residual.shape[1], residual.shape[2]
    density = np.zeros(LANES)
    step, added, pushed = _square(size), _square(size), _square(size)
    cross, fresh = _vector(size), _vector(size)
    means, covariances = np.empty((times, size, LANES)), np.empty((times, size, size, LANES))
    gains, told = np.empty((times, outputs, size, LANES)), np.empty((times, outputs, 3, LANES))
    steps = np.empty((lengths.shape[1], size, size, LANES))
    noises = np.empty_like(steps)
    for g in range(len(drift)):
        _tabled(drift[g], stationary[g], lengths[g], steps, noises)
        counts, columns = _entries(steps)
        last = np.full(LANES, -1)
        mean, covariance = np.zeros((size, LANES)), first[g].copy()
        for t in range(times):
            if t > 0:
                _loaded(steps, noises, which[g, t - 1], last, step, added)
                _moved(step, added, counts, columns, mean, covariance, pushed, fresh)
            means[t], covariances[t] = mean, covariance
            for p in range(outputs):
                if _any_seen(seen[g, p, t]):
                    _updated(
                        observed[g, p], residual[g, p, t], noise[g, p, t], seen[g, p, t],
                        mean, covariance, gains[t, p], cross, told[t, p], density,
                    )  # fmt: skip
        slope, curve = np.zeros((size, LANES)), np.zeros((size, size, LANES))
        for t in range(times - 1, -1, -1):
            for p in range(outputs - 1, -1, -1):
                if _any_seen(seen[g, p, t]):
                    _folded(observed[g, p], gains[t, p], told[t, p], slope, curve, cross, fresh)
            for d in range(wanted.shape[1]):
                _read(
                    wanted[g, d], means[t], covariances[t], slope, curve, cross,
                    found_mean[g, d, t], found_variance[g, d, t],
                )  # fmt: skip
            if t > 0:
                _loaded(steps, noises, which[g, t - 1], last, step, added)
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


@_compiled
def wandered(drift, stationary, lengths, which, first, normal, found):  # type: ignore[no-untyped-def]
    """Paths [G, T, n, LANES] of the states, from normal numbers in that shape."""
    size = drift.shape[1]
    steps = np.empty((lengths.shape[1], size, size, LANES))
    noises = np.empty_like(steps)
    step, added, root = _square(size), _square(size), _square(size)
    for g in range(len(drift)):
        _tabled(drift[g], stationary[g], lengths[g], steps, noises)
        last = np.full(LANES, -1)
        _rooted(first[g], root)
        for t in range(found.shape[1]):
            if t > 0 and _loaded(steps, noises, which[g, t - 1], last, step, added):
                _rooted(added, root)
            for i in range(size):
                for w in range(LANES):
                    found[g, t, i, w] = 0.0
                for k in range(i + 1):
                    for w in range(LANES):
                        found[g, t, i, w] += root[i, k, w] * normal[g, t, k, w]
                for k in range(size if t > 0 else 0):
                    for w in range(LANES):
                        found[g, t, i, w] += step[i, k, w] * found[g, t - 1, k, w]


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
