"""Fields of any equation, linearised around one trajectory: then the force can be integrated out as in a linear one.

Shapes: `A` rows of unknowns, `B` instances, `T` observed points, `N` steps, `J` nodes, `R` whitened numbers, `Q` query
points, `U` and `O` their distinct times and places.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from distlfm.inference.field.linear import CHUNK, Curved, Linearisation, force_bases, force_on, linear_columns
from distlfm.inference.field.map import FieldMap
from distlfm.inference.field.marginal import draw_remainder, reaching
from distlfm.inference.field.points import Places, at_times, left_open, pick
from distlfm.inference.observations import Observations
from distlfm.inference.whitened import Compared, QueryMap, WhitenedMarginal, noise_of
from distlfm.mechanisms.priors import Values
from distlfm.runtime.reporting import stepped
from distlfm.solvers.fem.spec import Csr, FloatArray
from distlfm.solvers.field.meshed import Meshed
from distlfm.solvers.field.sparse import to_csr
from distlfm.solvers.field.tangent import ObservedSteps, Tangent, trajectory


@dataclass(frozen=True)
class Point:
    """Where equations are linearised: unknowns z [B, n] and whitened numbers w [B, R]."""

    z: Tensor
    w: Tensor

    def between(self, other: Point, share: float) -> Point:
        """So far on the way to another."""
        return Point(self.z + share * (other.z - self.z), self.w + share * (other.w - self.w))


@dataclass(frozen=True)
class Solved:
    """Trajectories at a point. theta: [B, k]; initial: [B, J]; force, states: [B, N + 1, J]; ok: [B].

    States are zero where the equation could not be solved.
    """

    theta: Tensor
    initial: Tensor
    force: Tensor
    states: Tensor
    ok: Tensor


@torch.no_grad()
def solve_at(field_map: FieldMap, point: Point) -> Solved:
    """The equation's own trajectories at the point."""
    values = field_map.model.space.unpack(point.z)
    theta, grid = field_map.theta(values), field_map.grid
    force = force_on(field_map, values, point.w, grid.times)
    initial = field_map.start(values)
    if field_map.num_initial:
        starts, size = field_map.starts(values)
        own = point.w[:, -field_map.num_initial :].unsqueeze(1)
        initial = initial + size * (own @ starts[:, :-1]).squeeze(1)
    field = _meshed(field_map)
    trajectories = [trajectory(field, theta[b], initial[b], force[b], grid) for b in range(len(theta))]
    ok = torch.tensor([one is not None for one in trajectories])
    none = torch.zeros_like(force[0])
    return Solved(theta, initial, force, torch.stack([none if one is None else one for one in trajectories]), ok)


def shown_by(places: Places, solved: Solved) -> Tensor:
    """What trajectories show at observed points [B, T]."""
    seen = (places.observe @ solved.states.flatten(0, 1).mT).mT.unflatten(0, solved.states.shape[:2])
    return pick(at_times(seen.unsqueeze(1), places), places, torch.arange(len(seen)))[:, 0]


def _meshed(field_map: FieldMap) -> Meshed:
    assert isinstance(field_map.discretised, Meshed)
    return field_map.discretised


def free_coefficients(field_map: FieldMap) -> tuple[int, ...]:
    """Places in theta of the coefficients that are unknown."""
    return tuple(i for i, name in enumerate(field_map.names) if field_map.model.space[name].free)


def gradient_bytes(field_map: FieldMap, data: Observations) -> int:
    """About how much memory the gradients of one instance's outputs take, with those on both sides of coefficients."""
    points, steps = data.times.shape[1], field_map.grid.steps + 1
    return 16 * points * steps * len(field_map.nodes) * (1 + 2 * len(free_coefficients(field_map)))


class LinearisedField(WhitenedMarginal):
    """Gauss–Newton's model of a field: outputs are linear in force, initial state and coefficients around a point.

    Where noise grows with the signal, the signal is that of the point.
    """

    def __init__(
        self,
        observations: Observations,
        field_map: FieldMap,
        point: Point,
        solved: Solved | None = None,
        sides: Point | None = None,
    ) -> None:
        """solved: trajectories at the point, if known.

        sides: of one instance, points [2 c, ...] with an upper and a lower value of each unknown coefficient.
        """
        assert observations.positions is not None
        self.map, self.point, self.sides = field_map, point, sides
        self.places = field_map.places(observations.points)
        self.solved = solve_at(field_map, point) if solved is None else solved
        self.reached = shown_by(self.places, self.solved)
        if field_map.model.likelihood.takes_level:
            observations = replace(observations, level=self.reached.abs().unsqueeze(1))
        super().__init__(field_map.model, observations)
        self._tangents: dict[int, Tangent] = {}
        self._longer: LinearisedField | None = None
        self._linear = self._linearise()
        self._curved = None if sides is None else self._bend(sides)

    def state(self) -> dict[str, Tensor]:
        tensors = {"point_z": self.point.z, "point_w": self.point.w}
        if self.sides is not None:
            tensors |= {"sides_z": self.sides.z.unsqueeze(0), "sides_w": self.sides.w.unsqueeze(0)}
        return tensors

    def row_bytes(self, num_query: int) -> int:
        steps, size = self.map.grid.steps + 1, self.point.w.shape[1]
        return 8 * (3 * num_query * size + 4 * steps * len(self.map.nodes))

    def compared(self, values: Values, rows: Tensor) -> Compared:
        data = self.observations.rows(rows)
        if self._curved is None:
            linear = linear_columns(self.map, self._linear, values, rows)
        else:
            linear = self._curved.columns(self.map, values)
        noise = noise_of(self.model, values, data)
        return Compared(data.values[:, 0] - linear.offset, linear.columns, linear.slack, noise, data.mask[:, 0])

    def query_map(self, values: Values, rows: Tensor, query: Tensor) -> QueryMap:
        longer = self._reaching(query)
        parts = []
        for i, row in enumerate(rows.tolist()):
            stepped("draw", i + 1, len(rows))
            alone = {name: value[i : i + 1] for name, value in values.items()}
            parts.append(longer.ask_one(row, alone, query[i : i + 1]))
        force, left = longer.map.force_columns(values, query)
        offset, columns, slack = (torch.stack(part) for part in zip(*parts, strict=True))
        return QueryMap(offset, columns, slack, force, left)

    def left_over(
        self, values: Values, rows: Tensor, query: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        longer = self._reaching(query)
        drawn = draw_remainder(longer.map, values, query, generator)
        outputs = []
        for i, row in enumerate(rows.tolist()):
            force, start = drawn.on_grid[i].unsqueeze(-1).numpy(), drawn.initial[i].unsqueeze(-1).numpy()
            moved = longer._tangent(row).forward(force, start)
            outputs.append(longer._seen(moved, longer.map.places(query[i : i + 1]))[:, 0])
        return drawn.at_points, torch.stack(outputs)

    def _reaching(self, query: Tensor) -> LinearisedField:
        """The same on a grid that reaches all query points; the force at the point goes on as its posterior mean."""
        grid = reaching(self.map.grid, float(query[..., 0].max()))
        if grid == self.map.grid:
            return self
        if self._longer is None or self._longer.map.grid != grid:
            field_map = self.map.with_grid(grid)
            self._longer = LinearisedField(self.observations, field_map, self.point, sides=self.sides)
        return self._longer

    def ask_one(self, b: int, values: Values, query: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Offset [Q], columns [Q, R] and slack [Q] of one instance at query points [1, Q, 1 + d], for one z."""
        tangent, places = self._tangent(b), self.map.places(query)
        states, force_there, start = self._base(b, values)
        still = tangent.forward(-force_there.unsqueeze(-1).numpy(), start.unsqueeze(-1).numpy())[..., 0]
        offset = self._seen((states.numpy() + still)[..., None], places)[:, 0]
        force, initial = self._changes(values)
        size = max(1, CHUNK // force[..., 0].size)
        parts = [
            self._seen(tangent.forward(force[..., i : i + size], initial[..., i : i + size]), places)
            for i in range(0, force.shape[-1], size)
        ]
        found, rest = torch.cat(parts, -1), 2 if self.map.num_initial else 1
        return offset, found[:, :-rest], found[:, -rest:].square().sum(-1)

    def _base(self, b: int, values: Values) -> tuple[Tensor, Tensor, Tensor]:
        """States and force [N + 1, J] to start from at one z, and how far the initial state [J] is from theirs."""
        at, theta = self.solved, self.map.theta(values)
        start = self.map.start(values)[0]
        if self._curved is None:
            moved = torch.from_numpy(self._tangent(b).by_theta()) @ (theta[0] - at.theta[b])
            return at.states[b] + moved, at.force[b], start - at.initial[b]
        weights = self._curved.weights(theta, bounded=False)[0]
        states = torch.einsum("i,inj->nj", weights, self._around.states)
        return states, torch.einsum("i,inj->nj", weights, self._around.force), start - weights @ self._around.initial

    def _bend(self, sides: Point) -> Curved:
        """Linearisations at the point and at its sides."""
        assert len(self.solved.ok) == 1
        apart = [Point(sides.z[i : i + 1], sides.w[i : i + 1]) for i in range(len(sides.z))]
        every = [self, *(LinearisedField(self.observations, self.map, one) for one in apart)]
        parts = zip(*(vars(one.solved).values() for one in every), strict=True)
        self._around = Solved(*(torch.cat(part) for part in parts))
        names = ("constant", "by_force", "by_initial", "by_theta", "theta")
        joined = {name: torch.cat([getattr(one._linear, name) for one in every]) for name in names}
        linear = Linearisation(self.map.grid.times, **joined)
        around = self._around
        value = torch.cat([one.reached for one in every])
        which = free_coefficients(self.map)
        return Curved(which, around.theta, value, around.force, around.initial, linear)

    def _changes(self, values: Values) -> tuple[FloatArray, FloatArray]:
        """Changes of force [N + 1, J, S] and initial state [J, S] by each of w, then by what the columns leave open."""
        times, nodes = self.map.grid.times, self.map.nodes
        if self.map.separable is None:
            basis, left = self.map.joint_basis_on(values, times)
            force = torch.cat([basis[0], left[0].unsqueeze(-1)], -1)
        else:
            space, time, deviation = (part[0] for part in force_bases(self.map, values, times))
            whole = (time[:, None, None, :] * space[None, :, :, None]).flatten(-2)
            loose = left_open(time).unsqueeze(1) + left_open(space).unsqueeze(0)
            force = deviation * torch.cat([whole, loose], -1)
        initial = torch.zeros(len(nodes), force.shape[-1], dtype=force.dtype)
        if self.map.num_initial:
            starts, size = self.map.starts(values)
            own, last = (size[0] * starts[0]).mT.split([self.map.num_initial, 1], -1)
            none = force.new_zeros(*force.shape[:2], self.map.num_initial)
            force = torch.cat([force[..., :-1], none, force[..., -1:], none[..., :1]], -1)
            initial = torch.cat([initial[:, :-1], own, initial[:, :1], last], -1)
        return force.numpy(), initial.numpy()

    def _seen(self, states: FloatArray, places: Places) -> Tensor:
        """Changes of the states [N + 1, J, S] at the query points [Q, S]."""
        steps = torch.from_numpy(states)
        share = places.share[:, None, None]
        later = (places.before + 1).clamp_max(len(steps) - 1)
        at = (1 - share) * steps[places.before] + share * steps[later]
        flat = at.permute(1, 0, 2).flatten(1)
        seen = (places.observe @ flat).unflatten(1, at.shape[::2])
        seen_values: Tensor = seen[places.place[0], places.time[0]]
        return seen_values

    def _tangent(self, b: int) -> Tangent:
        if b not in self._tangents:
            at = self.solved
            self._tangents[b] = Tangent(_meshed(self.map), at.theta[b], at.force[b], at.states[b], self.map.grid)
        return self._tangents[b]

    def _linearise(self) -> Linearisation:
        stepped("gradients")
        gradients = [self._gradients(b) for b in range(len(self.solved.ok))]
        by_force, by_initial, by_theta = (torch.stack(part) for part in zip(*gradients, strict=True))
        point = self.solved
        constant = self.reached - torch.einsum("btnj,bnj->bt", by_force, point.force)
        constant = constant - (by_initial @ point.initial.unsqueeze(-1)).squeeze(-1)
        return Linearisation(self.map.grid.times, constant, by_force, by_initial, by_theta, point.theta)

    def _gradients(self, b: int) -> tuple[Tensor, Tensor, Tensor]:
        count, nodes = self.places.time.shape[1], len(self.map.nodes)
        if not bool(self.solved.ok[b]):
            zero = torch.zeros(count, self.map.grid.steps + 1, nodes, dtype=torch.float64)
            return zero, zero[:, 0], torch.zeros(count, self.solved.theta.shape[1], dtype=torch.float64)
        places, time = self.places, self.places.time[b]
        rows = Csr(to_csr(places.observe)[places.place[b].numpy()])
        watched = ObservedSteps(places.before[time].numpy(), places.share[time].numpy(), rows)
        gradients = self._tangent(b).backward(watched)
        return torch.from_numpy(gradients.force), torch.from_numpy(gradients.initial), torch.from_numpy(gradients.theta)
