"""What a field's fit is computed on: mesh, time steps and inducing points, settled for a whole fleet from its data.

A fitted field is shown, and kept in a store, on an even lattice of times and places where the domain is a box.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from distlfm.config import Config
from distlfm.equations.base import MeshConfig
from distlfm.errors import UsageError
from distlfm.inference.field.map import FieldMap
from distlfm.inference.field.points import lattice, place_inducing
from distlfm.inference.model import Model
from distlfm.instance import FloatArray, Instance
from distlfm.mechanisms.field import FieldConfig
from distlfm.solvers.field.engine import TimeGrid
from distlfm.solvers.field.meshed import Meshed, count_nodes, meshed
from distlfm.solvers.field.scheme import CRANK_NICOLSON, scheme_named

MOST_VERTICES = 400
LEAST_CELLS, MOST_CELLS = 40, 400
LEAST_STEPS, MOST_STEPS = 40, 400
STEPS_REFUSED = 20_000
CELLS_ACROSS = 24
"""Cells along the longest side of a mesh in two or three dimensions, where no size is stated."""

SPACING = 0.6
"""Gap between inducing points in units of the shortest lengthscale that the prior thinks likely."""

PARTITIONED = 2
"""Processes among which a mesh above the limit is divided, where nothing is said."""

LIKELY = -1.28
MOST_TIMES, MOST_PLACES = 24, 144


class FieldOptions(Config):
    """num_times, num_places: inducing points in time and in space, by default from the prior of the lengthscales.

    refinements: how often steps are halved and inducing points added where that changes an instance's answer.
    shown_times, shown_places: times, and places along each side, at which force and outputs are shown and stored.
    """

    num_times: int | None = Field(default=None, ge=3)
    num_places: int | None = Field(default=None, ge=3)
    refinements: int = Field(default=2, ge=0)
    shown_times: int | None = Field(default=None, ge=2)
    shown_places: int | None = Field(default=None, ge=2)


class FieldSettings(Config):
    """Everything settled, as it is kept with a saved fit.

    file_nodes: of a mesh from a file, counted once for a whole fleet; None where nothing depends on it.
    """

    mesh: MeshConfig
    start: float
    dt: float
    steps: int
    scheme: str = CRANK_NICOLSON.name
    num_times: int
    num_places: int
    shown_times: int | None = None
    shown_places: int | None = None
    file_nodes: int | None = None

    @property
    def grid(self) -> TimeGrid:
        return TimeGrid(self.start, self.dt, self.steps, scheme_named(self.scheme))

    def finer_steps(self) -> FieldSettings:
        return self.model_copy(update={"dt": self.dt / 2, "steps": 2 * self.steps})

    def finer_mesh(self) -> FieldSettings | None:
        """Cells of half the size; None for a mesh from a file."""
        if self.mesh.kind == "file" or self.mesh.size is None:
            return None
        return self.model_copy(update={"mesh": self.mesh.model_copy(update={"size": self.mesh.size / 2})})

    def more_points(self) -> FieldSettings:
        return self.model_copy(
            update={"num_times": math.ceil(1.4 * self.num_times), "num_places": math.ceil(1.4 * self.num_places)}
        )


@dataclass(frozen=True)
class Extent:
    """Distinct observed times [T], sorted, and positions [n, d]; lower, upper: corners [d] of the box that has them."""

    times: FloatArray
    positions: FloatArray

    @property
    def lower(self) -> FloatArray:
        low: FloatArray = self.positions.min(0)
        return low

    @property
    def upper(self) -> FloatArray:
        high: FloatArray = self.positions.max(0)
        return high

    def joined(self, other: Extent) -> Extent:
        """The extent of both."""
        positions = np.unique(np.concatenate([self.positions, other.positions]), axis=0)
        return Extent(np.union1d(self.times, other.times), positions)


def settle(model: Model, instances: Sequence[Instance], options: FieldOptions) -> FieldSettings:
    """Settings that suit every instance of a fleet."""
    return settle_extent(model, extent_of(model, instances), options)


def settle_extent(model: Model, extent: Extent, options: FieldOptions) -> FieldSettings:
    """Settings that suit everything observed within an extent."""
    field = model.field.field
    mesh, grid = _mesh(field.mesh, extent), _grid(model, extent)
    lengths = _short_lengths(model)
    times = options.num_times or _count(grid.dt * grid.steps, lengths[0], MOST_TIMES)
    if options.num_places:
        places = options.num_places
    else:
        lower, upper = np.array(mesh.lower or extent.lower), np.array(mesh.upper or extent.upper)
        each = [_count(side, length, MOST_TIMES) for side, length in zip(upper - lower, lengths[1:], strict=True)]
        places = min(math.prod(each), MOST_PLACES if len(each) > 1 else MOST_TIMES)
    return FieldSettings(
        mesh=mesh,
        start=grid.start,
        dt=grid.dt,
        steps=grid.steps,
        scheme=grid.scheme.name,
        num_times=times,
        num_places=places,
        shown_times=options.shown_times,
        shown_places=options.shown_places,
        file_nodes=count_nodes(mesh, field.degree) if mesh.kind == "file" and _may_divide(field) else None,
    )


def open_field(model: Model, settings: FieldSettings) -> Meshed:
    """The field on its mesh, in a helper group."""
    return open_on(model, settings.mesh, mesh_ranks(model.field.field, settings.mesh, settings.file_nodes))


def open_on(model: Model, mesh: MeshConfig, ranks: int) -> Meshed:
    """The field on a mesh that is divided among `ranks` processes, if its equation allows that."""
    options = model.field.field
    spec = model.field.problem(mesh).model_dump_json()
    linear = options.linear_solver, options.linear_tolerance
    field = meshed(spec, options.solver, ranks, *linear)
    if ranks > 1 and options.ranks is None and not field.affine:
        # A recorded trajectory is not divided unless that is asked for.
        field = meshed(spec, options.solver, 1, *linear)
    return field


def num_ranks(model: Model, settings: FieldSettings) -> int:
    """Processes among which a fit divides its mesh; a mesh above the limit is opened to see what it is divided for."""
    ranks = mesh_ranks(model.field.field, settings.mesh, settings.file_nodes)
    return ranks if ranks == 1 or model.field.field.ranks is not None else open_field(model, settings).ranks


def mesh_ranks(options: FieldConfig, mesh: MeshConfig, in_file: int | None = None) -> int:
    """As many as are asked for, or PARTITIONED for a mesh above the limit. in_file: nodes of a mesh from a file."""
    if options.ranks is not None:
        return options.ranks
    return PARTITIONED if _may_divide(options) and _num_nodes(options, mesh, in_file) > options.mesh_limit else 1


def _may_divide(options: FieldConfig) -> bool:
    return options.ranks is None and options.solver in ("auto", "petsc")


def _num_nodes(options: FieldConfig, mesh: MeshConfig, in_file: int | None) -> int:
    """About how many nodes a settled mesh has."""
    if mesh.kind == "file" or mesh.size is None:
        return in_file or 0
    if mesh.kind == "interval":
        gaps = np.diff(np.unique([*mesh.lower, *mesh.vertices, *mesh.upper]))
        return options.degree * int(np.ceil(gaps / mesh.size - 1e-9).sum()) + 1
    sides = zip(mesh.lower, mesh.upper, strict=True)
    return math.prod(options.degree * math.ceil((high - low) / mesh.size - 1e-9) + 1 for low, high in sides)


def build_map(model: Model, settings: FieldSettings, both_ways: bool | None = None) -> FieldMap:
    """The map from whitened numbers to observations under these settings; both_ways: as `FieldMap` takes it."""
    discretised = open_field(model, settings)
    inducing = place_inducing(discretised, settings.grid, settings.num_times, settings.num_places)
    return FieldMap(model, discretised, settings.grid, inducing, both_ways, settings)


def extent_of(model: Model, instances: Sequence[Instance]) -> Extent:
    """Where and when a fleet was observed."""
    dims = model.field.field.num_dims
    for instance in instances:
        if instance.positions is None:
            raise UsageError(
                f"{model.system.options.kind} is an equation in space, and instance {instance.id!r} has no positions.",
                "Name the position columns in data.columns.positions.",
            )
        if instance.positions.shape[1] != dims:
            raise UsageError(
                f"Instance {instance.id!r} has positions in {instance.positions.shape[1]} dimensions, and the mesh "
                f"has {dims}.",
                "Set mechanism.mesh.kind (interval, rectangle, box), or name the right columns in data.columns.",
            )
    positions = np.unique(np.concatenate([one.positions for one in instances if one.positions is not None]), axis=0)
    times = np.unique(np.concatenate([instance.times for instance in instances]))
    return Extent(times, positions)


def _mesh(given: MeshConfig, extent: Extent) -> MeshConfig:
    """The mesh with its extent, its vertices at the data on a line, and a size."""
    if given.kind == "file":
        # A saved fit, and another process, may have another working directory.
        return given.model_copy(update={"path": given.path and given.path.absolute()})
    lower = np.array(given.lower or extent.lower)
    upper = np.array(given.upper or extent.upper)
    for name, wanted in (("lower", lower), ("upper", upper)):
        if len(wanted) != len(extent.lower):
            raise UsageError(
                f"mechanism.mesh.{name} has {len(wanted)} numbers, and the data have {len(extent.lower)} dimensions.",
                "Give one number per dimension.",
            )
    if (lower >= upper).any():
        raise UsageError(
            f"The domain's lower corner ({_text(lower)}) is not below its upper one ({_text(upper)}).",
            "Swap mechanism.mesh.lower and upper.",
        )
    outside = ((extent.lower < lower - 1e-9) | (extent.upper > upper + 1e-9)).any()
    if outside:
        raise UsageError(
            f"Data reach from {_text(extent.lower)} to {_text(extent.upper)}, outside the domain from {_text(lower)} "
            f"to {_text(upper)}.",
            "Widen mechanism.mesh.lower and upper, or leave them out to take the data's range.",
        )
    longest = float((upper - lower).max())
    if given.kind != "interval":
        across = given.size or longest / CELLS_ACROSS
        return given.model_copy(update={"lower": tuple(lower), "upper": tuple(upper), "size": across})
    places = extent.positions[:, 0]
    vertices = given.vertices or (tuple(places) if len(places) <= MOST_VERTICES else ())
    size = given.size
    if size is None:
        gap = float(np.median(np.diff(places))) / 2 if len(places) > 1 else longest
        size = min(max(gap, longest / MOST_CELLS), longest / LEAST_CELLS)
    return given.model_copy(update={"lower": tuple(lower), "upper": tuple(upper), "size": size, "vertices": vertices})


def _text(corner: FloatArray) -> str:
    return ", ".join(f"{x:g}" for x in corner)


def _grid(model: Model, extent: Extent) -> TimeGrid:
    """Even steps from the start to the last time, on the observed times where those are evenly spaced."""
    options = model.field.field
    start = extent.times[0] if options.start is None else options.start
    if start > extent.times[0]:
        raise UsageError(
            f"The equation starts at {start:g}, and the first observation is at {extent.times[0]:g}.",
            "Set mechanism.start to that time or an earlier one.",
        )
    span = float(extent.times[-1] - start)
    gaps = np.diff(np.unique(np.concatenate([[start], extent.times])))
    smallest = float(gaps.min())
    step = options.step or min(smallest / 2, span / LEAST_STEPS)
    ratio = (extent.times - start) / smallest
    even = bool((np.abs(ratio - np.rint(ratio)) < 1e-6).all())
    # Times on a fine clock are multiples of a tick that is far too short for a step.
    unit = round(span / smallest) if even and span / smallest <= MOST_STEPS else 1
    most = MOST_STEPS if options.step is None else STEPS_REFUSED
    needed = unit * math.ceil(span / step / unit - 1e-9)
    if options.step is not None and needed > most:
        raise UsageError(
            f"Steps of {options.step:g} over a span of {span:g} are {needed}, more than {most}.",
            "Raise mechanism.step, or leave it out to take one from the data.",
        )
    steps = min(needed, most // unit * unit)
    return TimeGrid(float(start), span / steps, steps, scheme_named(options.scheme))


def _short_lengths(model: Model) -> list[float]:
    """For each dimension, the shortest lengthscale that the prior thinks likely, or the known one."""
    dims = model.system.force_dims
    name = f"{model.system.force_names[0]}.lengthscale"
    if name not in [parameter.name for parameter in model.space.parameters]:
        return [math.inf] * dims
    parameter = model.space[name]
    at = torch.tensor(LIKELY, dtype=torch.float64)
    likely = {label: float(parameter.prior_of(label).natural(at)) for label in parameter.labels}
    lengths = [parameter.fixed.get(label, likely[label]) for label in parameter.labels]
    return lengths if len(lengths) == dims else lengths * dims


def _count(side: float, length: float, most: int) -> int:
    if not math.isfinite(length):
        return most // 2
    return int(min(max(math.ceil(side / (SPACING * length)) + 2, 6), most))


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
    return lattice(times, places).expand(count, -1, -1)
