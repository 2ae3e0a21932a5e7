"""One instance's linearisations at several values of its coefficients, and what is between them.

How strongly outputs answer to the force depends on the coefficients, and with it the volume of forces that explain the
data: left out, the coefficients' posterior is shifted, and too narrow. So for each coefficient the equation is
linearised in the force at three values, each around the force that explains the data best there, and gradients, force
and outputs are interpolated by parabolas.

Shapes: `A` rows of unknowns, `I = 2 c + 1` linearisations for `c` coefficients, `T` values, `n` times, `J` nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.inference.field_linear import Linearisation, linear_columns, start_of
from distlfm.inference.field_map import Columns, FieldMap
from distlfm.mechanisms.parameters import Values

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

    def columns(self, field_map: FieldMap, values: Values) -> Columns:
        """Values as columns of w."""
        theta = field_map.theta(values)
        outer, inner = self.weights(theta, bounded=False), self.weights(theta, bounded=True)
        start = start_of(field_map, values, theta)
        # y = y_θ + G_θ (f − f_θ) + H_θ (y_0 − y_0θ)
        initial = start - outer @ self.initial
        pushed = torch.einsum("itnj,mnj->imt", self.linear.by_force, self.force)
        offset = outer @ self.value - torch.einsum("ai,am,imt->at", inner, outer, pushed)
        offset = offset + torch.einsum("ai,itj,aj->at", inner, self.linear.by_initial, initial)
        columns, slack = torch.zeros(()), torch.zeros(())
        for i in range(len(self.theta)):
            found = linear_columns(field_map, self.linear, values, torch.full((len(theta),), i))
            columns = columns + inner[:, i, None, None] * found.columns
            slack = found.slack if i == 0 else slack
        return Columns(offset, columns, slack)
