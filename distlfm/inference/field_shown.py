"""Where a fitted field is shown, and kept in a store: an even lattice of times and places where the domain is a box."""

from __future__ import annotations

import itertools

import numpy as np
import torch
from torch import Tensor

from distlfm.inference.field_map import FieldMap
from distlfm.inference.field_settle import FieldSettings
from distlfm.instance import FloatArray

TIMES, FEW_TIMES = 21, 7
ON_LINE, ELSEWHERE = 61, 400
"""Times, and about how many places, on a line and in two or three dimensions, where options do not say."""


def shown_times(settings: FieldSettings, dims: int) -> FloatArray:
    """Even times [T] from the equation's start to its end."""
    count = settings.shown_times or (TIMES if dims == 1 else FEW_TIMES)
    end = settings.start + settings.dt * settings.steps
    return np.linspace(settings.start, end, count)


def shown_axes(settings: FieldSettings) -> list[FloatArray] | None:
    """Even places along each side of a box, [n] each; None for a mesh from a file, whose domain may have any shape."""
    mesh = settings.mesh
    if mesh.kind == "file":
        return None
    assert mesh.lower is not None
    assert mesh.upper is not None
    dims = len(mesh.lower)
    count = settings.shown_places or (ON_LINE if dims == 1 else int(ELSEWHERE ** (1 / dims) + 1e-9))
    return [np.linspace(low, high, count) for low, high in zip(mesh.lower, mesh.upper, strict=True)]


def shown_nodes(nodes: Tensor) -> Tensor:
    """Some of many nodes [X, d] of a mesh."""
    most = ON_LINE if nodes.shape[1] == 1 else ELSEWHERE
    return nodes if len(nodes) <= most else nodes[torch.linspace(0, len(nodes) - 1, most).long()]


def shown_points(field_map: FieldMap, settings: FieldSettings, count: int) -> Tensor:
    """Points [B, Q, 1 + d] to show `count` fields at: for every time, all places, the last axis fastest."""
    axes = shown_axes(settings)
    if axes is None:
        places = shown_nodes(field_map.nodes)
    else:
        places = torch.tensor(list(itertools.product(*axes)), dtype=torch.float64)
    times = torch.from_numpy(shown_times(settings, places.shape[1]))
    points = torch.cat([times.repeat_interleave(len(places)).unsqueeze(-1), places.repeat(len(times), 1)], -1)
    return points.expand(count, -1, -1)
