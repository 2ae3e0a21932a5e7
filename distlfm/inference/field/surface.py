"""A surface through scattered values of a field: Gaussian-process regression over time and space, with its time slope.

The kernel is a product of squared exponentials, one length per dimension, on inducing points: the surface is a sum of
columns times whitened numbers c, and so are its slopes. Lengths, size and noise are found by the marginal likelihood.
What the problem itself says, a known start and values held at a boundary, is taken as data that are almost exact.

Shapes: `T` observed points, `P` pinned ones, `R` columns, `n` times, `J` nodes, `Q` points asked for, `d` dimensions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.field.map import FieldMap
from distlfm.inference.field.points import lattice, place_inducing, whiten
from distlfm.inference.observations import Observations
from distlfm.inference.optimise import OptimiserConfig, minimise
from distlfm.inference.whitened import log_low_rank
from distlfm.mechanisms.priors import LogNormal
from distlfm.solvers.field.meshed import Meshed

LENGTH = LogNormal(median=0.4, spread=0.7)
"""Prior of a length, in units of the domain's extent in that dimension."""

SIZE = LogNormal(median=1.0, spread=1.0)
NOISE = LogNormal(median=0.05, spread=1.5)
"""Priors of the surface's deviation and of the noise, in units of the deviation of the values."""

PINNED = 0.01
"""Deviation with which a known start or boundary holds, in the same units: small beside noise, and not too stiff."""

PIN_TIMES, PIN_PLACES = 16, 40
NUM_TIMES, NUM_PLACES, NUM_ELSEWHERE = 12, 12, 60
"""Inducing points in time, on a line, and in two or three dimensions."""

OPTIMISER = OptimiserConfig(iterations=40, gradient=1e-2, change=1e-6, patience=3)


@dataclass(frozen=True)
class Belief:
    """c ~ N(mean, root rootᵀ) given the data. mean: [R]; root: [R, R]; noise: deviation; freedom: values it is from."""

    mean: Tensor
    root: Tensor
    noise: float
    freedom: float


class Surface:
    """The surface of one instance."""

    def __init__(
        self, field_map: FieldMap, data: Observations, known: Tensor | None = None, hyper: Tensor | None = None
    ) -> None:
        """data: of one instance. known: [T], noise variance that is given. hyper: what `hyper` of another one was."""
        assert data.positions is not None
        seen = data.mask[0, 0]
        self._points, values = data.points[0][seen], data.values[0, 0][seen]
        self._known = None if known is None else known[seen]
        pins, pinned = _pins(field_map)
        self.centre = values.mean()
        self.size = values.std(correction=0).clamp_min(1e-12 + 1e-6 * values.abs().max())
        self._points = torch.cat([self._points, pins])
        self._values = torch.cat([values, pinned]) - self.centre
        self._num_pins = len(pins)
        nodes, span = field_map.nodes, field_map.grid.dt * field_map.grid.steps
        self._extent = torch.cat([torch.tensor([span], dtype=torch.float64), nodes.amax(0) - nodes.amin(0)])
        count = NUM_PLACES if nodes.shape[1] == 1 else NUM_ELSEWHERE
        self._inducing = place_inducing(field_map.discretised, field_map.grid, NUM_TIMES, count)
        self.hyper = self._best() if hyper is None else hyper
        self.belief = self._belief()

    @torch.no_grad()
    def at(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance [Q] at points [Q, 1 + d]."""
        columns = self._columns(self.hyper, points)[0]
        return self.centre + columns @ self.belief.mean, (columns @ self.belief.root).square().sum(-1)

    @torch.no_grad()
    def deviation(self, points: Tensor, generator: torch.Generator) -> Tensor:
        """How far draws of the surface, one per row, are from its mean at points [A, Q, 1 + d]: [A, Q]."""
        columns = self._columns(self.hyper, points.flatten(0, 1))[0].unflatten(0, points.shape[:2])
        noise = torch.randn(len(points), columns.shape[-1], 1, generator=generator, dtype=torch.float64)
        change: Tensor = (columns @ (self.belief.root @ noise)).squeeze(-1)
        return change

    @torch.no_grad()
    def columns_on(self, times: Tensor, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Columns [n, J, R] of the surface and of its slope in time; the surface is `centre` plus columns · c."""
        points, shape = lattice(times, nodes), (len(times), len(nodes))
        value, slope = (self._columns(self.hyper, points, slope=one)[0] for one in (False, True))
        return value.unflatten(0, shape), slope.unflatten(0, shape)

    def _best(self) -> Tensor:
        size = 2 + len(self._extent)
        # From lengths of the prior's middle, and from shorter ones: what is rough may look like noise from afar.
        starts = torch.zeros(2, size, dtype=torch.float64)
        starts[1, : len(self._extent)] = -1.0
        optimum = minimise(lambda z, _: self._objective(z), starts, OPTIMISER)
        value = torch.where(torch.isfinite(optimum.value), optimum.value, torch.inf)
        return optimum.z[value.argmin()].unsqueeze(0)

    def _objective(self, z: Tensor) -> Tensor:
        scaled, residual, noise = self._scaled(z)
        density = log_low_rank(scaled, residual) - 0.5 * noise.log().sum(-1)
        return 0.5 * z.square().sum(-1) - density

    def _scaled(self, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Columns [A, T + P, R] and values [A, T + P] in units of the noise, and its variance [A, T + P]."""
        columns, noise = self._columns(z, self._points), self._noise(z)
        return columns / noise.sqrt().unsqueeze(-1), self._values / noise.sqrt(), noise

    def _noise(self, z: Tensor) -> Tensor:
        """Variance [A, T + P] of data and pins."""
        count = len(self._values) - self._num_pins
        pinned = ((PINNED * self.size) ** 2).expand(len(z), self._num_pins)
        learned = (NOISE.natural(z[:, -1:]) * self.size) ** 2
        own = learned.expand(-1, count) if self._known is None else self._known.expand(len(z), -1)
        return torch.cat([own, pinned], -1)

    def _columns(self, z: Tensor, points: Tensor, *, slope: bool = False) -> Tensor:
        """Columns [A, Q, R] at points [Q, 1 + d], the first a level of its own; of the slope in time if asked."""
        lengths = LENGTH.natural(z[:, : len(self._extent)]) * self._extent
        size = (SIZE.natural(z[:, len(self._extent)]) * self.size)[:, None, None]
        time = _basis(points[:, :1], self._inducing.times.unsqueeze(-1), lengths[:, :1], slope=slope)
        space = _basis(points[:, 1:], self._inducing.places, lengths[:, 1:])
        whole = size * (space.unsqueeze(-1) * time.unsqueeze(-2)).flatten(-2)
        level = torch.zeros_like(whole[..., :1]) if slope else self.size.expand_as(whole[..., :1])
        return torch.cat([level, whole], -1)

    @torch.no_grad()
    def _belief(self) -> Belief:
        scaled, residual, noise = (part[0] for part in self._scaled(self.hyper))
        identity = torch.eye(scaled.shape[-1], dtype=scaled.dtype)
        factor, _ = safe_cholesky(scaled.mT @ scaled + identity)
        mean = torch.cholesky_solve((scaled.mT @ residual.unsqueeze(-1)), factor).squeeze(-1)
        root = torch.linalg.solve_triangular(factor, identity, upper=False).mT
        # What the surface takes up of the data cannot tell of the noise.
        count = len(self._values) - self._num_pins
        used = (scaled[:count] @ root).square().sum()
        level = noise[:count].mean().sqrt()
        return Belief(mean, root, float(level), max(float(count - used), 0.0))


def _basis(points: Tensor, inducing: Tensor, lengths: Tensor, *, slope: bool = False) -> Tensor:
    """Whitened squared-exponential basis [A, Q, M] at points [Q, e]; its derivative by the first axis if asked."""
    cross = _correlation(inducing, points, lengths)
    if slope:
        cross = cross * ((inducing[:, None, 0] - points[None, :, 0]) / lengths[:, :1, None] ** 2)
    return whiten(_correlation(inducing, inducing, lengths), cross)


def _correlation(first: Tensor, second: Tensor, lengths: Tensor) -> Tensor:
    gaps = (first.unsqueeze(1) - second.unsqueeze(0)) / lengths[:, None, None, :]
    return torch.exp(-0.5 * gaps.square().sum(-1))


def _pins(field_map: FieldMap) -> tuple[Tensor, Tensor]:
    """Points [P, 1 + d] where the problem itself says the value [P]: a known start, and held boundaries."""
    nodes, grid = field_map.nodes, field_map.grid
    points, values = [nodes.new_zeros(0, 1 + nodes.shape[1])], [nodes.new_zeros(0)]
    if field_map.initial.kind in ("zero", "given"):
        some = torch.linspace(0, len(nodes) - 1, min(len(nodes), PIN_PLACES)).round().long()
        points.append(lattice(torch.tensor([grid.start], dtype=torch.float64), nodes[some]))
        values.append(field_map.profile[some])
    field = field_map.discretised
    if isinstance(field, Meshed) and len(field.fixed):
        some = torch.linspace(0, len(field.fixed) - 1, min(len(field.fixed), PIN_PLACES)).round().long()
        held = torch.from_numpy(field.fixed)[some]
        times = torch.linspace(grid.start, grid.start + grid.dt * grid.steps, PIN_TIMES + 1, dtype=torch.float64)[1:]
        points.append(lattice(times, nodes[held]))
        values.append(torch.from_numpy(field.fixed_values)[some].repeat(len(times)))
    return torch.cat(points), torch.cat(values)
