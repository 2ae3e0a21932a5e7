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

import copy
import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.config import Config
from distlfm.gp.inducing import place_on_points
from distlfm.gp.kernels import Hyper, Separable, separate
from distlfm.inference.field.points import (
    SMALLEST,
    Inducing,
    Places,
    at_times,
    kicks_of,
    lattice,
    left_open,
    pick,
    profile_at,
    pulse_of,
    take_apart,
    whitened_basis,
)
from distlfm.inference.model import Model
from distlfm.mechanisms.priors import Values
from distlfm.solvers.field.engine import Engine, Inputs, TimeGrid, solve
from distlfm.solvers.field.meshed import Discretised
from distlfm.solvers.field.sparse import ReducedEngine, SparseEngine, find_shapes

OPPOSED = 0.1
"""Share of the answers against the others' sign above which a force counts as moving outputs both ways.

Less than that comes of the time steps' scheme too."""

PROBED = (0.3, 0.5, 0.7)
"""Where along the domain's diagonal the answers are looked at."""

FAR, NEAR = 1.5, 0.4
"""How far samples are from the prior's middle, and from a mode, in units of the prior's deviation."""

CHUNK = 2_000_000
"""Numbers of a force for which answers are computed at once."""

MOST_GROUPS = 250
"""Nodes of larger meshes are taken in this many groups of neighbours, whose answers are sized as one."""


@torch.no_grad()
def moves_both_ways(model: Model, engine: Engine, nodes: Tensor, grid: TimeGrid) -> bool:
    """Whether it does at the middle of the coefficients' priors, or on either side of it; nodes: [J, d]."""
    low, high = nodes.amin(0), nodes.amax(0)
    near = [int((nodes - (low + share * (high - low))).square().sum(-1).argmin()) for share in PROBED]
    observe = torch.nn.functional.one_hot(torch.tensor(near), len(nodes)).to(torch.float64)
    values = samples(model, [name for name in engine.names if model.space[name].free])
    theta = torch.cat([values[name] for name in engine.names], -1)
    none = torch.zeros(1, len(near), grid.steps + 1, len(nodes), dtype=torch.float64)
    none = none.expand(len(theta), -1, -1, -1)
    last = torch.zeros(len(theta), len(near), grid.steps + 1, len(near), dtype=torch.float64)
    last[:, :, -1] = torch.eye(len(near), dtype=torch.float64)
    for some in theta.split(max(1, CHUNK // none[0].numel())):
        count = len(some)
        given = Inputs(some, none[:count, :, 0], none[:count])
        _, saved = engine.forward(given, grid, observe, driven=False, keep=True)
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
    group: Tensor = torch.unique(nearest, return_inverse=True)[1]
    return group


def pulses_of(groups: Tensor) -> Tensor:
    """A pulse [G, 1, J] of one on each group of nodes."""
    count = int(groups.max()) + 1
    return torch.nn.functional.one_hot(groups, count).mT.to(torch.float64).unsqueeze(1)


def largest_in(groups: Tensor, values: Tensor) -> Tensor:
    """The largest of values [..., J] in each group, [..., G]."""
    largest = values.new_zeros(*values.shape[:-1], int(groups.max()) + 1)
    return largest.scatter_reduce(-1, groups.expand_as(values), values, "amax", include_self=False)


def samples(model: Model, which: Iterable[str], around: Tensor | None = None) -> Values:
    """Values at the prior's middle, and above and below it along each of the free elements `which`.

    around: modes [B, n] to stay near to, in place of the middle of the whole prior.
    """
    middle = torch.zeros(1, model.space.num_free, dtype=torch.float64) if around is None else around
    proposals = [middle]
    for name in which:
        step = torch.zeros(model.space.num_free, dtype=torch.float64)
        step[model.space.free_names.index(name)] = FAR if around is None else NEAR
        proposals += [middle + step, middle - step]
    return model.space.unpack(torch.cat(proposals))


DENSE_PRODUCT = 4
"""All pairs of observed times and places are computed at once if they are at most this many times those observed."""


@dataclass(frozen=True)
class OutputMap:
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
        both_ways: bool | None = None,
        settings: Config | None = None,
    ) -> None:
        """both_ways: what `both_ways` is, if known. settings: what the map is made from, kept with a saved fit."""
        self.model, self.discretised, self.grid, self.inducing = model, discretised, grid, inducing
        self.settings = settings
        self.engine = discretised.engine
        self.kernel = model.kernels[0]
        self.separable: Separable | None = separate(self.kernel)
        self.nodes = torch.from_numpy(discretised.nodes)
        self.initial = model.field.field.initial
        self.names = self.engine.names
        if both_ways is not None:
            self.both_ways = both_ways

    @functools.cached_property
    def both_ways(self) -> bool:
        """Whether a force of one sign moves outputs up and down."""
        return moves_both_ways(self.model, self.discretised.engine, self.nodes, self.grid)

    def with_grid(self, grid: TimeGrid) -> FieldMap:
        if grid == self.grid:
            return self
        changed = copy.copy(self)
        changed.grid = grid
        return changed

    def reduced(self, values: Values) -> FieldMap:
        """The same on the shapes that solutions take at these values [A, …]; as it is where that brings nothing."""
        if not isinstance(self.engine, SparseEngine) or self.separable is None:
            return self
        with torch.no_grad():
            initial, force, _ = self._sources(values)
            if self.both_ways:
                pulses = pulse_of(pulses_of(groups_of(self.nodes)), self.grid).expand(len(force), -1, -1, -1)
                initial = torch.cat([initial, torch.zeros_like(pulses[:, :, 0])], 1)
                force = torch.cat([force, pulses], 1)
            shapes = find_shapes(self.engine, self.theta(values), initial, force, self.grid)
        changed = copy.copy(self)
        changed.engine = ReducedEngine(self.engine, shapes)
        return changed

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
            basis = self.joint_basis(hyper, points)
            left = self.kernel.diagonal(hyper, points) - basis.square().sum(-1)
        else:
            scale = self.separable.variance(hyper)
            time = whitened_basis(self.separable.time, hyper, points[..., 0], self.inducing.times)
            space = whitened_basis(self.separable.space, hyper, points[..., 1:], self.inducing.places)
            both = (space.unsqueeze(-1) * time.unsqueeze(-2)).flatten(-2)
            basis = scale.sqrt()[:, None, None] * both
            left = scale[:, None] - basis.square().sum(-1)
        extra = basis.new_zeros(*basis.shape[:-1], self.num_initial)
        return torch.cat([basis, extra], -1), left.clamp_min(0.0)

    @property
    def num_initial(self) -> int:
        return len(self.inducing.places) if self.initial.kind == "field" else 0

    def joint_basis(self, hyper: Hyper, points: Tensor) -> Tensor:
        """The whitened basis [A, Q, R] at points [A, Q, 1 + d], for a kernel without factors."""
        return whitened_basis(self.kernel.covariance, hyper, points, self.joint_inducing())

    def joint_inducing(self) -> Tensor:
        """All pairs [1, M, 1 + d] of inducing times and places, the times fastest."""
        times, places = self.inducing.times, self.inducing.places
        grid = torch.cat([times.repeat(len(places)).unsqueeze(-1), places.repeat_interleave(len(times), 0)], -1)
        return grid.unsqueeze(0)

    def columns(self, values: Values, rows: Tensor, places: Places) -> OutputMap:
        """The map to the points `places` of the instances `rows` [A]."""
        driven = self._driven(values, places, rows)
        found, slack, later = (self._joint if self.separable is None else self._convolved)(values, places, rows)
        if later.shape[1]:
            found, slack = torch.cat([found, later[:, :-1].mT], -1), slack + later[:, -1].square()
        return OutputMap(driven, found, slack)

    def _convolved(self, values: Values, places: Places, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Columns [A, T, R] and slack [A, T] from the answers to pulses, and answers [A, M_x + 1, T] to the starts."""
        assert self.separable is not None
        hyper = self.model.hyper(values)[0]
        time = whitened_basis(self.separable.time, hyper, self.grid.times, self.inducing.times)
        initial, force, deviation = self._sources(values)
        size, num_pulses = len(self.inducing.places), len(self.inducing.places) + 2
        observed = solve(self.engine, self.theta(values), initial, force, self.grid, places.observe, driven=False)
        answers = observed[:, :num_pulses, 1:]
        open_time = left_open(time)
        both = torch.cat([time, open_time, torch.ones_like(open_time)], -1)
        kicks = kicks_of(both, places, self.grid)
        columns = self._pairs(answers[:, :size], kicks[..., : time.shape[-1]], places, rows)
        open_answers = answers[:, size:]
        if self.both_ways:
            groups = groups_of(self.nodes)
            strength = self._strengths(values, groups, places)
            most = largest_in(groups, force[:, num_pulses - 1, -1])
            open_answers = torch.stack([strength.sum(1), torch.einsum("ag,agjo->ajo", most, strength)], 1)
        loose = torch.einsum("atji,aijo->ato", kicks[..., -2:], open_answers)
        scale = self.separable.variance(hyper)
        slack = scale[:, None] * pick(loose, places, rows).square()
        columns = scale.sqrt()[:, None, None] * columns.flatten(-2)
        return columns, slack, deviation[..., None] * pick(at_times(observed[:, num_pulses:], places), places, rows)

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
        starts, deviation = self.starts(values)
        initial = torch.cat([torch.zeros_like(pulses), starts], 1)
        force = torch.cat([pulses, torch.zeros_like(starts)], 1).unsqueeze(2)
        return initial, pulse_of(force, self.grid), deviation

    def _strengths(self, values: Values, groups: Tensor, places: Places) -> Tensor:
        """How strongly each group of nodes [J] moves each place after each number of steps, [A, G, N, O]."""
        theta = self.theta(values)
        force = pulse_of(pulses_of(groups), self.grid).expand(len(theta), -1, -1, -1)
        none = torch.zeros_like(force[:, :, 0])
        return solve(self.engine, theta, none, force, self.grid, places.observe, driven=False)[:, :, 1:].abs()

    def _pairs(self, answers: Tensor, kicks: Tensor, places: Places, rows: Tensor) -> Tensor:
        """Σ_j answers [A, M_x, N, O] · kicks [A, U, N, M_t] at each point, [A, T, M_x, M_t]."""
        batch, time, place = torch.arange(len(rows)).unsqueeze(-1), places.time[rows], places.place[rows]
        if kicks.shape[1] * answers.shape[-1] <= DENSE_PRODUCT * places.time.shape[1]:
            return torch.einsum("atjr,asjo->atosr", kicks, answers)[batch, time, place]
        return answers.permute(0, 3, 1, 2)[batch, place] @ kicks[batch, time]

    def _joint(self, values: Values, places: Places, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The same for a kernel without factors: every basis function goes through the solver."""
        basis, loose = self.joint_basis_on(values, self.grid.times)
        force = torch.cat([basis, loose.unsqueeze(-1)], -1).movedim(-1, 1)
        starts, deviation = self.starts(values)
        initial = torch.cat([force.new_zeros(*force.shape[:2], len(self.nodes)), starts], 1)
        padded = torch.cat([force, force.new_zeros(len(force), starts.shape[1], *force.shape[2:])], 1)
        observed = solve(self.engine, self.theta(values), initial, padded, self.grid, places.observe, driven=False)
        seen = pick(at_times(observed, places), places, rows)
        size = basis.shape[-1]
        found, slack = seen[:, :size].mT, seen[:, size].square()
        if self.both_ways:
            groups = groups_of(self.nodes)
            strength, most = self._strengths(values, groups, places), largest_in(groups, loose)
            bound = torch.einsum("atjg,agjo->ato", kicks_of(most, places, self.grid), strength)
            slack = pick(bound, places, rows).square()
        return found, slack, deviation[..., None] * seen[:, size + 1 :]

    def joint_basis_on(self, values: Values, times: Tensor) -> tuple[Tensor, Tensor]:
        """`joint_basis` [A, n, J, R] at times and nodes, and the deviation that it leaves open [A, n, J]."""
        points, hyper = lattice(times, self.nodes), self.model.hyper(values)[0]
        basis = self.joint_basis(hyper, points.unsqueeze(0))
        left = self.kernel.diagonal(hyper, points) - basis.square().sum(-1)
        shape = (len(times), len(self.nodes))
        return basis.unflatten(1, shape), left.clamp_min(SMALLEST).sqrt().unflatten(1, shape)

    def starts(self, values: Values) -> tuple[Tensor, Tensor]:
        """Columns [A, M_x + 1, J] of an unknown initial state, the last for what they leave open, and its deviation."""
        hyper = self.model.hyper(values)[0]
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
        start = self.start(values).unsqueeze(1)
        none = torch.zeros(len(theta), 1, 1, len(self.nodes), dtype=torch.float64)
        observed = solve(self.engine, theta, start, none, self.grid, places.observe, driven=True)
        return pick(at_times(observed, places), places, rows)[:, 0]

    def start(self, values: Values) -> Tensor:
        """The initial state's mean at the nodes [A, J]."""
        profile = self.profile.expand(len(self.theta(values)), -1)
        return profile * values["initial_scale"] if self.initial.kind == "scaled" else profile

    @functools.cached_property
    def profile(self) -> Tensor:
        """The given initial state at the nodes [J]; zero where none is given."""
        return torch.from_numpy(profile_at(self.initial, self.discretised.nodes))
