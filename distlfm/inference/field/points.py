"""Points of fields: observed ones, inducing ones, and those where an initial state is known.

Observed points are pairs of distinct times and distinct places, at which trajectories are read. Inducing points in time
and in space span a basis. A given initial state is carried from the points where it is known to the nodes of a mesh.

Shapes: `B` instances, `A` rows of unknowns, `T` observed points, `U` distinct times, `O` distinct places, `J` nodes,
`N` steps, `r` columns in time, `n` inputs, `M` inducing points, `M_t`, `M_x` of them in time and space, `d` space
dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.gp.inducing import place_on_points
from distlfm.gp.kernels import Hyper
from distlfm.gp.linalg import safe_cholesky
from distlfm.instance import FloatArray
from distlfm.mechanisms.field import InitialConfig
from distlfm.solvers.field.engine import TimeGrid
from distlfm.solvers.field.meshed import Discretised


@dataclass(frozen=True)
class Places:
    """Points of a batch taken apart into distinct times and places.

    before: [U] last step of the grid before each distinct time; share: [U] how far towards the next one; observe:
    [O, J]; time, place: [B, T] which of them each point has.
    """

    before: Tensor
    share: Tensor
    observe: Tensor
    time: Tensor
    place: Tensor


def take_apart(points: Tensor, grid: TimeGrid, discretised: Discretised) -> Places:
    """points: [B, T, 1 + d], none before the start of the grid or beyond its end."""
    flat = points.flatten(0, 1)
    earliest = float(flat[:, 0].min())
    if earliest < grid.start - 1e-9 * grid.dt * grid.steps:
        raise UsageError(
            f"The field is wanted at time {earliest:g}, and its equation starts at {grid.start:g}.",
            "Ask for later times, or set mechanism.start.",
        )
    times, time = torch.unique(flat[:, 0], return_inverse=True)
    where, place = np.unique(flat[:, 1:].numpy(), axis=0, return_inverse=True)
    exact = (times - grid.start) / grid.dt
    near = exact.round()
    exact = torch.where((exact - near).abs() < 1e-9 * grid.steps, near, exact)
    before = exact.floor().clamp(0, grid.steps)
    shape = points.shape[:2]
    observe = discretised.observe(np.ascontiguousarray(where))
    index = torch.from_numpy(np.asarray(place).reshape(-1)).reshape(shape)
    return Places(before.long(), exact - before, observe, time.reshape(shape), index)


def lattice(times: Tensor, places: Tensor) -> Tensor:
    """All pairs [n · m, 1 + d] of times [n] and places [m, d], the places fastest."""
    return torch.cat([times.repeat_interleave(len(places)).unsqueeze(-1), places.repeat(len(times), 1)], -1)


def pulse_of(force: Tensor, grid: TimeGrid) -> Tensor:
    """A force [..., 1, J] put at the time [..., K, J] from which it kicks the first step alone."""
    return torch.nn.functional.pad(force, (0, 0, grid.scheme.pulse_time, 0))


def kicks_of(time: Tensor, places: Places, grid: TimeGrid) -> Tensor:
    """How strongly the answer to a pulse j + 1 steps ago counts at each time: [A, U, N, r] of time [A, N + 1, r]."""
    steps = grid.steps
    kicks = grid.scheme.mix_in_pulses(time, steps)
    # The answer of pulse k to step n is answers[n − 1 − k]; row `steps` is a zero for pulses that are still to come.
    padded = torch.cat([kicks, torch.zeros_like(kicks[:, :1])], 1)
    lag = torch.arange(steps)

    def at(step: Tensor) -> Tensor:
        index = step.unsqueeze(-1) - 1 - lag
        return padded[:, torch.where((index >= 0) & (index < steps), index, steps)]

    share = places.share[None, :, None, None]
    if not bool(places.share.any()):
        return at(places.before)
    return (1 - share) * at(places.before) + share * at(places.before + 1)


def at_times(observed: Tensor, places: Places) -> Tensor:
    """Trajectories [A, S, N + 1, O] at the distinct times, [A, S, U, O]."""
    last = observed.shape[2] - 1
    share = places.share[:, None]
    return (1 - share) * observed[:, :, places.before] + share * observed[:, :, (places.before + 1).clamp_max(last)]


def pick(values: Tensor, places: Places, rows: Tensor) -> Tensor:
    """values [A, ..., U, O] at each instance's points, [A, ..., T]."""
    flat = values.flatten(-2)
    index = places.time[rows] * values.shape[-1] + places.place[rows]
    if values.dim() == 3:
        return flat.gather(-1, index)
    return flat.gather(-1, index.unsqueeze(1).expand(-1, values.shape[1], -1))


SMALLEST = 1e-12
"""Share of the variance that is left open at least; below it rounding rules."""


@dataclass(frozen=True)
class Inducing:
    """times: [M_t]; places: [M_x, d]."""

    times: Tensor
    places: Tensor

    @property
    def counts(self) -> tuple[int, int]:
        return len(self.times), len(self.places)


def place_inducing(discretised: Discretised, grid: TimeGrid, num_times: int, num_places: int) -> Inducing:
    """Even in time; even on a line and spread over the nodes elsewhere."""
    times = torch.linspace(grid.start, grid.start + grid.dt * grid.steps, num_times, dtype=torch.float64)
    nodes = torch.from_numpy(discretised.nodes)
    if nodes.shape[1] == 1:
        low, high = float(nodes.min()), float(nodes.max())
        return Inducing(times, torch.linspace(low, high, num_places, dtype=torch.float64).unsqueeze(-1))
    count = min(num_places, len(nodes))
    everywhere = torch.ones(1, len(nodes), dtype=torch.bool)
    return Inducing(times, place_on_points(nodes.unsqueeze(0), everywhere, num_inducing=count)[0])


def whitened_basis(
    correlation: Callable[[Hyper, Tensor, Tensor], Tensor], hyper: Hyper, at: Tensor, inducing: Tensor
) -> Tensor:
    """Correlation with the inducing points, whitened: [A, n, M]."""
    return whiten(correlation(hyper, inducing, inducing), correlation(hyper, inducing, at))


def whiten(covariance: Tensor, cross: Tensor) -> Tensor:
    """Columns [A, n, M] of independent numbers, from covariances [A, M, M] and those with other points [A, M, n]."""
    factor, _ = safe_cholesky(covariance)
    whitened: Tensor = torch.linalg.solve_triangular(factor, cross, upper=False).mT
    return whitened


def left_open(basis: Tensor) -> Tensor:
    """Deviation [A, n, 1] of what a whitened basis leaves open of a unit variance."""
    return (1 - basis.square().sum(-1, keepdim=True)).clamp_min(SMALLEST).sqrt()


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
    interpolated: FloatArray = np.interp(nodes, points, values[order])
    return interpolated


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
    interpolated: FloatArray = interpolant(nodes)
    outside = np.isnan(interpolated)
    inwards = nodes[outside] + EDGE * (points.mean(0) - nodes[outside])
    interpolated[outside] = interpolant(inwards)
    if np.isnan(interpolated).any():
        first = nodes[np.isnan(interpolated)][0]
        raise UsageError(
            f"The initial state is not given around ({', '.join(f'{x:g}' for x in first)}), which is in the domain.",
            COVER,
        )
    return interpolated
