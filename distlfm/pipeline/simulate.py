"""Instances drawn from a model's own prior: parameters, forces, trajectories, and data with noise and gaps.

A force of time is drawn exactly, by Cholesky, at all given times and at points between them, and continued between
those by local polynomials. A force of the state is a sum of random features. Linear mechanisms are integrated by
Gauss–Legendre panels, the others by rk4, with steps halved until the outputs settle.

Shapes: `B` instances of a block, `P` outputs, `L` forces, `T` times, `N` breaks.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from distlfm.errors import UsageError, WorkError
from distlfm.gp.pathwise import Domain, ForcePrior, draw_prior
from distlfm.inference.likelihood import positive_rate
from distlfm.inference.model import Model
from distlfm.instance import FloatArray, Instance, Truth
from distlfm.mechanisms import build_system, find_system
from distlfm.mechanisms.parameters import Values
from distlfm.pipeline.settings import SimulateConfig
from distlfm.pipeline.simulate_field import simulate_fields
from distlfm.solvers.base import Force, SolverConfig
from distlfm.solvers.linear import Linearity, extract, panels, probe, propagate
from distlfm.solvers.ode import solve
from distlfm.solvers.problem import reads_state

BLOCK = 32
"""Instances drawn together. Blocks are always whole, so that not even rounding depends on how many are asked for."""

INTERVALS = 200
"""The time axis is cut into at least this many parts, at whose ends (the breaks) forces of time are drawn.

What a force does between two breaks beyond the polynomial is missing in the outputs. At lengthscales of 1/12, 1/24 and
1/48 of the axis that is, relative to the outputs: 1e-7, 1e-7, 8e-6 (RBF); 3e-5, 2e-4, 1e-3 (Matérn-5/2); 6e-4, 2e-3,
7e-3 (Matérn-3/2); 3e-2, 4e-2, 7e-2 (Matérn-1/2).
"""

WINDOW = 6
"""Breaks whose polynomial, of degree 5, continues a force between the two in the middle."""

NODES = 3
"""Gauss–Legendre nodes between two breaks."""

NUM_FEATURES = 1024
"""Frequencies of a force of the state."""

FARTHEST = 3.0
"""A flow is drawn as far around the start as it gets at this many standard deviations of its speed."""

ACCURACY = 1e-6
"""rk4 steps are halved until all states change by less than this part of their size."""

FEWEST_STEPS, MOST_STEPS = 64, 4096
"""Steps that are tried first, and those after which an instance is taken as it is."""

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
    axis = _Axis.of(times, truth_times)
    _check(model, num_instances, missing)
    linearity = probe(model.mechanism, model.space)
    found: list[Instance] = []
    for first in range(0, num_instances, BLOCK):
        found.extend(_block(model, axis, linearity, seed, range(first, first + BLOCK), missing))
    return found[:num_instances]


def simulate_from(config: SimulateConfig) -> list[Instance]:
    """The instances that a config of `distlfm simulate` asks for."""
    names = [f"output_{i}" for i in range(config.num_outputs)]
    takes_any = not find_system(config.mechanism["kind"]).Options(kind="").outputs
    model = Model(build_system(config.mechanism, names if takes_any else ()), config.force, config.likelihood)
    if model.is_field:
        _check(model, config.instances, config.missing)
        return simulate_fields(model, config)
    return simulate(
        model,
        num_instances=config.instances,
        times=[float(t) for t in np.linspace(config.start, config.stop, config.points)],
        truth_times=[float(t) for t in np.linspace(config.start, config.stop, config.truth_points)],
        seed=config.seed,
        missing=config.missing,
    )


def _check(model: Model, num_instances: int, missing: float) -> None:
    if num_instances < 1:
        raise UsageError(f"{num_instances} instances were asked for.", "Ask for one or more.")
    if not 0 <= missing < 1:
        raise UsageError(f"missing is {missing:g}.", "It is the part of values to leave out: 0 or more, and below 1.")
    if model.likelihood.kind == "gaussian" and model.likelihood.noise != "learned":
        raise UsageError(
            "The noise is given with the data, and simulated data have none yet.", "Set likelihood.noise=learned."
        )
    if model.is_field and model.likelihood.kind != "gaussian":
        raise UsageError("Fields are simulated with Gaussian noise.", "Set likelihood.kind=gaussian.")


@dataclass(frozen=True)
class _Axis:
    """breaks: [N], which hold all times; observed: [T] and truth: [n], their places among the breaks."""

    breaks: FloatArray
    observed: np.ndarray[tuple[int], np.dtype[np.intp]]
    truth: np.ndarray[tuple[int], np.dtype[np.intp]]

    @staticmethod
    def of(times: Sequence[float], truth_times: Sequence[float]) -> _Axis:
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
        return _Axis(breaks, np.searchsorted(breaks, observed), np.searchsorted(breaks, truth))


@dataclass(frozen=True)
class _Drawn:
    """What a block of instances is. values: each [B, K]; forces: [B, L, N]; outputs: [B, P, N]; ok: [B]."""

    values: Values
    forces: Tensor
    outputs: Tensor
    ok: Tensor


def _block(
    model: Model, axis: _Axis, linearity: Linearity, seed: int, indices: Sequence[int], missing: float
) -> Iterator[Instance]:
    found: dict[int, Instance] = {}
    for attempt in range(ATTEMPTS):
        waiting = [index for index in indices if index not in found]
        if not waiting:
            break
        generators = [np.random.default_rng([seed, index, attempt]) for index in waiting]
        with torch.no_grad():
            drawn = _draw(model, axis, linearity, generators)
        for row, index in enumerate(waiting):
            if bool(drawn.ok[row]):
                found[index] = _observe(model, axis, drawn, row, f"sim-{index:06d}", generators[row], missing)
    if len(found) < len(indices):
        raise WorkError(
            f"{len(indices) - len(found)} of {len(indices)} trajectories diverge, however often they are drawn.",
            "Narrow the priors of the mechanism, or shorten the times.",
        )
    yield from (found[index] for index in indices)


def _draw(model: Model, axis: _Axis, linearity: Linearity, generators: Sequence[np.random.Generator]) -> _Drawn:
    mechanism = model.mechanism
    values = model.space.unpack(_normals(generators, model.space.num_free))
    breaks = torch.from_numpy(axis.breaks).expand(len(generators), -1)
    if reads_state(mechanism):
        flow, ok = _draw_flow(model, values, breaks, generators)
        states, finite = _settle(model, flow, values, breaks)
        forces = flow(mechanism.force_input(breaks, states).unsqueeze(0))[0]
        return _Drawn(values, forces, _outputs(model, states, values), ok & finite)
    forces, ok = _draw_forces(model, values, breaks, generators)
    force = _Path(breaks[0].contiguous(), forces)
    if linearity.affine:
        grid = panels(breaks[:1], 1, NODES)
        at_nodes = force(grid.nodes.unsqueeze(-1))[0]
        outputs = propagate(extract(mechanism, values), grid, at_nodes, diagonal=linearity.diagonal)
        return _Drawn(values, forces, outputs, ok & outputs.isfinite().flatten(1).all(-1))
    states, finite = _settle(model, force, values, breaks)
    return _Drawn(values, forces, _outputs(model, states, values), ok & finite)


@dataclass(frozen=True)
class _Path:
    """A function of time through given values. points: [N]; values: [B, L, N]."""

    points: Tensor
    values: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[1, B, L, n] at x [B or 1, n, 1], by the polynomial through the nearest `WINDOW` points (Lagrange's form)."""
        t = x[..., 0]
        first = (torch.searchsorted(self.points, t.contiguous()) - WINDOW // 2).clamp(0, len(self.points) - WINDOW)
        index = first.unsqueeze(-1) + torch.arange(WINDOW)
        near = self.points[index]
        same = torch.eye(WINDOW, dtype=torch.bool)
        above = (t[..., None, None] - near.unsqueeze(-2)).masked_fill(same, 1.0).prod(-1)
        below = (near.unsqueeze(-1) - near.unsqueeze(-2)).masked_fill(same, 1.0).prod(-1)
        values = torch.take_along_dim(self.values.unsqueeze(-2), index.unsqueeze(-3), -1)
        return (values * (above / below).unsqueeze(-3)).sum(-1).unsqueeze(0)


def _draw_forces(
    model: Model, values: Values, breaks: Tensor, generators: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    """Forces of time [B, L, N] at the breaks [B, N], exact up to the jitter, and whether [B] they could be drawn."""
    factor, ok = ForcePrior(model.kernels).factor(model.hyper(values), breaks[:1].unsqueeze(-1))
    noise = _normals(generators, len(model.kernels), breaks.shape[-1])
    return (factor @ noise.unsqueeze(-1)).squeeze(-1), ok


def _draw_flow(
    model: Model, values: Values, breaks: Tensor, generators: Sequence[np.random.Generator]
) -> tuple[Force, Tensor]:
    """Forces of the state as sums of features, good around the start, and whether [B] they could be drawn."""
    hyper = model.hyper(values)
    start = model.mechanism.initial_state(values)
    speed = torch.stack([one["variance"] for one in hyper], -1).amax(-1, keepdim=True).sqrt()
    reach = FARTHEST * speed * (breaks[:, -1:] - breaks[:, :1])
    noise = _normals(generators, 1, len(model.kernels), 2, NUM_FEATURES).transpose(0, 1)
    draw = draw_prior(ForcePrior(model.kernels), hyper, Domain(start - reach, start + reach), noise)
    return draw, draw.ok


def _settle(model: Model, force: Force, values: Values, breaks: Tensor) -> tuple[Tensor, Tensor]:
    """States [B, N, D] by rk4, each instance's from the first steps that suffice, and [B] whether it stays finite."""
    found = solve(model.mechanism, force, values, breaks, SolverConfig(steps=FEWEST_STEPS))
    states, ok, steps = found.states[0], found.ok[0], 2 * FEWEST_STEPS
    settled = torch.zeros_like(ok)
    while steps <= MOST_STEPS and not bool(settled.all()):
        found = solve(model.mechanism, force, values, breaks, SolverConfig(steps=steps))
        finer = found.states[0]
        change = ((finer - states).abs().amax(-2) / finer.abs().amax(-2).clamp_min(1e-300)).amax(-1)
        # Steps that are too long diverge where shorter ones do not: only what diverges twice is given up.
        done = torch.where(ok & found.ok[0], change < ACCURACY, ~ok & ~found.ok[0])
        states = torch.where(settled[:, None, None], states, finer)
        ok = torch.where(settled, ok, found.ok[0])
        settled = settled | done
        steps *= 2
    return states, ok


def _outputs(model: Model, states: Tensor, values: Values) -> Tensor:
    """What the states [B, N, D] show, [B, P, N]."""
    rows = {name: value.unsqueeze(-2) for name, value in values.items()}
    return model.mechanism.observe(states, rows).mT


def _normals(generators: Sequence[np.random.Generator], *shape: int) -> Tensor:
    """Standard normal numbers [B, *shape], those of each instance from its own generator."""
    return torch.from_numpy(np.stack([generator.standard_normal(shape) for generator in generators]))


def _observe(
    model: Model, axis: _Axis, drawn: _Drawn, row: int, name: str, generator: np.random.Generator, missing: float
) -> Instance:
    parameters = {key: value[row].numpy().copy() for key, value in drawn.values.items()}
    own = {key: value[row] for key, value in drawn.values.items()}
    outputs, shown = drawn.outputs[row].numpy(), model.mechanism.act(drawn.forces[row].mT, own).mT.numpy()
    values = _scatter(model, outputs[:, axis.observed], parameters, generator)
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


def _scatter(
    model: Model, outputs: FloatArray, parameters: dict[str, FloatArray], generator: np.random.Generator
) -> FloatArray:
    """Data [P, T] around noise-free outputs, distributed as in `inference.likelihood`."""
    kind = model.likelihood.kind
    if kind == "gaussian":
        return outputs + parameters["noise"][:, None] * generator.standard_normal(outputs.shape)
    mean = positive_rate(torch.from_numpy(outputs)).numpy()
    if kind == "negative_binomial":
        shape = 1 / parameters["dispersion"][:, None]
        mean = generator.gamma(np.broadcast_to(shape, mean.shape)) * mean / shape
    return generator.poisson(mean).astype(np.float64)
