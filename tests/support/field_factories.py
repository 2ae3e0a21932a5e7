"""Fields made of invented numbers, for tests of what is done with results, without mesh generator and solver."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import torch
from scipy.spatial import Delaunay
from torch import Tensor

from distlfm.inference.base import Mixture, Posterior, Predicted, Unknowns
from distlfm.inference.findings.estimates import estimates
from distlfm.inference.model import ForceConfig, Model
from distlfm.inference.observations import collate
from distlfm.inference.result import FitResult, Prediction
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.likelihoods import LikelihoodConfig
from distlfm.mechanisms import build_system
from distlfm.solvers.field.engine import TimeGrid
from tests.support.result_factories import band

NOISE = 0.05
MESHES = {1: "interval", 2: "rectangle", 3: "box"}


def force_at(times: FloatArray, positions: FloatArray) -> FloatArray:
    return np.sin(3 * times) * np.cos(4 * positions[:, 0]) + 0.5 * positions.sum(1)


def output_at(times: FloatArray, positions: FloatArray) -> FloatArray:
    return times * np.sin(np.pi * positions).prod(1)


class InventedField(Posterior):
    """Predicts the true functions, a little off; knows a mesh of the unit cube."""

    method = "invented"

    def __init__(self, model: Model, instance: Instance, nodes: FloatArray) -> None:
        self.model, self.observations = model, collate([instance], model.system.outputs)
        dims = nodes.shape[1]
        order = np.argsort(nodes[:, 0])
        cells = np.column_stack([order[:-1], order[1:]]) if dims == 1 else Delaunay(nodes).simplices
        field = SimpleNamespace(
            discretised=SimpleNamespace(nodes=nodes, cells=cells),
            grid=TimeGrid(0.0, 0.05, 20),
            inducing=SimpleNamespace(places=torch.from_numpy(nodes[::3])),
        )
        self.marginal = SimpleNamespace(map=field)

    def unknowns(self) -> Unknowns:
        z = torch.zeros(5, 1, self.model.space.num_free, dtype=torch.float64)
        z += torch.linspace(-1, 1, 5, dtype=torch.float64)[:, None, None]
        # The middle of the prior of the noise is the noise that was put in.
        return Unknowns(z, torch.full((5, 1), 0.2, dtype=torch.float64))

    def predict(self, rows: Tensor, times: Tensor) -> Predicted:
        del rows
        found = invented(times[0, :, 0].numpy(), times[0, :, 1:].numpy())

        def mixture(mean: FloatArray, sd: FloatArray) -> Mixture:
            return Mixture(torch.from_numpy(mean)[None, None], torch.from_numpy(sd**2)[None, None])

        return Predicted(mixture(found.force.mean, found.force.sd), mixture(found.outputs.mean, found.outputs.sd))

    def draw(self, rows: Tensor, times: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
        raise NotImplementedError

    def state(self) -> dict[str, Tensor]:
        return {}


def invented(times: FloatArray, positions: FloatArray) -> Prediction:
    force = (force_at(times, positions) + 0.03)[None]
    outputs = output_at(times, positions)[None]
    sd = np.where(outputs == 0, 0.0, 0.2 * NOISE)
    return Prediction(times, band(force, np.full_like(force, 0.1)), band(outputs, sd), positions)


def lattice(times: FloatArray, places: FloatArray) -> tuple[FloatArray, FloatArray]:
    return np.repeat(times, len(places)), np.tile(places, (len(times), 1))


def make_field(
    dims: int = 1,
    *,
    truth: bool = True,
    wave: float = 0.0,
    scattered: bool = False,
    status: str = "converged",
    seed: int = 0,
    name: str = "field",
) -> FitResult:
    """A fit that looks like one. wave: size of a misfit with a shape, in units of the noise's deviation."""
    rng = np.random.default_rng(seed)
    side = {1: 17, 2: 7, 3: 4}[dims]
    axis = np.linspace(0, 1, side)
    places = np.stack(np.meshgrid(*[axis] * dims, indexing="ij"), -1).reshape(-1, dims)
    model = Model(
        build_system({"kind": "reaction_diffusion", "mesh": {"kind": MESHES[dims]}}),
        ForceConfig(),
        LikelihoodConfig.model_validate({"prior": {"kind": "lognormal", "median": NOISE, "spread": 0.01}}),
    )
    times, positions = lattice(np.linspace(0, 1, 11), places)
    if scattered:
        times, positions = np.sort(rng.random(len(times))), rng.random(positions.shape)
    shape = np.sin(2 * np.pi * times) * np.sin(4 * np.pi * positions[:, 0])
    values = output_at(times, positions) + NOISE * (rng.normal(size=len(times)) + wave * shape)
    known = Truth(
        times,
        force_at(times, positions)[None],
        output_at(times, positions)[None],
        positions,
        {"decay": np.array([0.1]), "diffusion": np.array([0.01])},
    )
    whole = Instance(
        name,
        ("output",),
        times,
        values[None],
        np.ones((1, len(times)), dtype=bool),
        positions=positions,
        truth=known if truth else None,
        metadata={"time_unit": "min", "value_unit": "nM", "position_unit": "mm"},
    )
    instance = whole.sampled(0.6, seed) if truth else whole
    posterior = InventedField(model, instance, places)
    assert instance.positions is not None
    failed = np.nan if status == "diverged" else 1.0
    return FitResult(
        instance=instance,
        method="invented",
        status=status,
        advice="",
        bound=41.5 * failed,
        trace=np.linspace(0, 41.5, 9) * failed,
        effective_draws=300.0,
        seconds=0.8,
        force_names=model.system.force_names,
        estimates=estimates(posterior)[0],
        undetermined=(),
        grid=invented(*lattice(np.linspace(0, 1, 9), places)),
        at_data=invented(instance.times, instance.positions),
        noise={"noise": np.array([NOISE])},
        posterior=posterior,
        row=0,
    )
