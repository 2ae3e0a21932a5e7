"""Fields drawn from a model's own prior: coefficients, a force on the mesh, and its solution.

Shapes: `B` instances, `J` nodes, `N` steps, `Q` observed points, `d` space dimensions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from distlfm.equations.base import MeshConfig
from distlfm.errors import UsageError
from distlfm.gp.kernels import separate
from distlfm.inference.field.map import FieldMap
from distlfm.inference.field.points import pick, place_inducing
from distlfm.inference.field.settings import mesh_ranks, open_on
from distlfm.inference.model import Model
from distlfm.instance import FloatArray
from distlfm.mechanisms.priors import Values
from distlfm.simulation.series import Drawn, Generators, draw_values, normals, steady_factor
from distlfm.solvers.field.dense import batch_solver_of
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

BATCH = 32
"""Fields solved together at most."""

BATCH_BYTES = 400_000_000
"""What the forces of a batch may take, with what a solver makes of them."""


class Lattice:
    """Fields of one model, drawn on its mesh and shown at even times and places.

    times: [T]; axes: the positions along each dimension of space; points: [Q, 1 + d], all times and places, the last
    axis fastest; batch: how many fields are drawn together at most; mesh: its nodes and cells.
    """

    def __init__(self, model: Model, times: FloatArray, places: int) -> None:
        self.model, self.times = model, times
        mesh = _mesh(model)
        self.axes = [np.linspace(a, b, places) for a, b in zip(mesh.lower, mesh.upper, strict=True)]
        if mesh.kind == "interval" and not mesh.vertices:
            # Nodes are where the field is shown: between two it is a straight line, with ten times their error.
            mesh = mesh.model_copy(update={"vertices": tuple(self.axes[0].tolist())})
        self.points = np.stack([axis.ravel() for axis in np.meshgrid(times, *self.axes, indexing="ij")], -1)
        discretised = open_on(model, mesh, mesh_ranks(model.field.field, mesh))
        self.mesh = discretised.nodes, discretised.cells
        steps = -(-STEPS // (len(times) - 1)) * (len(times) - 1)
        start, stop = float(times[0]), float(times[-1])
        grid = TimeGrid(start, (stop - start) / steps, steps, scheme_named(model.field.field.scheme))
        self.fields = FieldMap(model, discretised, grid, place_inducing(discretised, grid, 3, 3))
        self.places = self.fields.places(torch.from_numpy(self.points).unsqueeze(0))
        parts = separate(model.kernels[0])
        if parts is None:
            raise UsageError(
                "Forces of a field are simulated from kernels that are a product of time and space.",
                "Use an rbf kernel, or a product of kernels with dims.",
            )
        self.parts = parts
        self.stepper = batch_solver_of(discretised.engine)
        one = 4 * 8 * (grid.steps + 1) * len(self.fields.nodes)
        self.batch = max(1, min(BATCH, BATCH_BYTES // one))

    @torch.no_grad()
    def draw(self, generators: Generators) -> Drawn:
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
        ok = outputs.isfinite().all(-1)
        return Drawn(values, self._at_points(at_places).unsqueeze(1), outputs.unsqueeze(1), ok)

    def _at_points(self, values: Tensor) -> Tensor:
        """What is known at the distinct times and places [B, U, O], at all points [B, Q]."""
        return pick(values, self.places, torch.zeros(len(values), dtype=torch.long))

    def _force(self, values: Values, generators: Generators) -> Tensor:
        """A force at all times and nodes, [B, N + 1, J]."""
        hyper, times, nodes = self.model.hyper(values)[0], self.fields.grid.times, self.fields.nodes
        time, _ = steady_factor(lambda own: self.parts.time(own, times, times), hyper)
        space, _ = steady_factor(lambda own: self.parts.space(own, nodes, nodes), hyper)
        noise = normals(generators, len(times), len(nodes))
        return self.parts.variance(hyper).sqrt()[:, None, None] * (time @ noise @ space.mT)

    def _start(self, values: Values, generators: Generators) -> Tensor:
        """The state at the first time, [B, J]."""
        profile, kind = self.fields.profile.expand(len(generators), -1), self.model.field.field.initial.kind
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
            "Give mechanism.mesh.lower and upper one number per dimension.",
        )
    size = given.size or DEFAULT_SIZE[dims] * max(b - a for a, b in zip(lower, upper, strict=True))
    return given.model_copy(update={"lower": lower, "upper": upper, "size": size * (FINER if dims == 1 else 1.0)})
