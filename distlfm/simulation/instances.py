"""Instances drawn from a model's own prior: parameters, forces, trajectories, and data with noise and gaps.

A force of time is drawn exactly, by Cholesky, at all given times and at points between them; what follows from it is
in `series.py`. Fields are observed at times and places of a grid (`fields.py`). `distlfm generate` draws the same,
faster, on even times, and into a store.

Shapes: `P` outputs, `L` forces, `T` times, `N` breaks.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

import numpy as np
import torch

from distlfm.errors import UsageError
from distlfm.inference.model import Model
from distlfm.instance import Instance, Truth
from distlfm.mechanisms import build_system, find_system
from distlfm.runs.settings import GenerateConfig, SimulateConfig
from distlfm.simulation.fields import Lattice
from distlfm.simulation.series import INTERVALS, Drawn, Generators, draw, draw_exactly, draw_finite

BLOCK = 32
"""Instances drawn together. Blocks are always whole, so that not even rounding depends on how many are asked for."""


def simulate(
    model: Model,
    *,
    num_instances: int,
    times: Sequence[float],
    truth_times: Sequence[float],
    seed: int,
    missing: float = 0.0,
) -> list[Instance]:
    """Draw instances of a series from the prior of a model; `Model.simulate` is the shorter way, and draws fields too.

    model: of `distlfm.inference.model`. num_instances: how many. times: of the observations, increasing; trajectories
    start at the first. truth_times: at which the truth is known, increasing, none before the first of `times`. seed: of
    the draws. missing: share of values left unobserved at random, from 0 to below 1; one always stays.

    Returns the instances with their truth. Instance i depends on the model, the times, `seed` and i alone. Raises
    `UsageError` if an argument is wrong, or the model takes its noise from data.
    """
    axis = Axis(times, truth_times)
    check(model, num_instances, missing)
    observe = partial(_observe, model, axis, missing)

    @torch.no_grad()
    def draw_block(generators: Generators) -> Drawn:
        return draw(model, axis.breaks, generators, draw_exactly)

    instances: list[Instance] = []
    for first in range(0, num_instances, BLOCK):
        instances += draw_finite(range(first, first + BLOCK), seed, draw_block, observe)
    return instances[:num_instances]


def simulate_from(config: SimulateConfig) -> list[Instance]:
    """The instances that a config of `distlfm simulate` asks for."""
    model, times = model_of_prior(config), np.linspace(config.start, config.stop, config.points)
    if not model.is_field:
        return simulate(
            model,
            num_instances=config.instances,
            times=times.tolist(),
            truth_times=np.linspace(config.start, config.stop, config.truth_points).tolist(),
            seed=config.seed,
            missing=config.missing,
        )
    check(model, config.instances, config.missing)
    lattice = Lattice(model, times, config.places)
    observe, found = partial(_observe_field, lattice, config.missing), list[Instance]()
    for first in range(0, config.instances, lattice.batch):
        indices = range(first, min(first + lattice.batch, config.instances))
        found += draw_finite(indices, config.seed, lattice.draw, observe)
    return found


def model_of_prior(config: SimulateConfig | GenerateConfig) -> Model:
    """The model whose prior a config asks for; a mechanism that leaves its outputs open gets `num_outputs`."""
    names = [f"output_{i}" for i in range(config.num_outputs)]
    takes_any = not find_system(config.mechanism["kind"]).Options(kind="").outputs
    return Model(build_system(config.mechanism, names if takes_any else ()), config.force, config.likelihood)


def check(model: Model, num_instances: int, missing: float) -> None:
    """Refuse what cannot be drawn."""
    if num_instances < 1:
        raise UsageError(f"{num_instances} instances were asked for.", "Ask for one or more.")
    if not 0 <= missing < 1:
        raise UsageError(f"missing is {missing:g}.", "It is the part of values to leave out: 0 or more, and below 1.")
    if model.likelihood.takes_variances:
        raise UsageError(
            "The noise is given with the data, and simulated data have none yet.", "Set likelihood.noise=learned."
        )
    if model.is_field and not model.likelihood.gaussian:
        raise UsageError("Fields are simulated with Gaussian noise.", "Set likelihood.kind=gaussian.")


class Axis:
    """breaks: [N], which hold all times; observed: [T] and truth: [n], their places among the breaks."""

    def __init__(self, times: Sequence[float], truth_times: Sequence[float]) -> None:
        observed, truth = np.asarray(times, dtype=np.float64), np.asarray(truth_times, dtype=np.float64)
        for name, given, least in (("times", observed, 2), ("truth_times", truth, 1)):
            if given.ndim != 1 or len(given) < least or not np.isfinite(given).all() or (np.diff(given) <= 0).any():
                raise UsageError(f"{name} must be {least} or more increasing numbers.", "Sort them, without repeats.")
        if truth[0] < observed[0]:
            raise UsageError(
                f"truth_times begin at {truth[0]:g}, and trajectories start at the first of times, {observed[0]:g}.",
                "Begin times earlier, or truth_times later.",
            )
        corners = np.unique(np.concatenate([observed, truth]))
        longest = (corners[-1] - corners[0]) / INTERVALS
        pieces = [
            np.linspace(left, right, int(np.ceil((right - left) / longest - 1e-9)), endpoint=False)
            for left, right in itertools.pairwise(corners)
        ]
        self.breaks = np.concatenate([*pieces, corners[-1:]])
        self.observed, self.truth = np.searchsorted(self.breaks, observed), np.searchsorted(self.breaks, truth)


def _observe(
    model: Model, axis: Axis, missing: float, drawn: Drawn, row: int, name: str, generator: np.random.Generator
) -> Instance:
    parameters = {key: value[row].numpy().copy() for key, value in drawn.values.items()}
    own = {key: value[row] for key, value in drawn.values.items()}
    outputs, shown = drawn.outputs[row].numpy(), model.mechanism.act(drawn.forces[row].mT, own).mT.numpy()
    values = model.likelihood.observe(parameters, outputs[:, axis.observed], axis.breaks[axis.observed], generator)
    mask = generator.random(values.shape) >= missing
    if not mask.any():
        mask.flat[generator.integers(mask.size)] = True
    return Instance(
        id=name,
        outputs=model.mechanism.outputs,
        times=axis.breaks[axis.observed],
        values=np.where(mask, values, 0.0),
        mask=mask,
        truth=Truth(axis.breaks[axis.truth], shown[:, axis.truth], outputs[:, axis.truth], None, parameters),
    )


def _observe_field(
    lattice: Lattice, missing: float, drawn: Drawn, row: int, name: str, generator: np.random.Generator
) -> Instance:
    parameters = {key: value[row].numpy().copy() for key, value in drawn.values.items()}
    points, clean, shown = lattice.points, drawn.outputs[row].numpy(), drawn.forces[row].numpy()
    seen = lattice.model.likelihood.observe(parameters, clean, points[:, 0], generator)
    mask = generator.random(clean.shape) >= missing
    if mask.sum() < 2:
        mask[:] = True
    return Instance(
        id=name,
        outputs=lattice.model.system.outputs,
        times=points[:, 0],
        values=np.where(mask, seen, 0.0),
        mask=mask,
        positions=points[:, 1:],
        truth=Truth(points[:, 0], shown, clean, points[:, 1:], parameters),
    )
