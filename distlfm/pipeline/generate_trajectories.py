"""Instances of an ODE drawn together: parameters, forces, and the trajectories that follow, at given breaks of time.

A force of time is continued between breaks by local polynomials. A force of the state is a sum of random features.
Linear mechanisms are integrated by Gauss–Legendre panels, the others by rk4, with steps halved until all settles.

Shapes: `B` instances of a block, `P` outputs, `L` forces, `N` breaks, `D` states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from distlfm.gp.pathwise import Domain, ForcePrior, draw_prior
from distlfm.inference.model import Model
from distlfm.instance import FloatArray
from distlfm.mechanisms.parameters import Values
from distlfm.pipeline.generate_paths import draw_values, normals
from distlfm.solvers.base import Force, SolverConfig
from distlfm.solvers.linear import Linearity, extract, panels, propagate
from distlfm.solvers.ode import solve
from distlfm.solvers.problem import reads_state

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


@dataclass(frozen=True)
class Drawn:
    """What a block of instances is. values: each [B, K]; forces: [B, L, N]; outputs: [B, P, N]; ok: [B]."""

    values: Values
    forces: Tensor
    outputs: Tensor
    ok: Tensor


DrawForces = Callable[[Model, Values, Tensor, Sequence[np.random.Generator]], tuple[Tensor, Tensor]]
"""(model, values, breaks [N], generators) → forces [B, L, N], and whether [B] they could be drawn."""


def draw(
    model: Model,
    breaks: FloatArray,
    linearity: Linearity,
    generators: Sequence[np.random.Generator],
    draw_forces: DrawForces,
) -> Drawn:
    """One instance from each generator, at the breaks [N]; `draw_forces` is asked for forces of time."""
    mechanism = model.mechanism
    values = draw_values(model.space, generators)
    times = torch.from_numpy(breaks).expand(len(generators), -1)
    if reads_state(mechanism):
        flow, ok = _draw_flow(model, values, times, generators)
        states, finite = _settle(model, flow, values, times)
        forces = flow(mechanism.force_input(times, states).unsqueeze(0))[0]
        return Drawn(values, forces, _outputs(model, states, values), ok & finite)
    forces, ok = draw_forces(model, values, times[0], generators)
    force = _Path(times[0].contiguous(), forces)
    if linearity.affine:
        grid = panels(times[:1], 1, NODES)
        at_nodes = force(grid.nodes.unsqueeze(-1))[0]
        outputs = propagate(extract(mechanism, values), grid, at_nodes, diagonal=linearity.diagonal)
        return Drawn(values, forces, outputs, ok & outputs.isfinite().flatten(1).all(-1))
    states, finite = _settle(model, force, values, times)
    return Drawn(values, forces, _outputs(model, states, values), ok & finite)


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


def draw_exactly(
    model: Model, values: Values, breaks: Tensor, generators: Sequence[np.random.Generator]
) -> tuple[Tensor, Tensor]:
    """Forces of time [B, L, N] at any breaks [N], exact up to the jitter, and whether [B] they could be drawn."""
    factor, ok = ForcePrior(model.kernels).factor(model.hyper(values), breaks[None, :, None])
    noise = normals(generators, len(model.kernels), breaks.shape[-1])
    return (factor @ noise.unsqueeze(-1)).squeeze(-1), ok


def _draw_flow(
    model: Model, values: Values, breaks: Tensor, generators: Sequence[np.random.Generator]
) -> tuple[Force, Tensor]:
    """Forces of the state as sums of features, good around the start, and whether [B] they could be drawn."""
    hyper = model.hyper(values)
    start = model.mechanism.initial_state(values)
    speed = torch.stack([one["variance"] for one in hyper], -1).amax(-1, keepdim=True).sqrt()
    reach = FARTHEST * speed * (breaks[:, -1:] - breaks[:, :1])
    noise = normals(generators, 1, len(model.kernels), 2, NUM_FEATURES).transpose(0, 1)
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
