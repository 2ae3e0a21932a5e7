"""Linear fields: the marginal likelihood of the unknowns with the force integrated out, and what follows from it.

Shapes: `A` rows of unknowns, `T` observed points, `R` whitened numbers, `Q` query points, `d` space dimensions.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from distlfm.config import Config
from distlfm.inference.field_map import FieldMap
from distlfm.inference.field_places import Places, at_times, pick
from distlfm.inference.field_remainder import draw_remainder
from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.inference.whitened import Asked, Compared, WhitenedMarginal, noise_of
from distlfm.mechanisms.parameters import Values
from distlfm.solvers.field.engine import TimeGrid, solve

EXACT = 1e-12
"""Share of the largest number of its kind below which one is nought."""


class FieldGaussian(WhitenedMarginal):
    """y = offset + columns · w + noise, so w is Gaussian given the data, and everything else is linear in w."""

    def __init__(
        self, model: Model, observations: Observations, field_map: FieldMap, settings: Config | None = None
    ) -> None:
        """settings: what the map was made from, kept with a saved fit."""
        assert observations.positions is not None
        super().__init__(model, observations)
        self.map, self.settings = field_map, settings
        self.places = field_map.places(observations.points)

    def row_bytes(self, num_query: int) -> int:
        times, places = self.map.inducing.counts
        steps, spots = self.map.grid.steps + 1, min(num_query, len(self.map.nodes))
        return 8 * (3 * num_query * times * places + 4 * steps * places * (spots + len(self.map.nodes)))

    def state(self) -> dict[str, Tensor]:
        return {} if self.observations.level is None else {"level": self.observations.level}

    def compared(self, values: Values, rows: Tensor) -> Compared:
        data = self.observations.rows(rows)
        found = self.map.columns(values, rows, self.places)
        noise = noise_of(self.model, values, data)
        residual = data.values[:, 0] - found.offset
        mask = data.mask[:, 0] & ~given(residual, found.columns, data.values[:, 0])
        return Compared(residual, found.columns, found.slack, noise, mask)

    def fitted(self, z: Tensor, rows: Tensor) -> Tensor:
        """Outputs at the observed points given z [A, n], [A, T]."""
        found = self.map.columns(self.model.space.unpack(z), rows, self.places)
        return found.offset + (found.columns @ self.whitened(z, rows).mean.unsqueeze(-1)).squeeze(-1)

    def asked(self, values: Values, rows: Tensor, query: Tensor) -> Asked:
        longer, places, which = self._where(rows, query)
        found = longer.columns(values, which, places)
        return Asked(found.offset, found.columns, found.slack, *longer.force_columns(values, query))

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
    return grid if needed <= grid.steps else TimeGrid(grid.start, grid.dt, needed)
