"""Linear fields: the marginal likelihood of the unknowns with the force integrated out, and what follows from it.

A force is a sum of columns times whitened numbers and a remainder that is independent of them (Matheron's rule, taken
apart). The remainder, which the inducing points leave open of the force and of an unknown start, is drawn from the
prior. Of a kernel with factors, time K_t = C_t C_tᵀ + E_t and space K_x = C_x C_xᵀ + E_x, its covariance is `E_t ⊗ K_x
+ C_t C_tᵀ ⊗ E_x`: roots of what each factor leaves open are enough to draw it.

Shapes: `A` rows of unknowns, `T` observed points, `R` whitened numbers, `Q` query points, `N` steps, `J` nodes, `d`
space dimensions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from distlfm.gp.linalg import pivoted_root
from distlfm.inference.field.map import FieldMap
from distlfm.inference.field.points import Places, at_times, lattice, pick, whitened_basis
from distlfm.inference.observations import Observations
from distlfm.inference.whitened import Compared, QueryMap, WhitenedMarginal, noise_of
from distlfm.mechanisms.priors import Values
from distlfm.solvers.field.engine import TimeGrid, solve

RESOLVED = 1e-6
"""Share of the variance below which what is left open is drawn as if independent from point to point."""


@dataclass(frozen=True)
class Remainder:
    """One draw per row. at_points: [A, Q]; on_grid: [A, N + 1, J], that force at steps and nodes; initial: [A, J]."""

    at_points: Tensor
    on_grid: Tensor
    initial: Tensor


def draw_remainder(field_map: FieldMap, values: Values, query: Tensor, generator: torch.Generator) -> Remainder:
    """Draw at query points [A, Q, 1 + d], and on the grid and nodes of the map."""
    draw = _joint if field_map.separable is None else _separable
    at_points, on_grid = draw(field_map, values, query, generator)
    return Remainder(at_points, on_grid, _initial(field_map, values, generator))


def _separable(field_map: FieldMap, values: Values, query: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    parts, hyper = field_map.separable, field_map.model.hyper(values)[0]
    assert parts is not None
    count, steps, nodes = len(query), field_map.grid.steps + 1, len(field_map.nodes)
    times = torch.cat([field_map.grid.times.expand(count, -1), query[..., 0]], 1)
    places = torch.cat([field_map.nodes.expand(count, -1, -1), query[..., 1:]], 1)
    time = whitened_basis(parts.time, hyper, times, field_map.inducing.times)
    space = whitened_basis(parts.space, hyper, places, field_map.inducing.places)
    open_time = _left_root(lambda some: parts.time(hyper, times, _picked(times, some)), time)
    open_space = _left_root(lambda some: parts.space(hyper, places, _picked(places, some)), space)
    whole_space = torch.cat([space, open_space], -1)
    first = _normal(generator, count, open_time.shape[-1], whole_space.shape[-1])
    second = _normal(generator, count, time.shape[-1], open_space.shape[-1])
    size = parts.variance(hyper).sqrt()[:, None]

    moving, staying = open_time @ first, time @ second
    grid = moving[:, :steps] @ whole_space[:, :nodes].mT + staying[:, :steps] @ open_space[:, :nodes].mT
    at = (moving[:, steps:] * whole_space[:, nodes:]).sum(-1) + (staying[:, steps:] * open_space[:, nodes:]).sum(-1)
    explained = 1 - time[:, steps:].square().sum(-1) * space[:, nodes:].square().sum(-1)
    drawn = _power(open_time[:, steps:]) * _power(whole_space[:, nodes:])
    drawn = drawn + _power(time[:, steps:]) * _power(open_space[:, nodes:])
    at = at + (explained - drawn).clamp_min(0.0).sqrt() * _normal(generator, *at.shape)
    return size * at, size.unsqueeze(-1) * grid


def _joint(field_map: FieldMap, values: Values, query: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    kernel, hyper = field_map.kernel, field_map.model.hyper(values)[0]
    count, times, nodes = len(query), field_map.grid.times, field_map.nodes
    on_grid = lattice(times, nodes)
    points = torch.cat([on_grid.expand(count, -1, -1), query], 1)
    basis = field_map.joint_basis(hyper, points)
    variance = kernel.diagonal(hyper, points).expand(points.shape[:2])
    root = _left_root(lambda some: kernel.covariance(hyper, points, _picked(points, some)), basis, variance)
    drawn = (root @ _normal(generator, count, root.shape[-1], 1)).squeeze(-1)
    rest = (variance - _power(basis) - _power(root)).clamp_min(0.0).sqrt()
    drawn = drawn + rest * _normal(generator, *rest.shape)
    grid, at = drawn.split([len(on_grid), query.shape[1]], 1)
    return at, grid.unflatten(1, (len(times), len(nodes)))


def _initial(field_map: FieldMap, values: Values, generator: torch.Generator) -> Tensor:
    nodes, count = field_map.nodes, len(field_map.theta(values))
    if field_map.initial.kind != "field":
        return torch.zeros(count, len(nodes), dtype=torch.float64)
    hyper = field_map.model.hyper(values)[0]
    correlation = field_map.start_correlation(values)
    basis = whitened_basis(correlation, hyper, nodes, field_map.inducing.places)
    root = _left_root(lambda some: correlation(hyper, nodes, nodes[some].unsqueeze(1)), basis)
    drawn = (root @ _normal(generator, count, root.shape[-1], 1)).squeeze(-1)
    return values["initial_deviation"] * drawn


def _left_root(columns: Callable[[Tensor], Tensor], basis: Tensor, variance: Tensor | None = None) -> Tensor:
    """A root [A, n, r] of the covariance that a whitened basis [A, n, M] leaves open; columns: [A] → [A, n, 1]."""
    rows = torch.arange(len(basis))
    whole = torch.ones_like(basis[..., 0]) if variance is None else variance
    left = (whole - _power(basis)).clamp_min(0.0)

    def column(pivot: Tensor) -> Tensor:
        return (columns(pivot) - basis @ basis[rows, pivot].unsqueeze(-1)).squeeze(-1)

    return pivoted_root(column, left, RESOLVED * float(whole.max()))


def _picked(points: Tensor, some: Tensor) -> Tensor:
    """The points number `some` [A] of points [A, n, …], as [A, 1, …]."""
    return points[torch.arange(len(some)), some].unsqueeze(1)


def _power(columns: Tensor) -> Tensor:
    return columns.square().sum(-1)


def _normal(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


EXACT = 1e-12
"""Relative tolerance below which a value counts as zero."""


class FieldGaussian(WhitenedMarginal):
    """y = offset + columns · w + noise, so w is Gaussian given the data, and everything else is linear in w."""

    def __init__(self, observations: Observations, field_map: FieldMap) -> None:
        assert observations.positions is not None
        super().__init__(field_map.model, observations)
        self.map = field_map
        self.places = field_map.places(observations.points)

    def row_bytes(self, num_query: int) -> int:
        times, places = self.map.inducing.counts
        steps, spots = self.map.grid.steps + 1, min(num_query, len(self.map.nodes))
        return 8 * (3 * num_query * times * places + 4 * steps * places * (spots + len(self.map.nodes)))

    def state(self) -> dict[str, Tensor]:
        return {} if self.observations.level is None else {"level": self.observations.level}

    def compared(self, values: Values, rows: Tensor) -> Compared:
        data = self.observations.rows(rows)
        columns = self.map.columns(values, rows, self.places)
        noise = noise_of(self.model, values, data)
        residual = data.values[:, 0] - columns.offset
        mask = data.mask[:, 0] & ~given(residual, columns.columns, data.values[:, 0])
        return Compared(residual, columns.columns, columns.slack, noise, mask)

    def fitted(self, z: Tensor, rows: Tensor) -> Tensor:
        """Outputs at the observed points given z [A, n], [A, T]."""
        columns = self.map.columns(self.model.space.unpack(z), rows, self.places)
        return columns.offset + (columns.columns @ self.whitened(z, rows).mean.unsqueeze(-1)).squeeze(-1)

    def query_map(self, values: Values, rows: Tensor, query: Tensor) -> QueryMap:
        longer, places, which = self._where(rows, query)
        columns = longer.columns(values, which, places)
        return QueryMap(columns.offset, columns.columns, columns.slack, *longer.force_columns(values, query))

    def left_over(
        self, values: Values, rows: Tensor, query: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        longer, places, which = self._where(rows, query)
        drawn = draw_remainder(longer, values, query, generator)
        # Shapes of projected solutions are those of the columns: what is left of the force has others.
        engine, start, force = longer.discretised.engine, drawn.initial.unsqueeze(1), drawn.on_grid.unsqueeze(1)
        observed = solve(engine, longer.theta(values), start, force, longer.grid, places.observe, driven=False)
        return drawn.at_points, pick(at_times(observed, places), places, which)[:, 0]

    def _where(self, rows: Tensor, query: Tensor) -> tuple[FieldMap, Places, Tensor]:
        """The map on a grid that reaches all query points, their places, and which of the places each row has."""
        longer = self.map.with_grid(reaching(self.map.grid, float(query[..., 0].max())))
        shared = len(query) > 1 and bool((query == query[:1]).all())
        places = longer.places(query[:1] if shared else query)
        return longer, places, torch.zeros_like(rows) if shared else torch.arange(len(rows))


def given(residual: Tensor, columns: Tensor, values: Tensor) -> Tensor:
    """Points that repeat a boundary or initial condition, [A, T]: no force moves them, and nothing is left to explain.

    Nobody measured them, so they tell nothing of the noise, which they would make too small.
    """
    moved = columns.detach().abs().amax(-1)
    left = residual.detach().abs()
    return (moved <= EXACT * moved.amax(-1, keepdim=True)) & (left <= EXACT * values.abs().amax(-1, keepdim=True))


def reaching(grid: TimeGrid, until: float) -> TimeGrid:
    """The grid, longer if need be, so that it reaches `until`."""
    needed = math.ceil((until - grid.start) / grid.dt - 1e-9)
    return grid if needed <= grid.steps else replace(grid, steps=needed)
