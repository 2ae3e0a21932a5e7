"""The steps of each instance: its own number of them, with its observed times among their ends.

Instances of a batch have tables of equal size; those with fewer steps end with steps of length zero, which change
nothing. Shapes: `B` instances, `A` of them, `T` times, `N` steps, `Q` query times.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from distlfm.inference.observations import Observations

LEAST_STEPS = 16
"""Steps of a span, at least."""

STEPS_PER_GAP = 2
"""Steps from one observation to the next, if they are at the median distance."""


@dataclass(frozen=True)
class Grid:
    """nodes: [B, N + 1] times at which steps begin and end; place: [B, T] which of them are the observed times.

    steps: [B], of the span of the data, as asked for; a gap has the next larger whole number.
    """

    nodes: Tensor
    place: Tensor
    steps: Tensor

    @staticmethod
    def of(times: Tensor, steps: Tensor) -> Grid:
        """Cut the gaps between times [B, T], padded by repeating the last, so that a span has `steps` [B] or more."""
        nodes, places = [], []
        for row, count in zip(times.numpy(), steps.tolist(), strict=True):
            distinct, place = np.unique(row, return_inverse=True)
            longest = max(float(row[-1] - row[0]), 1e-300) / count
            cuts = np.maximum(np.ceil(np.diff(distinct) / longest - 1e-6), 1).astype(np.int64)
            ends = np.concatenate([[0], np.cumsum(cuts)])
            nodes.append(np.interp(np.arange(ends[-1] + 1), ends, distinct))
            places.append(ends[place])
        size = max(map(len, nodes))
        padded = [np.concatenate([one, np.full(size - len(one), one[-1])]) for one in nodes]
        return Grid(torch.from_numpy(np.stack(padded)), torch.from_numpy(np.stack(places)), steps)

    @staticmethod
    def chosen(observations: Observations) -> Grid:
        """As the observed times suggest."""
        counts = []
        for times, mask in zip(observations.times, observations.mask.any(-2), strict=True):
            gaps = torch.diff(torch.unique(times[mask]))
            each = float((times[-1] - times[0]) / gaps.median()) if len(gaps) else 1.0
            counts.append(min(max(LEAST_STEPS, round(STEPS_PER_GAP * each)), 2 * LEAST_STEPS + round(each)))
        return Grid.of(observations.times, torch.tensor(counts))

    def until(self, last: Tensor) -> Grid:
        """The same with further steps up to the times `last` [B], for instances whose nodes end before."""
        first, end = self.nodes[:, 0], self.nodes[:, -1]
        width = ((end - first) / self.steps).clamp_min(1e-300)
        more = ((last - end) / width - 1e-6).ceil().clamp_min(0).long()
        if not bool(more.any()):
            return self
        number = torch.arange(1, int(more.max()) + 1)
        part = torch.minimum(number / more.clamp_min(1).unsqueeze(-1), torch.ones(()).double())
        beyond = end.unsqueeze(-1) + part * (last - end).clamp_min(0).unsqueeze(-1)
        return Grid(torch.cat([self.nodes, beyond], -1), self.place, self.steps)

    def rows(self, index: Tensor) -> Grid:
        """Of the instances at `index`, without the padding that none of them needs."""
        nodes = self.nodes[index]
        used = int((torch.diff(nodes, dim=-1) > 0).sum(-1).max()) + 1 if len(index) else 1
        return Grid(nodes[:, :used], self.place[index], self.steps[index])

    @property
    def lengths(self) -> Tensor:
        """[B, N]."""
        return torch.diff(self.nodes, dim=-1)

    @property
    def stages(self) -> Tensor:
        """Times [B, 2·N + 1] at which a step needs the force: nodes, and the middles between them."""
        middles = 0.5 * (self.nodes[:, :-1] + self.nodes[:, 1:])
        both = torch.stack([self.nodes[:, :-1], middles], -1).flatten(-2)
        return torch.cat([both, self.nodes[:, -1:]], -1)
