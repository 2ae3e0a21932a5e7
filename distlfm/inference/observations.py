"""Instances of one kind as tensors with a leading instance dimension.

Shapes: `B` instances, `P` outputs, `T` times of the longest instance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.instance import Instance

TENSORS = ("times", "values", "mask", "variance", "positions", "level")


@dataclass(frozen=True)
class Observations:
    """times: [B, T], padded by repeating the last; values, mask: [B, P, T]; variance: [B, P, T] or None.

    positions: [B, T, d] where there are any, padded likewise. level: [B, P, T], the signal that noise grows with, where
    something better than the values themselves is known.
    """

    ids: tuple[str, ...]
    outputs: tuple[str, ...]
    times: Tensor
    values: Tensor
    mask: Tensor
    variance: Tensor | None
    positions: Tensor | None = None
    level: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def points(self) -> Tensor:
        """Where outputs were observed: times [B, T], or times and positions [B, T, 1 + d]."""
        return self.times if self.positions is None else torch.cat([self.times.unsqueeze(-1), self.positions], -1)

    def rows(self, index: Tensor) -> Observations:
        """The instances at `index`, which may repeat."""
        parts = {name: getattr(self, name) for name in TENSORS}
        chosen = {name: part[index] for name, part in parts.items() if part is not None}
        return replace(self, ids=tuple(self.ids[int(i)] for i in index), **chosen)


def collate(instances: Sequence[Instance], outputs: Sequence[str]) -> Observations:
    """Stack instances; outputs are put in the order given, and one that an instance lacks is unobserved there."""
    assert instances
    length = max(len(instance.times) for instance in instances)
    shape = (len(instances), len(outputs), length)
    times = np.zeros((len(instances), length))
    values, mask = np.zeros(shape), np.zeros(shape, dtype=bool)
    given = [instance.variance is not None for instance in instances]
    if any(given) and not all(given):
        lacking = instances[given.index(False)].id
        raise UsageError(
            f"Some instances have a noise variance and {lacking!r} has none.", "Give it for all of them or for none."
        )
    variance = np.ones(shape) if all(given) else None
    for b, instance in enumerate(instances):
        unknown = [name for name in instance.outputs if name not in outputs]
        if unknown:
            raise UsageError(
                f"Instance {instance.id!r} has an output {unknown[0]!r} that the mechanism does not know.",
                f"The mechanism's outputs are: {', '.join(outputs)}.",
            )
        size = len(instance.times)
        times[b, :size] = instance.times
        times[b, size:] = instance.times[-1]
        place = [outputs.index(name) for name in instance.outputs]
        values[b, place, :size] = np.where(instance.mask, instance.values, 0.0)
        mask[b, place, :size] = instance.mask
        if variance is not None and instance.variance is not None:
            variance[b, place, :size] = np.where(instance.mask, instance.variance, 1.0)
    return Observations(
        tuple(instance.id for instance in instances),
        tuple(outputs),
        torch.from_numpy(times),
        torch.from_numpy(values),
        torch.from_numpy(mask),
        None if variance is None else torch.from_numpy(variance),
        _stacked_positions(instances, length),
    )


def _stacked_positions(instances: Sequence[Instance], length: int) -> Tensor | None:
    """[B, T, d], padded by repeating the last; None where no instance has any."""
    given = [instance.positions for instance in instances if instance.positions is not None]
    if not given:
        return None
    dims = given[0].shape[1]
    if len(given) < len(instances) or any(one.shape[1] != dims for one in given):
        raise UsageError(
            "Some instances have positions and others have none, or in another number of dimensions.",
            "Fit those with the same kind of positions together.",
        )
    stacked = np.stack([np.concatenate([one, np.repeat(one[-1:], length - len(one), 0)]) for one in given])
    return torch.from_numpy(stacked)
