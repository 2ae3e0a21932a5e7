"""Observations of a linear field as a linear map of whitened numbers, through the solver.

The force is `√variance · Σ (space column × time column) · w` plus what the inducing points leave open; w is standard
normal. A linear equation with constant coefficients answers a pulse at any time alike, so only the space columns go
through the solver, once, and the time columns are convolved with the answer.

What inducing points leave open is bounded by the answer to its deviation where no answer to a force is negative. A
force under a derivative pushes one side up and the other down: there the answers of single nodes are taken by size.

Shapes: `A` rows of unknowns, `J` nodes, `G` groups of them, `N` steps, `T` observed points, `R` whitened numbers,
`M_t`, `M_x` inducing points in time and space, `O` places, `d` space dimensions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.gp.inducing import place_on_points
from distlfm.gp.kernels import Hyper, Separable, separate
from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.field.points import (
    SMALLEST,
    Inducing,
    Places,
    at_times,
    kicks_of,
    left_open,
    pick,
    profile_at,
    pulse_of,
    take_apart,
    whitened_basis,
)
from distlfm.inference.model import Model
from distlfm.mechanisms.priors import Values
from distlfm.solvers.field.engine import Engine, TimeGrid, solve
from distlfm.solvers.field.meshed import Discretised
from distlfm.solvers.field.reduced import ReducedEngine, find_shapes
from distlfm.solvers.field.sparse import SparseEngine

OPPOSED = 0.1
"""Share of the answers against the others' sign above which a force counts as moving outputs both ways.

Less than that comes of the time steps' scheme too."""

PROBED = (0.3, 0.5, 0.7)
"""Where along the domain's diagonal the answers are looked at."""

FAR = 1.5
"""How far from the prior's middle, in units of its deviation, coefficients are tried too."""

CHUNK = 2_000_000
"""Numbers of a force for which answers are computed at once."""

MOST_GROUPS = 250
"""Nodes of larger meshes are taken in so many groups of neighbours, whose answers are sized as one."""


@torch.no_grad()
def moves_both_ways(model: Model, engine: Engine, nodes: Tensor, grid: TimeGrid) -> bool:
    """Whether it does at the middle of the coefficients' priors, or on either side of it; nodes: [J, d]."""
    low, high = nodes.amin(0), nodes.amax(0)
    near = [int((nodes - (low + share * (high - low))).square().sum(-1).argmin()) for share in PROBED]
    index = torch.tensor([list(range(len(near))), near])
    observe = torch.sparse_coo_tensor(
        index, torch.ones(len(near), dtype=torch.float64), (len(near), len(nodes)), check_invariants=True
    ).coalesce()
    theta = _samples(model, engine.names)
    none = torch.zeros(1, len(near), grid.steps + 1, len(nodes), dtype=torch.float64)
    none = none.expand(len(theta), -1, -1, -1)
    last = torch.zeros(len(theta), len(near), grid.steps + 1, len(near), dtype=torch.float64)
    last[:, :, -1] = torch.eye(len(near), dtype=torch.float64)
    for some in theta.split(max(1, CHUNK // none[0].numel())):
        count = len(some)
        _, saved = engine.forward(some, none[:count, :, 0], none[:count], grid, observe, driven=False, keep=True)
        answers = engine.adjoint(saved, last[:count]).force.flatten(2)
        up, down = answers.clamp_min(0.0).sum(-1), -answers.clamp_max(0.0).sum(-1)
        if bool((torch.minimum(up, down) > OPPOSED * torch.maximum(up, down)).any()):
            return True
    return False


def groups_of(nodes: Tensor) -> Tensor:
    """Which of at most MOST_GROUPS groups of neighbours each node [J, d] is in, [J]."""
    if len(nodes) <= MOST_GROUPS:
        return torch.arange(len(nodes))
    everywhere = torch.ones(1, len(nodes), dtype=torch.bool)
    centres = place_on_points(nodes.unsqueeze(0), everywhere, num_inducing=MOST_GROUPS)[0]
    nearest = torch.cat([torch.cdist(some, centres).argmin(-1) for some in nodes.split(10_000)])
    found: Tensor = torch.unique(nearest, return_inverse=True)[1]
    return found


def pulses_of(groups: Tensor) -> Tensor:
    """A pulse [G, 1, J] of one on each group of nodes."""
    count = int(groups.max()) + 1
    return torch.nn.functional.one_hot(groups, count).mT.to(torch.float64).unsqueeze(1)


def largest_in(groups: Tensor, values: Tensor) -> Tensor:
    """The largest of values [..., J] in each group, [..., G]."""
    found = values.new_zeros(*values.shape[:-1], int(groups.max()) + 1)
    return found.scatter_reduce(-1, groups.expand_as(values), values, "amax", include_self=False)


def _samples(model: Model, names: tuple[str, ...]) -> Tensor:
    """Coefficients [A, k]: the prior's middle, and each unknown one above and below it."""
    space = model.space
    middle = torch.zeros(1, space.num_free, dtype=torch.float64)
    found = [middle]
    for name in names:
        if space[name].free:
            step = torch.zeros_like(middle)
            step[:, space.slice_of(name)] = FAR
            found += [middle + step, middle - step]
    values: Values = space.unpack(torch.cat(found))
    return torch.cat([values[name] for name in names], -1)


DENSE_PRODUCT = 4
"""All pairs of observed times and places are computed at once if they are at most this many times those observed."""


@dataclass(frozen=True)
class Columns:
    """outputs = offset + columns · w. offset: [A, T]; columns: [A, T, R]; slack: [A, T], the most variance left out."""

    offset: Tensor
    columns: Tensor
    slack: Tensor


class FieldMap:
    """The map of one kind of field, for any unknowns and any points."""

    def __init__(
        self,
        model: Model,
        discretised: Discretised,
        grid: TimeGrid,
        inducing: Inducing,
        engine: Engine | None = None,
        both_ways: bool | None = None,
    ) -> None:
        """engine: in place of the discretised field's own. both_ways: what `both_ways` is, if known."""
        self.model, self.discretised, self.grid, self.inducing = model, discretised, grid, inducing
        self.engine = engine or discretised.engine
        self.kernel = model.kernels[0]
        self.separable: Separable | None = separate(self.kernel)
        self.nodes = torch.from_numpy(discretised.nodes)
        self.initial = model.field.field.initial
        self.names = self.engine.names
        self._both_ways = both_ways
        self._profile: Tensor | None = None

    @property
    def both_ways(self) -> bool:
        """Whether a force of one sign moves outputs up and down."""
        if self._both_ways is None:
            self._both_ways = moves_both_ways(self.model, self.discretised.engine, self.nodes, self.grid)
        return self._both_ways

    def with_grid(self, grid: TimeGrid) -> FieldMap:
        if grid == self.grid:
            return self
        return FieldMap(self.model, self.discretised, grid, self.inducing, self.engine, self._both_ways)

    def reduced(self, values: Values) -> FieldMap:
        """The same on the shapes that solutions take at these values [A, …]; as it is where that brings nothing."""
        if not isinstance(self.engine, SparseEngine) or self.separable is None:
            return self
        with torch.no_grad():
            initial, force, _ = self._sources(values)
            if self.both_ways:
                pulses = pulse_of(pulses_of(groups_of(self.nodes)), self.grid).expand(len(force), -1, -1, -1)
                initial, force = (
                    torch.cat([initial, torch.zeros_like(pulses[:, :, 0])], 1),
                    torch.cat([force, pulses], 1),
                )
            shapes = find_shapes(self.engine, self.theta(values), initial, force, self.grid)
        engine = ReducedEngine(self.engine, shapes)
        return FieldMap(self.model, self.discretised, self.grid, self.inducing, engine, self.both_ways)

    def places(self, points: Tensor) -> Places:
        """points: [B, T, 1 + d], none before the start of the grid or beyond its end."""
        return take_apart(points, self.grid, self.discretised)

    def theta(self, values: Values) -> Tensor:
        """[A, k]."""
        return torch.cat([values[name] for name in self.names], -1)

    def force_columns(self, values: Values, points: Tensor) -> tuple[Tensor, Tensor]:
        """The force at points [A, Q, 1 + d] as columns [A, Q, R] of w, and the variance [A, Q] that they leave open."""
        hyper = self.model.hyper(values)[0]
        if self.separable is None:
            found = self.joint_basis(hyper, points)
            left = self.kernel.diagonal(hyper, points) - found.square().sum(-1)
        else:
            scale = self.separable.variance(hyper)
            time = whitened_basis(self.separable.time, hyper, points[..., 0], self.inducing.times)
            space = whitened_basis(self.separable.space, hyper, points[..., 1:], self.inducing.places)
            both = (space.unsqueeze(-1) * time.unsqueeze(-2)).flatten(-2)
            found = scale.sqrt()[:, None, None] * both
            left = scale[:, None] - found.square().sum(-1)
        extra = found.new_zeros(*found.shape[:-1], self.num_initial)
        return torch.cat([found, extra], -1), left.clamp_min(0.0)

    @property
    def num_initial(self) -> int:
        return len(self.inducing.places) if self.initial.kind == "field" else 0

    def joint_basis(self, hyper: Hyper, points: Tensor) -> Tensor:
        """The whitened basis [A, Q, R] at points [A, Q, 1 + d], for a kernel without factors."""
        where = self._joint_inducing()
        factor, _ = safe_cholesky(self.kernel.covariance(hyper, where, where))
        cross = self.kernel.covariance(hyper, where, points)
        found: Tensor = torch.linalg.solve_triangular(factor, cross, upper=False).mT
        return found

    def _joint_inducing(self) -> Tensor:
        times, places = self.inducing.times, self.inducing.places
        grid = torch.cat([times.repeat(len(places)).unsqueeze(-1), places.repeat_interleave(len(times), 0)], -1)
        return grid.unsqueeze(0)

    def columns(self, values: Values, rows: Tensor, places: Places) -> Columns:
        """The map to the points `places` of the instances `rows` [A]."""
        driven = self._driven(values, places, rows)
        if self.separable is None:
            found, slack = self._joint(values, places, rows)
        else:
            found, slack = self._convolved(values, places, rows)
        return Columns(driven, found, slack)

    def _convolved(self, values: Values, places: Places, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Columns [A, T, R] and slack [A, T] from the answers to pulses."""
        assert self.separable is not None
        hyper = self.model.hyper(values)[0]
        time = whitened_basis(self.separable.time, hyper, self.grid.times, self.inducing.times)
        initial, force, deviation = self._sources(values)
        size, num_pulses = len(self.inducing.places), len(self.inducing.places) + 2
        num_starts = force.shape[1] - num_pulses
        observed = solve(self.engine, self.theta(values), initial, force, self.grid, places.observe, driven=False)
        answers = observed[:, :num_pulses, 1:]
        open_time = left_open(time)
        both = torch.cat([time, open_time, torch.ones_like(open_time)], -1)
        kicks = kicks_of(both, places, self.grid)
        found = self._pairs(answers[:, :size], kicks[..., : time.shape[-1]], places, rows)
        open_answers = answers[:, size:]
        if self.both_ways:
            groups = groups_of(self.nodes)
            strength = self._strengths(values, groups, places)
            most = largest_in(groups, force[:, num_pulses - 1, -1])
            open_answers = torch.stack([strength.sum(1), torch.einsum("ag,agjo->ajo", most, strength)], 1)
        loose = torch.einsum("atji,aijo->ato", kicks[..., -2:], open_answers)
        scale = self.separable.variance(hyper)
        slack = scale[:, None] * pick(loose, places, rows).square()
        found = scale.sqrt()[:, None, None] * found.flatten(-2)
        if num_starts:
            later = deviation[..., None] * pick(at_times(observed[:, num_pulses:], places), places, rows)
            found = torch.cat([found, later[:, :-1].mT], -1)
            slack = slack + later[:, -1].square()
        return found, slack

    def _sources(self, values: Values) -> tuple[Tensor, Tensor, Tensor]:
        """What goes through the solver: initial states [A, S, J], pulses [A, S, K, J], and the deviation of the start.

        First the space columns, then two for what is left open, then those of an unknown start.
        """
        assert self.separable is not None
        hyper = self.model.hyper(values)[0]
        space = whitened_basis(self.separable.space, hyper, self.nodes, self.inducing.places)
        # What the inducing points leave open is at most the sum of what each factor does; taken as fully correlated,
        # its effect on the outputs is bounded by the answer to its deviation (Cauchy-Schwarz, for responses ≥ 0; for
        # others by the sizes of the answers of single nodes, `largest_in` above).
        pulses = torch.cat([space, torch.ones_like(space[..., :1]), left_open(space)], -1).mT
        starts, deviation = self.starts(values, hyper)
        initial = torch.cat([torch.zeros_like(pulses), starts], 1)
        force = torch.cat([pulses, torch.zeros_like(starts)], 1).unsqueeze(2)
        return initial, pulse_of(force, self.grid), deviation

    def _strengths(self, values: Values, groups: Tensor, places: Places) -> Tensor:
        """How strongly each group of nodes [J] moves each place so many steps later, up or down, [A, G, N, O]."""
        theta = self.theta(values)
        force = pulse_of(pulses_of(groups), self.grid).expand(len(theta), -1, -1, -1)
        none = torch.zeros_like(force[:, :, 0])
        return solve(self.engine, theta, none, force, self.grid, places.observe, driven=False)[:, :, 1:].abs()

    def _pairs(self, answers: Tensor, kicks: Tensor, places: Places, rows: Tensor) -> Tensor:
        """Σ_j answers [A, M_x, N, O] · kicks [A, U, N, M_t] at each point, [A, T, M_x, M_t]."""
        num_points = places.time.shape[1]
        if kicks.shape[1] * answers.shape[-1] <= DENSE_PRODUCT * num_points:
            whole = torch.einsum("atjr,asjo->atosr", kicks, answers)
            batch = torch.arange(len(rows)).unsqueeze(-1)
            return whole[batch, places.time[rows], places.place[rows]]
        batch = torch.arange(len(rows)).unsqueeze(-1)
        own = answers.permute(0, 3, 1, 2)[batch, places.place[rows]]
        return own @ kicks[batch, places.time[rows]]

    def _joint(self, values: Values, places: Places, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The same for a kernel without factors: every basis function goes through the solver."""
        hyper = self.model.hyper(values)[0]
        times, nodes = self.grid.times, self.nodes
        grid = torch.cat([times.repeat_interleave(len(nodes)).unsqueeze(-1), nodes.repeat(len(times), 1)], -1)
        basis = self.joint_basis(hyper, grid.unsqueeze(0))
        left = self.kernel.diagonal(hyper, grid) - basis.square().sum(-1)
        loose = left.clamp_min(SMALLEST).sqrt().unsqueeze(-1)
        force = torch.cat([basis, loose], -1).mT.unflatten(-1, (len(times), len(nodes)))
        starts, deviation = self.starts(values, hyper)
        initial = torch.cat([force.new_zeros(*force.shape[:2], len(nodes)), starts], 1)
        padded = torch.cat([force, force.new_zeros(len(force), starts.shape[1], *force.shape[2:])], 1)
        observed = solve(self.engine, self.theta(values), initial, padded, self.grid, places.observe, driven=False)
        seen = pick(at_times(observed, places), places, rows)
        size = basis.shape[-1]
        found, slack = seen[:, :size].mT, seen[:, size].square()
        if self.both_ways:
            groups = groups_of(nodes)
            most = largest_in(groups, loose.squeeze(-1).unflatten(-1, (len(times), len(nodes))))
            strength = self._strengths(values, groups, places)
            bound = torch.einsum("atjg,agjo->ato", kicks_of(most, places, self.grid), strength)
            slack = pick(bound, places, rows).square()
        if starts.shape[1]:
            later = deviation[..., None] * seen[:, size + 1 :]
            found = torch.cat([found, later[:, :-1].mT], -1)
            slack = slack + later[:, -1].square()
        return found, slack

    def starts(self, values: Values, hyper: Hyper) -> tuple[Tensor, Tensor]:
        """Columns [A, M_x + 1, J] of an unknown initial state, the last for what they leave open, and its deviation."""
        some = next(iter(hyper.values()))
        if self.initial.kind != "field":
            return some.new_zeros(len(some), 0, len(self.nodes)), some.new_ones(len(some), 1)
        correlation = self.start_correlation(values)
        basis = whitened_basis(correlation, hyper, self.nodes, self.inducing.places)
        return torch.cat([basis, left_open(basis)], -1).mT, values["initial_deviation"]

    @staticmethod
    def start_correlation(values: Values) -> Callable[[Hyper, Tensor, Tensor], Tensor]:
        """Correlation [A, n, m] of an unknown initial state between places [n, d] and [m, d]."""
        length = values["initial_lengthscale"].unsqueeze(-1)

        def correlation(_: Hyper, first: Tensor, second: Tensor) -> Tensor:
            gaps = (first.unsqueeze(-2) - second.unsqueeze(-3)).square().sum(-1)
            return torch.exp(-0.5 * gaps / length**2)

        return correlation

    def _driven(self, values: Values, places: Places, rows: Tensor) -> Tensor:
        """What is there without any force [A, T]: sources, boundaries, and a given start."""
        theta = self.theta(values)
        if self.engine.silent and self.initial.kind in ("zero", "field"):
            return torch.zeros(len(theta), places.time.shape[1], dtype=torch.float64)
        profile = self.profile()
        start = profile.expand(len(theta), 1, -1)
        if self.initial.kind == "scaled":
            start = start * values["initial_scale"].unsqueeze(-1)
        none = torch.zeros(len(theta), 1, 1, len(self.nodes), dtype=torch.float64)
        observed = solve(self.engine, theta, start, none, self.grid, places.observe, driven=True)
        return pick(at_times(observed, places), places, rows)[:, 0]

    def profile(self) -> Tensor:
        """The given initial state at the nodes [J]; zero where none is given."""
        if self._profile is None:
            self._profile = torch.from_numpy(profile_at(self.initial, self.discretised.nodes))
        return self._profile
