"""Fields drawn from a model's own prior: coefficients, a force on the mesh, its solution, and data with noise and gaps.

Shapes: `B` instances, `J` nodes, `N` steps, `Q` observed points, `d` space dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from distlfm.equations.base import MeshConfig
from distlfm.errors import UsageError, WorkError
from distlfm.gp.kernels import Separable, separate
from distlfm.inference.field.map import FieldMap
from distlfm.inference.field.points import pick, place_inducing
from distlfm.inference.field.settings import mesh_ranks, open_on
from distlfm.inference.model import Model
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.mechanisms.priors import Values
from distlfm.runs.settings import SimulateConfig
from distlfm.simulation.series import draw_values, normals, steady_factor
from distlfm.solvers.field.dense import stepper_of
from distlfm.solvers.field.engine import TimeGrid
from distlfm.solvers.field.scheme import scheme_named

STEPS = 160
"""Least number of time steps of a simulated field: several times what a fit takes.

On a line of 120 cells the largest error is, relative to the largest value, 1e-3 where sharp layers at the boundary are
resolved (diffusion 0.01 · extent²/span and more), and 3e-3 at 0.003; a tenth of that on average.
"""

FINER = 0.5
"""Cells of the simulation in units of those that are stated, on a line."""

DEFAULT_SIZE = {1: 0.02, 2: 0.06, 3: 0.15}
ATTEMPTS = 5

BATCH = 32
"""Fields solved together at most."""

BATCH_BYTES = 400_000_000
"""What the forces of a batch may take, with what a solver makes of them."""


def simulate_fields(model: Model, config: SimulateConfig) -> list[Instance]:
    """Instances observed on a grid of times and places, less those that are missing; the truth is on the whole grid."""
    lattice = Lattice(model, np.linspace(config.start, config.stop, config.points), config.places)
    found: list[Instance] = []
    for first in range(0, config.instances, lattice.batch):
        indices = range(first, min(first + lattice.batch, config.instances))
        found += _instances(model, lattice, config, indices)
    return found


@dataclass(frozen=True)
class DrawnFields:
    """What a batch of fields is, at the points of a lattice. values: each [B, K]; force, outputs: [B, Q]; ok: [B]."""

    values: Values
    force: FloatArray
    outputs: FloatArray
    ok: Tensor


class Lattice:
    """Fields of one model, drawn on its mesh and shown at even times and places.

    axes: the times, and the positions along each dimension; points: [Q, 1 + d], all of them, the last axis fastest.
    """

    def __init__(self, model: Model, times: FloatArray, places: int) -> None:
        self.model = model
        mesh = _mesh(model)
        positions = [np.linspace(a, b, places) for a, b in zip(mesh.lower, mesh.upper, strict=True)]
        if mesh.kind == "interval" and not mesh.vertices:
            # Nodes are where the field is shown: between two it is a straight line, with ten times their error.
            mesh = mesh.model_copy(update={"vertices": tuple(positions[0].tolist())})
        self.axes = [times, *positions]
        self.points = np.stack([axis.ravel() for axis in np.meshgrid(*self.axes, indexing="ij")], -1)
        self.discretised = open_on(model, mesh, mesh_ranks(model.field.field, mesh))
        grid = replace(_grid(times), scheme=scheme_named(model.field.field.scheme))
        self.fields = FieldMap(model, self.discretised, grid, place_inducing(self.discretised, grid, 3, 3))
        self.places = self.fields.places(torch.from_numpy(self.points).unsqueeze(0))
        self.parts = self._parts()
        self.stepper = stepper_of(self.discretised.engine)
        one = 4 * 8 * (grid.steps + 1) * len(self.fields.nodes)
        self.batch = max(1, min(BATCH, BATCH_BYTES // one))

    @torch.no_grad()
    def draw(self, generators: Sequence[np.random.Generator]) -> DrawnFields:
        """One field from each generator."""
        values = draw_values(self.model.space, generators)
        force = self._force(values, generators)
        start = self._start(values, generators)
        theta = self.fields.theta(values)
        observe = self.places.observe
        states = self.stepper(theta, start, force, self.fields.grid, observe)
        shown = force[:, self.places.before]
        at_places = torch.sparse.mm(observe, shown.flatten(0, 1).mT).mT.unflatten(0, shown.shape[:2])
        outputs = self._at_points(states[:, self.places.before])
        return DrawnFields(values, self._at_points(at_places).numpy(), outputs.numpy(), outputs.isfinite().all(-1))

    def _at_points(self, values: Tensor) -> Tensor:
        """What is known at the distinct times and places [B, U, O], at all points [B, Q]."""
        return pick(values, self.places, torch.zeros(len(values), dtype=torch.long))

    def _parts(self) -> Separable:
        found = separate(self.model.kernels[0])
        if found is None:
            raise UsageError(
                "Forces of a field are simulated from kernels that are a product of time and space.",
                "Use an rbf kernel, or a product of kernels with dims.",
            )
        return found

    def _force(self, values: Values, generators: Sequence[np.random.Generator]) -> Tensor:
        """A force at all times and nodes, [B, N + 1, J]."""
        hyper, times, nodes = self.model.hyper(values)[0], self.fields.grid.times, self.fields.nodes
        time, _ = steady_factor(lambda own: self.parts.time(own, times, times), hyper)
        space, _ = steady_factor(lambda own: self.parts.space(own, nodes, nodes), hyper)
        noise = normals(generators, len(times), len(nodes))
        return self.parts.variance(hyper).sqrt()[:, None, None] * (time @ noise @ space.mT)

    def _start(self, values: Values, generators: Sequence[np.random.Generator]) -> Tensor:
        """The state at the first time, [B, J]."""
        profile, kind = self.fields.profile().expand(len(generators), -1), self.model.field.field.initial.kind
        if kind == "scaled":
            return profile * values["initial_scale"]
        if kind == "field":
            gaps = torch.cdist(self.fields.nodes, self.fields.nodes)
            length = {"length": values["initial_lengthscale"].unsqueeze(-1)}
            factor, _ = steady_factor(lambda own: torch.exp(-0.5 * (gaps / own["length"]).square()), length)
            noise = normals(generators, factor.shape[-1])
            return values["initial_deviation"] * (factor @ noise.unsqueeze(-1)).squeeze(-1)
        return profile


def lattice_ranks(model: Model) -> int:
    """Processes among which the mesh of a model's fields is divided."""
    return mesh_ranks(model.field.field, _mesh(model))


def _mesh(model: Model) -> MeshConfig:
    given = model.field.field.mesh
    dims = model.field.field.num_dims
    if given.kind == "file":
        raise UsageError(
            "Fields are not simulated on a mesh from a file: where to observe them is not known.",
            "Use an interval, a rectangle or a box.",
        )
    lower, upper = given.lower or (0.0,) * dims, given.upper or (1.0,) * dims
    if len(lower) != dims or len(upper) != dims:
        raise UsageError(
            f"The corners of the mesh have {len(lower)} and {len(upper)} numbers, and it has {dims} dimensions.",
            "Give mechanism.mesh.lower and upper one number a dimension.",
        )
    size = given.size or DEFAULT_SIZE[dims] * max(b - a for a, b in zip(lower, upper, strict=True))
    return given.model_copy(update={"lower": lower, "upper": upper, "size": size * (FINER if dims == 1 else 1.0)})


def _grid(times: FloatArray) -> TimeGrid:
    per_gap = -(-STEPS // (len(times) - 1))
    steps = per_gap * (len(times) - 1)
    start, stop = float(times[0]), float(times[-1])
    return TimeGrid(start, (stop - start) / steps, steps)


def _instances(model: Model, lattice: Lattice, config: SimulateConfig, indices: Sequence[int]) -> list[Instance]:
    found: dict[int, Instance] = {}
    for attempt in range(ATTEMPTS):
        waiting = [index for index in indices if index not in found]
        if not waiting:
            break
        generators = [np.random.default_rng([config.seed, index, attempt]) for index in waiting]
        drawn = lattice.draw(generators)
        for row, index in enumerate(waiting):
            if bool(drawn.ok[row]):
                found[index] = _instance(model, lattice, config, drawn, row, f"sim-{index:06d}", generators[row])
    if len(found) < len(indices):
        raise WorkError(
            f"{len(indices) - len(found)} of {len(indices)} fields have no finite solution, however often drawn.",
            "Narrow the priors of the coefficients, or shorten the times.",
        )
    return [found[index] for index in indices]


def _instance(
    model: Model,
    lattice: Lattice,
    config: SimulateConfig,
    drawn: DrawnFields,
    row: int,
    name: str,
    generator: np.random.Generator,
) -> Instance:
    parameters = {key: value[row].numpy().copy() for key, value in drawn.values.items()}
    points, clean, shown = lattice.points, drawn.outputs[row : row + 1], drawn.force[row : row + 1]
    seen = model.likelihood.sample(parameters, clean, generator)
    mask = generator.random(clean.shape) >= config.missing
    if mask.sum() < 2:
        mask[:] = True
    return Instance(
        id=name,
        outputs=model.system.outputs,
        times=points[:, 0],
        values=np.where(mask, seen, 0.0),
        mask=mask,
        positions=points[:, 1:],
        truth=Truth(points[:, 0], shown, clean, points[:, 1:], parameters),
    )
