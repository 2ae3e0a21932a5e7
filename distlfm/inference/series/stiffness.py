"""Whether an equation is stiff: so quick somewhere that explicit steps over the span of the data are too long for it.

Shapes: `A` instances, `D` states, `W` unknowns.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from distlfm.solvers.ode import choose_steps

if TYPE_CHECKING:
    from distlfm.inference.series.forward import Forward

STABLE = 2.78
"""Largest product of step and rate at which the classical Runge–Kutta rules do not blow up a decay."""

TOUCH = 1e-6
"""Step of the differences of the vector field, relative to the states."""


@torch.no_grad()
def fastest(forward: Forward, w: Tensor, rows: Tensor) -> Tensor:
    """The largest rate [A] at which a state falls back to rest, at the start and at the data, for unknowns w [A, W]."""
    mechanism, data = forward.model.mechanism, forward.observations
    values, draw = forward.forces(w, rows)
    first = mechanism.initial_state(values)
    size = torch.where(data.mask[rows], data.values[rows].abs(), 0.0).amax((-2, -1)).clamp_min(TOUCH)
    rates = torch.zeros(len(rows), dtype=first.dtype)
    for state in (first, size.unsqueeze(-1).expand_as(first)):
        t = data.times[rows, 0]
        f = draw(mechanism.force_input(t, state).unsqueeze(-2))[0, ..., 0]
        step = TOUCH * (state.abs() + size.unsqueeze(-1))
        here = mechanism.vector_field(t, state, f, values)
        columns = [
            (mechanism.vector_field(t, state + step * one, f, values) - here) / step[:, i : i + 1]
            for i, one in enumerate(torch.eye(state.shape[-1], dtype=state.dtype))
        ]
        slopes = torch.stack([column.expand_as(state) for column in columns], -1)
        usable = torch.isfinite(slopes).all(-1).all(-1)
        own = torch.linalg.eigvals(torch.where(usable[:, None, None], slopes, 0.0))
        rates = torch.maximum(rates, (-own.real).amax(-1))
    return rates


def stiff_words(forward: Forward, w: Tensor, rows: Tensor) -> list[str]:
    """What to do with each instance whose steps are too long for its fastest rate, empty for others."""
    times, found = forward.observations.times[rows], []
    spans, numbers = (times[:, -1] - times[:, 0]).tolist(), forward.steps[rows].tolist()
    # Steps that are fewer than the data ask for are too few for anything: that is no word about the equation.
    asked = choose_steps(times, forward.observations.mask[rows]).tolist()
    for rate, span, steps, usual in zip(fastest(forward, w, rows).tolist(), spans, numbers, asked, strict=True):
        needed = math.ceil(1.5 * rate * span / STABLE)
        found.append(
            f"The equation is stiff: it falls back to rest at a rate of {rate:.3g} per unit of time. Explicit steps "
            f"must be shorter than {STABLE / rate:.2g} for that, and {steps} were taken over {span:g}. Put the fast "
            f"state at its rest in the equation, set inference.variational.solver.steps={needed}, or give the rate a "
            "prior in the unit of the times."
            if needed > max(steps, usual)
            else ""
        )
    return found
