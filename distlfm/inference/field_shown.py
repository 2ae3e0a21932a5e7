"""Where a fitted field is shown."""

from __future__ import annotations

import torch
from torch import Tensor

from distlfm.inference.field_map import FieldMap

TIMES, FEW_TIMES = 21, 7
ON_LINE, ELSEWHERE = 61, 400
"""Times, and the most places, on a line and in two or three dimensions."""


def shown_points(field_map: FieldMap, count: int) -> Tensor:
    """Points [B, Q, 1 + d] to show `count` fields at: even times, and all nodes of the mesh, or some of many."""
    grid, nodes = field_map.grid, field_map.nodes
    most = ON_LINE if nodes.shape[1] == 1 else ELSEWHERE
    if len(nodes) > most:
        nodes = nodes[torch.linspace(0, len(nodes) - 1, most).long()]
    num_times = TIMES if nodes.shape[1] == 1 else FEW_TIMES
    times = torch.linspace(grid.start, grid.start + grid.dt * grid.steps, num_times, dtype=torch.float64)
    points = torch.cat([times.repeat_interleave(len(nodes)).unsqueeze(-1), nodes.repeat(len(times), 1)], -1)
    return points.expand(count, -1, -1)
