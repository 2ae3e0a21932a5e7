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

STEADY = 3e-14
"""Change of a variance from one time to the next, as a share of it, that is taken for a rounding error."""

_compiled: Any = njit(cache=True, error_model="numpy", fastmath={"contract"}, nogil=True)


@_compiled
def _square(size):  # type: ignore[no-untyped-def]
    return np.empty((size, size, LANES))


@_compiled
def _vector(size):  # type: ignore[no-untyped-def]
    return np.empty((size, LANES))


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
def _same(noise, seen, t):  # type: ignore[no-untyped-def]
    """Whether as much is seen at a time as at the one before, with the same noise."""
    for p in range(noise.shape[0]):
        for w in range(LANES):
            if noise[p, t, w] != noise[p, t - 1, w] or seen[p, t, w] != seen[p, t - 1, w]:
                return False
    return True


@_compiled
def _settled(covariance, before):  # type: ignore[no-untyped-def]
    """Whether variances are those of `before` [n, LANES], which become theirs."""
    found = True
    for i in range(covariance.shape[0]):
        for w in range(LANES):
            found = found and abs(covariance[i, i, w] - before[i, w]) <= STEADY * covariance[i, i, w]
            before[i, w] = covariance[i, i, w]
    return found


@_compiled
def _moved_alone(step, counts, columns, mean, fresh):  # type: ignore[no-untyped-def]
    """Predict the mean, in place."""
    for i in range(mean.shape[0]):
        for w in range(LANES):
            fresh[i, w] = 0.0
        for a in range(counts[i]):
            k = columns[i, a]
            for w in range(LANES):
                fresh[i, w] += step[i, k, w] * mean[k, w]
    for i in range(mean.shape[0]):
        for w in range(LANES):
            mean[i, w] = fresh[i, w]


@_compiled
def _updated_alone(observed, value, seen, mean, gain, told, volume, density):  # type: ignore[no-untyped-def]
    """Take in one number of each lane with a gain that is known. volume: half the logarithm of its spread."""
    for w in range(LANES):
        told[0, w] = value[w]
    for k in range(mean.shape[0]):
        for w in range(LANES):
            told[0, w] -= observed[k, w] * mean[k, w]
    for w in range(LANES):
        density[w] -= 0.5 * told[0, w] * told[0, w] * told[2, w] + seen[w] * volume[w]
    for i in range(mean.shape[0]):
        for w in range(LANES):
            mean[i, w] += gain[i, w] * told[0, w]


@_compiled
def visited(  # type: ignore[no-untyped-def]
    steps, noises, counts, columns, which, first, observed, residual, noise, seen,
    density, means, covariances, gains, told,
):  # fmt: skip
    """Go through all times of one group, add to its log density, and keep what was met in what is not empty.

    Where gaps and noise stay the same, covariances become steady after a while, and only the mean is left to compute.
    means and covariances: before each number of a time and behind the last one, [T, P + 1, n, LANES] and
    [T, P + 1, n, n, LANES]. gains and told: those of `_updated`, [T, P, n, LANES] and [T, P, 3, LANES].
    """
    size, outputs, times = steps.shape[1], residual.shape[0], residual.shape[1]
    step, added, pushed = _square(size), _square(size), _square(size)
    cross, fresh, before = _vector(size), _vector(size), _vector(size)
    gain, each, volume = np.empty((outputs, size, LANES)), np.empty((outputs, 3, LANES)), _vector(outputs)
    last = np.full(LANES, -1)
    mean, covariance = np.zeros((size, LANES)), first.copy()
    before[:] = 0.0
    calm = False
    for t in range(times):
        steady = False
        if t > 0:
            new = _loaded(steps, noises, which[t - 1], last, step, added)
            alike = _same(noise, seen, t)
            steady = calm and alike and not new
            if steady:
                _moved_alone(step, counts, columns, mean, fresh)
            else:
                _moved(step, added, counts, columns, mean, covariance, pushed, fresh)
                calm = _settled(covariance, before) and alike
        for p in range(outputs):
            if len(means):
                means[t, p] = mean
                covariances[t, p] = covariances[t - 1, p] if steady else covariance
            if _any_seen(seen[p, t]):
                if steady:
                    _updated_alone(observed[p], residual[p, t], seen[p, t], mean, gain[p], each[p], volume[p], density)
                else:
                    _updated(
                        observed[p], residual[p, t], noise[p, t], seen[p, t],
                        mean, covariance, gain[p], cross, each[p], density,
                    )  # fmt: skip
                    if calm:
                        for w in range(LANES):
                            volume[p, w] = 0.5 * (math.log(each[p, 1, w]) + LOG_CIRCLE)
                if len(gains):
                    gains[t, p], told[t, p] = gain[p], each[p]
        if len(means):
            means[t, outputs] = mean
            covariances[t, outputs] = covariances[t - 1, outputs] if steady else covariance


@_compiled
def filtered(  # type: ignore[no-untyped-def]
    steps, noises, counts, columns, which, first, observed, residual, noise, seen, white
):
    """Log density [G, LANES]; innovations go to `white` [G, P, T, LANES], if it is not empty."""
    size, outputs, times = steps.shape[2], residual.shape[1], residual.shape[2]
    density = np.zeros((len(steps), LANES))
    kept = times if len(white) else 0
    gains, told = np.empty((kept, outputs, size, LANES)), np.empty((kept, outputs, 3, LANES))
    means, covariances = np.empty((0, 0, size, LANES)), np.empty((0, 0, size, size, LANES))
    for g in range(len(steps)):
        visited(
            steps[g], noises[g], counts[g], columns[g], which[g], first[g], observed[g], residual[g], noise[g], seen[g],
            density[g], means, covariances, gains, told,
        )  # fmt: skip
        for t in range(kept):
            for p in range(outputs):
                if _any_seen(seen[g, p, t]):
                    for w in range(LANES):
                        white[g, p, t, w] = told[t, p, 0, w] * math.sqrt(told[t, p, 2, w])
    return density


@_compiled
def with_slopes(  # type: ignore[no-untyped-def]
    steps, noises, counts, columns, which, first, observed, residual, noise, seen,
    to_steps, to_noises, to_first, to_observed, to_residual, to_noise,
):  # fmt: skip
    """Log density [G, LANES], and its slopes with respect to all that it is made of, in their shapes."""
    size, outputs, times = steps.shape[2], residual.shape[1], residual.shape[2]
    density = np.zeros((len(steps), LANES))
    step, added, pushed, turned = _square(size), _square(size), _square(size), _square(size)
    gain, cross, fresh = _vector(size), _vector(size), _vector(size)
    gains, told = np.empty((0, outputs, size, LANES)), np.empty((0, outputs, 3, LANES))
    means = np.empty((times, outputs + 1, size, LANES))
    covariances = np.empty((times, outputs + 1, size, size, LANES))
    for g in range(len(steps)):
        visited(
            steps[g], noises[g], counts[g], columns[g], which[g], first[g], observed[g], residual[g], noise[g], seen[g],
            density[g], means, covariances, gains, told,
        )  # fmt: skip
        last = np.full(LANES, -1)
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
                step, counts[g], columns[g], means[t - 1, outputs], covariances[t - 1, outputs],
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
