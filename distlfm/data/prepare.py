"""Instances made ready for a fit: cut into windows, and put into units of their own size."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from distlfm.instance import MIN_TIMES, Instance, Truth

MIN_FILLED = 0.5
"""A window that holds fewer than this share of the points that the fullest one has is left out."""


def windows(instances: Iterable[Instance], length: float) -> Iterator[Instance]:
    """Each instance cut into pieces of `length` in time, named `id/0`, `id/1`, …; times count from a piece's start."""
    for instance in instances:
        number = np.floor((instance.times - instance.times[0]) / length + 1e-9).astype(int)
        counts = np.bincount(number)
        for piece in np.flatnonzero(counts >= max(MIN_TIMES, MIN_FILLED * counts.max())):
            here = number == piece
            if not instance.mask[:, here].any():
                continue
            yield replace(
                instance,
                id=f"{instance.id}/{piece}",
                times=instance.times[here] - instance.times[here][0],
                values=instance.values[:, here],
                mask=instance.mask[:, here],
                positions=None if instance.positions is None else instance.positions[here],
                variance=None if instance.variance is None else instance.variance[:, here],
                truth=None,
                metadata={**instance.metadata, "window_start": f"{instance.times[here][0]:g}"},
            )


def scaled(instance: Instance) -> Instance:
    """Every output divided by its own root mean square; the metadata keep the divisors.

    True parameters are dropped, as their units no longer hold; the true force stays.
    """
    observed = np.where(instance.mask, instance.values, 0.0)
    count = np.maximum(instance.mask.sum(1), 1)
    size = np.sqrt((observed**2).sum(1) / count)
    size = np.where(size > 0, size, 1.0)[:, None]
    truth = instance.truth
    if truth is not None:
        outputs = None if truth.outputs is None else truth.outputs / size
        truth = Truth(truth.times, truth.force, outputs, truth.positions)
    divisors = {f"scale_{name}": f"{value:.17g}" for name, value in zip(instance.outputs, size[:, 0], strict=True)}
    return replace(
        instance,
        values=instance.values / size,
        variance=None if instance.variance is None else instance.variance / size**2,
        truth=truth,
        metadata={**instance.metadata, **divisors, "value_unit": "root mean square"},
    )
