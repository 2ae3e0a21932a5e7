"""Instances drawn from a model's own prior: parameters, forces, trajectories, and data with noise and gaps.

A force of time is drawn exactly, by Cholesky, at all given times and at points between them; what follows from it is
in `series.py`. `distlfm generate` draws the same, faster, on even times, and into a store.

Shapes: `P` outputs, `L` forces, `T` times, `N` breaks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from distlfm.errors import UsageError, WorkError
from distlfm.inference.model import Model
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.mechanisms import build_system, find_system
from distlfm.runs.settings import GenerateConfig, SimulateConfig
from distlfm.simulation.fields import simulate_fields
from distlfm.simulation.series import Drawn, draw, draw_exactly
from distlfm.solvers.linear import Linearity, probe

BLOCK = 32
"""Instances drawn together. Blocks are always whole, so that not even rounding depends on how many are asked for."""

INTERVALS = 200
"""The time axis is cut into at least this many parts, at whose ends (the breaks) forces of time are drawn.

What a force does between two breaks beyond the polynomial is missing in the outputs. At lengthscales of 1/12, 1/24 and
1/48 of the axis that is, relative to the outputs: 1e-7, 1e-7, 8e-6 (RBF); 3e-5, 2e-4, 1e-3 (Matérn-5/2); 6e-4, 2e-3,
7e-3 (Matérn-3/2); 3e-2, 4e-2, 7e-2 (Matérn-1/2).
"""

ATTEMPTS = 5
"""A draw whose trajectory diverges is drawn anew, at most this often."""


def simulate(
    model: Model,
    *,
    num_instances: int,
    times: Sequence[float],
    truth_times: Sequence[float],
    seed: int,
    missing: float = 0.0,
) -> list[Instance]:
    """Draw `num_instances` from the prior of `model`, observed at `times`, with their truth at `truth_times`.

    Trajectories start at the first of `times`. `missing` is the part of values left unobserved, at random; one always
    stays. Instance i depends on the model, the times, `seed` and i alone.
    """
    axis = Axis.of(times, truth_times)
    check(model, num_instances, missing)
    linearity = probe(model.mechanism, model.space)
    found: list[Instance] = []
    for first in range(0, num_instances, BLOCK):
        found.extend(_block(model, axis, linearity, seed, range(first, first + BLOCK), missing))
    return found[:num_instances]


def simulate_from(config: SimulateConfig) -> list[Instance]:
    """The instances that a config of `distlfm simulate` asks for."""
    model = model_of_prior(config)
    if model.is_field:
        check(model, config.instances, config.missing)
        return simulate_fields(model, config)
    return simulate(
        model,
        num_instances=config.instances,
        times=[float(t) for t in np.linspace(config.start, config.stop, config.points)],
        truth_times=[float(t) for t in np.linspace(config.start, config.stop, config.truth_points)],
        seed=config.seed,
        missing=config.missing,
    )


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


@dataclass(frozen=True)
class Axis:
    """breaks: [N], which hold all times; observed: [T] and truth: [n], their places among the breaks."""

    breaks: FloatArray
    observed: np.ndarray[tuple[int], np.dtype[np.intp]]
    truth: np.ndarray[tuple[int], np.dtype[np.intp]]

    @staticmethod
    def of(times: Sequence[float], truth_times: Sequence[float]) -> Axis:
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
        breaks = np.concatenate([*pieces, corners[-1:]])
        return Axis(breaks, np.searchsorted(breaks, observed), np.searchsorted(breaks, truth))


def _block(
    model: Model, axis: Axis, linearity: Linearity, seed: int, indices: Sequence[int], missing: float
) -> Iterator[Instance]:
    found: dict[int, Instance] = {}
    for attempt in range(ATTEMPTS):
        waiting = [index for index in indices if index not in found]
        if not waiting:
            break
        generators = [np.random.default_rng([seed, index, attempt]) for index in waiting]
        with torch.no_grad():
            drawn = draw(model, axis.breaks, linearity, generators, draw_exactly)
        for row, index in enumerate(waiting):
            if bool(drawn.ok[row]):
                found[index] = _observe(model, axis, drawn, row, f"sim-{index:06d}", generators[row], missing)
    if len(found) < len(indices):
        raise WorkError(
            f"{len(indices) - len(found)} of {len(indices)} trajectories diverge, however often they are drawn.",
            "Narrow the priors of the mechanism, or shorten the times.",
        )
    yield from (found[index] for index in indices)


def _observe(
    model: Model, axis: Axis, drawn: Drawn, row: int, name: str, generator: np.random.Generator, missing: float
) -> Instance:
    parameters = {key: value[row].numpy().copy() for key, value in drawn.values.items()}
    own = {key: value[row] for key, value in drawn.values.items()}
    outputs, shown = drawn.outputs[row].numpy(), model.mechanism.act(drawn.forces[row].mT, own).mT.numpy()
    values = model.likelihood.sample(parameters, outputs[:, axis.observed], generator)
    mask = generator.random(values.shape) >= missing
    if not mask.any():
        mask.flat[generator.integers(mask.size)] = True
    truth = Truth(
        times=axis.breaks[axis.truth],
        force=shown[:, axis.truth],
        outputs=outputs[:, axis.truth],
        parameters=parameters,
    )
    return Instance(
        id=name,
        outputs=model.mechanism.outputs,
        times=axis.breaks[axis.observed],
        values=np.where(mask, values, 0.0),
        mask=mask,
        truth=truth,
    )
