"""A given initial state, from the points where it is known to the nodes of a mesh.

Shapes: `J` nodes, `d` dimensions.
"""

from __future__ import annotations

import numpy as np

from distlfm.errors import UsageError
from distlfm.instance import FloatArray
from distlfm.mechanisms.field import InitialConfig

EDGE = 1e-9
"""Nodes so far outside the points, in units of the domain's extent, are on their edge but for rounding."""

COVER = "Give mechanism.initial.points that cover the domain."


def profile_at(given: InitialConfig, nodes: FloatArray) -> FloatArray:
    """The given state at nodes [J, d], linear between its points; zero where none is given."""
    if given.kind not in ("given", "scaled"):
        return np.zeros(len(nodes))
    values = np.array(given.values)
    if len(values) == 1:
        return np.full(len(nodes), values[0])
    points, dims = np.array(given.points).reshape(len(values), -1), nodes.shape[1]
    if points.shape[1] != dims:
        raise UsageError(
            f"Points of the initial state have {points.shape[1]} coordinates, and the domain has {dims} dimensions.",
            f"Give each of mechanism.initial.points {dims} numbers, or one value for the whole domain.",
        )
    return _on_a_line(points[:, 0], values, nodes[:, 0]) if dims == 1 else _between(points, values, nodes)


def _on_a_line(points: FloatArray, values: FloatArray, nodes: FloatArray) -> FloatArray:
    order = np.argsort(points)
    points = points[order]
    if points[0] > nodes.min() + EDGE or points[-1] < nodes.max() - EDGE:
        raise UsageError(
            f"The initial state is given from {points[0]:g} to {points[-1]:g}, and the domain reaches from "
            f"{nodes.min():g} to {nodes.max():g}.",
            COVER,
        )
    found: FloatArray = np.interp(nodes, points, values[order])
    return found


def _between(points: FloatArray, values: FloatArray, nodes: FloatArray) -> FloatArray:
    """Linear in the simplices of Delaunay's triangulation."""
    from scipy.interpolate import LinearNDInterpolator
    from scipy.spatial import QhullError

    try:
        interpolant = LinearNDInterpolator(points, values, rescale=True)
    except (QhullError, ValueError):
        raise UsageError(
            f"The {len(points)} points of the initial state span no part of a domain in {nodes.shape[1]} dimensions.",
            f"{COVER} They must not all lie on one line or plane.",
        ) from None
    found: FloatArray = interpolant(nodes)
    outside = np.isnan(found)
    inwards = nodes[outside] + EDGE * (points.mean(0) - nodes[outside])
    found[outside] = interpolant(inwards)
    if np.isnan(found).any():
        first = nodes[np.isnan(found)][0]
        raise UsageError(
            f"The initial state is not given around ({', '.join(f'{x:g}' for x in first)}), which is in the domain.",
            COVER,
        )
    return found
