"""Instances drawn from the prior of a config, many at a time, as they are on the grid of a store.

Shapes: `B` instances, `P` outputs, `L` forces, `T` times, `Q` points of the grid, `K` elements of a parameter.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.inference.model import Model
from distlfm.instance import FloatArray
from distlfm.mechanisms.parameters import Values
from distlfm.pipeline.generate_paths import draw_paths
from distlfm.pipeline.generate_settings import GenerateConfig
from distlfm.pipeline.generate_trajectories import draw
from distlfm.pipeline.simulate import INTERVALS, check, model_of_prior
from distlfm.pipeline.simulate_field import Lattice
from distlfm.solvers.linear import probe

ODE_BATCH = 64
"""Trajectories solved together: enough to share the cost of a step, few enough to stay in the cache."""

Mesh = tuple[NDArray[np.float64], NDArray[np.int64]]


@dataclass(frozen=True)
class Truths:
    """What instances are. values: each [B, K]; forces: [B, L, Q]; outputs: [B, P, Q]; ok: [B], False if diverged."""

    values: Values
    forces: FloatArray
    outputs: FloatArray
    ok: Tensor


class Draws(ABC):
    """The prior of a config on its grid.

    times: [T]; axes: the positions along each dimension of space; points: [Q, 1 + d], times and places of the grid in
    the order of its arrays; batch: how many instances are drawn together at most.
    """

    model: Model
    times: FloatArray
    axes: list[FloatArray]
    points: FloatArray
    batch: int
    mesh: Mesh | None = None

    @abstractmethod
    def draw(self, generators: Sequence[np.random.Generator]) -> Truths:
        """One instance from each generator, which depends on no other."""


class OdeDraws(Draws):
    """Trajectories, computed with their forces at `INTERVALS` or more even breaks, the grid's times among them."""

    def __init__(self, model: Model, config: GenerateConfig) -> None:
        self.model = model
        self.times = np.linspace(config.start, config.stop, config.points)
        self.axes, self.points, self.batch = [], self.times[:, None], ODE_BATCH
        self.parts = -(-INTERVALS // (config.points - 1))
        self.breaks = np.linspace(config.start, config.stop, (config.points - 1) * self.parts + 1)
        self.linearity = probe(model.mechanism, model.space)

    @torch.no_grad()
    def draw(self, generators: Sequence[np.random.Generator]) -> Truths:
        drawn = draw(self.model, self.breaks, self.linearity, generators, _draw_evenly)
        rows = {name: value.unsqueeze(-2) for name, value in drawn.values.items()}
        shown = self.model.mechanism.act(drawn.forces[..., :: self.parts].mT, rows).mT
        return Truths(drawn.values, shown.numpy(), drawn.outputs[..., :: self.parts].numpy(), drawn.ok)


class FieldDraws(Draws):
    """Fields on a lattice of times and places."""

    def __init__(self, model: Model, config: GenerateConfig) -> None:
        begins = model.field.field.start
        if begins is not None and begins != config.start:
            raise UsageError(
                f"mechanism.start is {begins:g}, and fields are generated from start = {config.start:g} on.",
                "Make them equal, or leave mechanism.start out.",
            )
        self.model = model
        self.times = np.linspace(config.start, config.stop, config.points)
        self.lattice = Lattice(model, self.times, config.places)
        self.axes, self.points, self.batch = self.lattice.axes[1:], self.lattice.points, self.lattice.batch
        self.mesh = self.lattice.discretised.nodes, self.lattice.discretised.cells

    def draw(self, generators: Sequence[np.random.Generator]) -> Truths:
        drawn = self.lattice.draw(generators)
        return Truths(drawn.values, drawn.force[:, None], drawn.outputs[:, None], drawn.ok)


def open_draws(config: GenerateConfig) -> Draws:
    """The prior of a config, ready to be drawn from."""
    model = model_of_prior(config)
    check(model, config.instances, config.missing)
    if config.noise is not None and model.likelihood.kind != "gaussian":
        raise UsageError(
            f"noise is {config.noise:g}, and a {model.likelihood.kind} likelihood has none.", "Leave noise out."
        )
    return FieldDraws(model, config) if model.is_field else OdeDraws(model, config)


def _draw_evenly(
    model: Model, values: Values, breaks: Tensor, generators: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    return draw_paths(model.kernels, model.hyper(values), breaks, generators)
