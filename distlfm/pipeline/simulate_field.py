"""Fields drawn from a model's own prior: coefficients, a force on the mesh, its solution, and data with noise and gaps.

Shapes: `J` nodes, `N` steps, `Q` observed points, `d` space dimensions.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from distlfm.equations.problem import MeshConfig
from distlfm.errors import UsageError, WorkError
from distlfm.gp.linalg import safe_cholesky
from distlfm.gp.separable import separate
from distlfm.inference.field_map import FieldMap, place_inducing
from distlfm.inference.model import Model
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.mechanisms.parameters import Values
from distlfm.pipeline.settings import SimulateConfig
from distlfm.solvers.field.engine import TimeGrid, solve
from distlfm.solvers.field.meshed import meshed

STEPS = 160
"""Least number of time steps of a simulated field: several times what a fit takes."""

FINER = 0.5
"""Cells of the simulation in units of those that are stated, on a line."""

DEFAULT_SIZE = {1: 0.02, 2: 0.06, 3: 0.15}
ATTEMPTS = 5


def simulate_fields(model: Model, config: SimulateConfig) -> list[Instance]:
    """Instances observed on a grid of times and places, less those that are missing; the truth is on the whole grid."""
    mesh = _mesh(model)
    grid = _grid(config)
    problem = model.field.problem(mesh)
    options = model.field.field
    field = meshed(problem.model_dump_json(), options.solver, options.ranks, options.linear_solver)
    points = _points(mesh, config)
    fields = FieldMap(model, field, grid, place_inducing(field, grid, 3, 3))
    return [_instance(model, fields, points, config, index) for index in range(config.instances)]


def _mesh(model: Model) -> MeshConfig:
    given = model.field.field.mesh
    dims = model.field.field.num_dims
    if given.kind == "file":
        return given
    lower, upper = given.lower or (0.0,) * dims, given.upper or (1.0,) * dims
    if len(lower) != dims or len(upper) != dims:
        raise UsageError(
            f"The corners of the mesh have {len(lower)} and {len(upper)} numbers, and it has {dims} dimensions.",
            "Give mechanism.mesh.lower and upper one number a dimension.",
        )
    size = given.size or DEFAULT_SIZE[dims] * max(b - a for a, b in zip(lower, upper, strict=True))
    return given.model_copy(update={"lower": lower, "upper": upper, "size": size * (FINER if dims == 1 else 1.0)})


def _grid(config: SimulateConfig) -> TimeGrid:
    per_gap = -(-STEPS // (config.points - 1))
    steps = per_gap * (config.points - 1)
    return TimeGrid(config.start, (config.stop - config.start) / steps, steps)


def _points(mesh: MeshConfig, config: SimulateConfig) -> FloatArray:
    """Times and places [Q, 1 + d] of the whole grid."""
    if mesh.kind == "file":
        raise UsageError(
            "Fields are not simulated on a mesh from a file: where to observe them is not known.",
            "Use an interval, a rectangle or a box.",
        )
    axes = [np.linspace(config.start, config.stop, config.points)]
    axes += [np.linspace(a, b, config.places) for a, b in zip(mesh.lower, mesh.upper, strict=True)]
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], -1)


@torch.no_grad()
def _instance(model: Model, fields: FieldMap, points: FloatArray, config: SimulateConfig, index: int) -> Instance:
    for attempt in range(ATTEMPTS):
        generator = np.random.default_rng([config.seed, index, attempt])
        values = model.space.unpack(torch.from_numpy(generator.standard_normal((1, model.space.num_free))))
        force = _draw_force(model, fields, values, generator)
        outputs = _solve(model, fields, values, force, points, generator)
        if bool(outputs.isfinite().all()):
            break
    else:
        raise WorkError(
            f"Instance {index} has no finite solution, however often it is drawn.",
            "Narrow the priors of the coefficients, or shorten the times.",
        )
    clean, shown = outputs.numpy(), _at(fields, force, points).numpy()
    parameters = {name: value[0].numpy().copy() for name, value in values.items()}
    noise = parameters["noise"][:, None] ** 2 + model.likelihood.floor**2
    if "relative_noise" in parameters:
        noise = noise + (parameters["relative_noise"][:, None] * clean) ** 2
    seen = clean + np.sqrt(noise) * generator.standard_normal(clean.shape)
    mask = generator.random(clean.shape) >= config.missing
    if mask.sum() < 2:
        mask[:] = True
    truth = Truth(points[:, 0], shown, clean, points[:, 1:], parameters)
    return Instance(
        id=f"sim-{index:06d}",
        outputs=model.system.outputs,
        times=points[:, 0],
        values=np.where(mask, seen, 0.0),
        mask=mask,
        positions=points[:, 1:],
        truth=truth,
    )


def _draw_force(model: Model, fields: FieldMap, values: Values, generator: np.random.Generator) -> Tensor:
    """A force at all times and nodes, [N + 1, J]."""
    hyper, kernel = model.hyper(values)[0], model.kernels[0]
    times, nodes = fields.grid.times, fields.nodes
    parts = separate(kernel)
    if parts is None:
        raise UsageError(
            "Forces of a field are simulated from kernels that are a product of time and space.",
            "Use an rbf kernel, or a product of kernels with dims.",
        )
    time, _ = safe_cholesky(parts.time(hyper, times, times))
    space, _ = safe_cholesky(parts.space(hyper, nodes, nodes))
    noise = torch.from_numpy(generator.standard_normal((len(times), len(nodes))))
    found: Tensor = parts.variance(hyper).sqrt() * (time[0] @ noise @ space[0].mT)
    return found


def _solve(
    model: Model, fields: FieldMap, values: Values, force: Tensor, points: FloatArray, generator: np.random.Generator
) -> Tensor:
    """The field at the points, [1, Q]."""
    start = fields.profile()
    initial = model.field.field.initial
    if initial.kind == "scaled":
        start = start * values["initial_scale"][0]
    if initial.kind == "field":
        gaps = torch.cdist(fields.nodes, fields.nodes) / values["initial_lengthscale"][0]
        factor, _ = safe_cholesky(torch.exp(-0.5 * gaps.square()))
        start = values["initial_deviation"][0] * (factor @ torch.from_numpy(generator.standard_normal(len(gaps))))
    places = fields.places(torch.from_numpy(points).unsqueeze(0))
    theta = fields.theta(values)
    found = solve(
        fields.discretised.engine, theta, start.reshape(1, 1, -1), force[None, None], fields.grid, places.observe
    )
    return found[0, 0, places.before][places.time[0], places.place[0]].unsqueeze(0)


def _at(fields: FieldMap, force: Tensor, points: FloatArray) -> Tensor:
    """The force at the points, [1, Q]; observed times are steps of the grid."""
    places = fields.places(torch.from_numpy(points).unsqueeze(0))
    on_places = (places.observe @ force.mT).mT
    return on_places[places.before][places.time[0], places.place[0]].unsqueeze(0)
