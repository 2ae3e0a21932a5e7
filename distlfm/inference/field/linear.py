"""Values that are a linear function of force, initial state and coefficients around a point, as columns of w.

The gradients are those of one trajectory or of matched slopes, and stay as they are while kernels, noise and
coefficients change: the marginal likelihood then calls no solver at all.

How strongly outputs answer to the force depends on the coefficients, and with it the volume of forces that explain the
data: left out, the coefficients' posterior is shifted, and too narrow. So for each coefficient the equation is also
linearised in the force at three values, each around the force that explains the data best there, and gradients, force
and outputs are interpolated by parabolas.

Shapes: `A` rows of unknowns, `B` instances, `I = 2 c + 1` linearisations for `c` coefficients, `T` values, `n` times,
`J` nodes, `k` coefficients, `R` whitened numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.inference.field.map import FieldMap, OutputMap
from distlfm.inference.field.points import left_open, whitened_basis
from distlfm.mechanisms.priors import Values

CHUNK = 20_000_000
"""Numbers held at once while gradients are multiplied with basis functions."""


@dataclass(frozen=True)
class Linearisation:
    """value ≈ constant + by_force · f + by_initial · y_0 + by_theta · (θ − θ*), one for each of B instances.

    times: [n] at which the force counts. constant: [B, T]; by_force: [B, T, n, J]; by_initial: [B, T, J];
    by_theta: [B, T, k]; theta: [B, k], θ*.
    """

    times: Tensor
    constant: Tensor
    by_force: Tensor
    by_initial: Tensor
    by_theta: Tensor
    theta: Tensor


def force_bases(field_map: FieldMap, values: Values, times: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Basis functions of the force in space [A, J, M_x] and in time [A, n, M_t], and its standard deviation [A]."""
    assert field_map.separable is not None
    hyper = field_map.model.hyper(values)[0]
    space = whitened_basis(field_map.separable.space, hyper, field_map.nodes, field_map.inducing.places)
    time = whitened_basis(field_map.separable.time, hyper, times, field_map.inducing.times)
    return space, time, field_map.separable.variance(hyper).sqrt()


def force_on(field_map: FieldMap, values: Values, w: Tensor, times: Tensor) -> Tensor:
    """The force that w [A, R] stands for, at times [n] and all nodes: [A, n, J]."""
    own = w[:, : w.shape[1] - field_map.num_initial]
    if field_map.separable is None:
        basis, _ = field_map.joint_basis_on(values, times)
        return torch.einsum("anjr,ar->anj", basis, own)
    space, time, deviation = force_bases(field_map, values, times)
    table = own.unflatten(-1, (space.shape[-1], time.shape[-1]))
    force: Tensor = deviation[:, None, None] * (time @ table.mT @ space.mT)
    return force


def linear_columns(field_map: FieldMap, found: Linearisation, values: Values, rows: Tensor) -> OutputMap:
    """Values of the instances `rows` [A] as columns of w."""
    theta, start = field_map.theta(values), field_map.start(values)
    moved = (found.by_theta[rows] @ (theta - found.theta[rows]).unsqueeze(-1)).squeeze(-1)
    offset = found.constant[rows] + moved + (found.by_initial[rows] @ start.unsqueeze(-1)).squeeze(-1)
    columns, slack = _by_rows(field_map, found, values, rows)
    if field_map.num_initial:
        starts, size = field_map.starts(values)
        later = size[..., None] * (found.by_initial[rows] @ starts.mT)
        bound = size * (found.by_initial[rows].abs() @ starts[:, -1:].mT).squeeze(-1)
        columns, slack = torch.cat([columns, later[..., :-1]], -1), slack + bound.square()
    return OutputMap(offset, columns, slack)


def _by_rows(field_map: FieldMap, found: Linearisation, values: Values, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The force's columns [A, T, R] and slack [A, T], a few rows of one instance at a time."""
    separable = field_map.separable is not None
    parts: list[tuple[Tensor, Tensor]] = []
    order: list[Tensor] = []
    width = len(field_map.inducing.places) if separable else len(field_map.nodes)
    for b in rows.unique().tolist():
        gradient = found.by_force[b]
        own = torch.nonzero(rows == b).squeeze(-1)
        for some in own.split(max(1, CHUNK // (gradient.shape[0] * gradient.shape[1] * width))):
            chosen = {name: value[some] for name, value in values.items()}
            parts.append((_separable if separable else _joint)(field_map, gradient, found.times, chosen))
            order.append(some)
    back = torch.argsort(torch.cat(order))
    return torch.cat([columns for columns, _ in parts])[back], torch.cat([slack for _, slack in parts])[back]


def _separable(field_map: FieldMap, gradient: Tensor, times: Tensor, values: Values) -> tuple[Tensor, Tensor]:
    space, time, deviation = force_bases(field_map, values, times)
    size = deviation[:, None]
    inner = gradient.flatten(0, 1) @ space
    columns = inner.unflatten(1, gradient.shape[:2]).mT @ time.unsqueeze(1)
    # What the inducing points leave open is at most the sum of what each factor does, taken as fully correlated.
    strength = gradient.abs()
    loose = left_open(space).squeeze(-1) @ strength.sum(1).mT + left_open(time).squeeze(-1) @ strength.sum(2).mT
    return size.unsqueeze(-1) * columns.flatten(-2), (size * loose).square()


def _joint(field_map: FieldMap, gradient: Tensor, times: Tensor, values: Values) -> tuple[Tensor, Tensor]:
    basis, left = field_map.joint_basis_on(values, times)
    columns = gradient.flatten(1) @ basis.flatten(1, 2)
    return columns, (left.flatten(1) @ gradient.abs().flatten(1).mT).square()


BEYOND = 0.5
"""So far beyond the outer values, in units of their distance from the middle, gradients still follow the parabola."""


@dataclass(frozen=True)
class Curved:
    """The middle first, then the upper and the lower value of each coefficient.

    which: [c] places of the coefficients in theta; theta: [I, k]; value: [I, T], outputs; force: [I, n, J]; initial:
    [I, J]; linear: the gradients of each, with I in place of instances.
    """

    which: tuple[int, ...]
    theta: Tensor
    value: Tensor
    force: Tensor
    initial: Tensor
    linear: Linearisation

    def weights(self, theta: Tensor, *, bounded: bool) -> Tensor:
        """Lagrange's weights [A, I] of the linearisations at theta [A, k], or at the nearest bounds of their range."""
        if not self.which:
            return torch.ones(len(theta), 1, dtype=theta.dtype)
        which = list(self.which)
        middle, x = self.theta[0, which], theta[:, which]
        upper = torch.stack([self.theta[1 + 2 * i, k] for i, k in enumerate(which)])
        lower = torch.stack([self.theta[2 + 2 * i, k] for i, k in enumerate(which)])
        if bounded:
            x = torch.minimum(torch.maximum(x, lower - BEYOND * (middle - lower)), upper + BEYOND * (upper - middle))
        up = (x - middle) * (x - lower) / ((upper - middle) * (upper - lower))
        down = (x - middle) * (x - upper) / ((lower - middle) * (lower - upper))
        return torch.cat([1 - (up + down).sum(-1, keepdim=True), torch.stack([up, down], -1).flatten(1)], -1)

    def columns(self, field_map: FieldMap, values: Values) -> OutputMap:
        """Values as columns of w."""
        theta = field_map.theta(values)
        outer, inner = self.weights(theta, bounded=False), self.weights(theta, bounded=True)
        # y = y_θ + G_θ (f − f_θ) + H_θ (y_0 − y_0θ)
        initial = field_map.start(values) - outer @ self.initial
        pushed = torch.einsum("itnj,mnj->imt", self.linear.by_force, self.force)
        offset = outer @ self.value - torch.einsum("ai,am,imt->at", inner, outer, pushed)
        offset = offset + torch.einsum("ai,itj,aj->at", inner, self.linear.by_initial, initial)
        columns, slack = torch.zeros(()), torch.zeros(())
        for i in range(len(self.theta)):
            linear = linear_columns(field_map, self.linear, values, torch.full((len(theta),), i))
            columns = columns + inner[:, i, None, None] * linear.columns
            slack = linear.slack if i == 0 else slack
        return OutputMap(offset, columns, slack)
