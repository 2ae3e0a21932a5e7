"""Trajectories by classical Runge–Kutta steps, with gradients and Jacobians chained from those of single steps.

The trajectory is computed first, without recording anything. After that all its steps are differentiated in one call,
as if they were rows of a batch, and what they give is chained: backwards for the gradient of a number, forwards for the
Jacobian of all states.

Shapes: leading dimensions `…` are samples and instances; `N` steps, `D` states, `L` forces, `K` elements, `W` unknowns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from distlfm.mechanisms.base import Mechanism
from distlfm.mechanisms.priors import ParameterSpace
from distlfm.solvers.ode import LIMIT

ELEMENTS = 200_000
"""Numbers of a tensor of states, up to which several steps are differentiated together: they should stay in a cache."""

SMALL = 3_000
"""Numbers of the states at one time, up to which an operation costs the same however few they are."""


@dataclass(frozen=True)
class Shape:
    """What is known of a mechanism's rates, found by trial. apart: that of each state depends on no other state.

    straight: that of each state is a straight line in that state, whatever drives it.
    """

    apart: bool
    straight: bool

    @staticmethod
    def of(mechanism: Mechanism, space: ParameterSpace) -> Shape:
        """Probe at several places."""
        generator = torch.Generator().manual_seed(0)
        size = mechanism.num_states
        z = torch.randn(6, space.num_free, generator=generator, dtype=torch.float64)
        y = 0.2 + torch.rand(4, 6, size, generator=generator, dtype=torch.float64)
        f = torch.randn(6, len(mechanism.force_names), generator=generator, dtype=torch.float64)
        t = torch.rand(6, generator=generator, dtype=torch.float64)
        values = space.unpack(z)

        def rate(at: Tensor) -> Tensor:
            return mechanism.vector_field(t, at, f, values).expand(6, size)

        here, apart = rate(y[0]), True
        for i in range(size):
            moved = y[0].clone()
            moved[:, i] = y[1, :, i]
            others = torch.arange(size) != i
            apart = apart and bool((rate(moved)[:, others] == here[:, others]).all())
        first, second = ((rate(a) - rate(b)) / (a - b) for a, b in (y[:2], y[2:]))
        straight = apart and torch.allclose(first, second, rtol=1e-8, atol=1e-10)
        return Shape(apart, straight)


@dataclass(frozen=True)
class Flow:
    """The steps of a mechanism. times: [N + 1 + N, ...] of all stages; lengths: [N, ..., 1]."""

    mechanism: Mechanism
    names: tuple[str, ...]
    times: Tensor
    lengths: Tensor
    shape: Shape

    def step(self, part: slice, y: Tensor, forces: Sequence[Tensor], values: Sequence[Tensor]) -> Tensor:
        """States [n, ..., D] after the steps `part` from states y [n, ..., D].

        forces: at the beginning, the middle and the end of each step, [n, ..., L]. values: each [..., K].
        """
        named = dict(zip(self.names, values, strict=True))
        field = self.mechanism.vector_field
        begin, middle, end = (self.times[k + 2 * part.start : k + 2 * part.stop - 1 : 2] for k in range(3))
        length = self.lengths[part]
        half = 0.5 * length
        first, between, last = forces
        a = field(begin, y, first, named)
        b = field(middle, y + half * a, between, named)
        c = field(middle, y + half * b, between, named)
        d = field(end, y + length * c, last, named)
        return y + length / 6 * (a + 2 * (b + c) + d)

    @torch.no_grad()
    def march(self, table: Tensor, start: Tensor, values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """States [N + 1, ..., D] driven by the forces of a table [2·N + 1, ..., L], and whether [...] they are bounded.

        What is not bounded stays at its start, or at zero.
        """
        states = table.new_empty(len(self.lengths) + 1, *start.shape)
        states[0] = y = start
        if self.shape.straight and start.numel() <= SMALL:
            # Straight lines are known by two points, for all steps at once: one operation a step is left.
            every = slice(0, len(self.lengths))
            forces = stages(table, every)
            offset = self.step(every, torch.zeros_like(states[1:]), forces, values)
            slope = self.step(every, torch.ones_like(states[1:]), forces, values) - offset
            for k in range(len(self.lengths)):
                y = torch.addcmul(offset[k], slope[k], y, out=states[k + 1])
        else:
            for k in range(len(self.lengths)):
                part = slice(k, k + 1)
                y = self.step(part, y.reshape(1, *start.shape), stages(table, part), values)[0]
                states[k + 1] = y
        ok = (states.abs() <= LIMIT).all(0).all(-1)
        if not bool(ok.all()):
            rest = torch.where((start.abs() <= LIMIT).all(-1, keepdim=True), start, 0.0)
            states = torch.where(ok.unsqueeze(-1), states, rest)
        return states, ok

    def parts(self, states: Tensor) -> list[slice]:
        """Runs of steps that are differentiated together."""
        size = max(1, ELEMENTS // max(1, states[0].numel()))
        count = len(self.lengths)
        return [slice(i, min(i + size, count)) for i in range(0, count, size)]


def stages(table: Tensor, part: slice) -> tuple[Tensor, Tensor, Tensor]:
    """Of a table [2·N + 1, ...], what the steps `part` need at their beginnings, middles and ends."""
    found = [table[k + 2 * part.start : k + 2 * part.stop - 1 : 2] for k in range(3)]
    return found[0], found[1], found[2]


class March(torch.autograd.Function):
    """`Flow.march` with its gradient by the chain of the steps' Jacobians."""

    @staticmethod
    def forward(ctx: Any, flow: Flow, table: Tensor, start: Tensor, *values: Tensor) -> tuple[Tensor, Tensor]:
        states, ok = flow.march(table, start, values)
        ctx.flow = flow
        ctx.save_for_backward(states, ok, table, *values)
        ctx.mark_non_differentiable(ok)
        return states, ok

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        flow: Flow = ctx.flow
        states, ok, table, *values = ctx.saved_tensors
        by_table = torch.zeros_like(table)
        by_values = [torch.zeros_like(value) for value in values]
        given = torch.where(ok.unsqueeze(-1), grads[0], 0.0)
        pull = given[-1]
        for part in reversed(flow.parts(states)):
            with torch.enable_grad():
                y = states[part].detach().requires_grad_()
                forces = [one.detach().requires_grad_() for one in stages(table, part)]
                inputs = [value.detach().requires_grad_() for value in values]
                after = flow.step(part, y, forces, inputs)
            jacobian = _jacobian(after, y, flow.shape.apart)
            pulls = torch.empty_like(after)
            for k in reversed(range(len(after))):
                pulls[k] = pull
                pull = given[part.start + k] + _back(jacobian[k], pull, flow.shape.apart)
            pulls = torch.where(ok.unsqueeze(-1), pulls, 0.0)
            found = torch.autograd.grad(after, [*forces, *inputs], pulls, allow_unused=True)
            for one, more in zip(stages(by_table, part), found, strict=False):
                if more is not None:
                    one += more
            for one, more in zip(by_values, found[3:], strict=True):
                if more is not None:
                    one += more
        return None, by_table, pull, *by_values


def _jacobian(after: Tensor, y: Tensor, apart: bool) -> Tensor:
    """d after / d y: [..., D, D], or its diagonal [..., D] where no state depends on another."""
    if apart:
        (own,) = torch.autograd.grad(after, y, torch.ones_like(after), retain_graph=True)
        return own
    rows = []
    for i in range(after.shape[-1]):
        unit = torch.zeros_like(after)
        unit[..., i] = 1.0
        (row,) = torch.autograd.grad(after, y, unit, retain_graph=True)
        rows.append(row)
    return torch.stack(rows, -2)


def _back(jacobian: Tensor, pull: Tensor, apart: bool) -> Tensor:
    return jacobian * pull if apart else (jacobian * pull.unsqueeze(-1)).sum(-2)


@dataclass(frozen=True)
class Driving:
    """How what drives a trajectory follows the unknowns: n parameters, then M amplitudes of each force.

    start: [..., D, n]; values: [..., K', n], of all parameters' elements one after another;
    table: [2·N + 1, ..., L, n]; waves: [2·N + 1, ..., 1 or L, M] and roots: [..., L, M], whose product is what a unit
    amplitude does to its force.
    """

    start: Tensor
    values: Tensor
    table: Tensor
    waves: Tensor
    roots: Tensor


def sensitivities(
    flow: Flow, states: Tensor, table: Tensor, values: Sequence[Tensor], driving: Driving
) -> tuple[Tensor, Tensor]:
    """Jacobians [N + 1, ..., D, n] and [N + 1, ..., D, L·M] of states [N + 1, ..., D] by parameters and amplitudes."""
    num_forces, num_waves = driving.roots.shape[-2:]
    shape = states.shape[1:]
    by_z = [driving.start]
    by_waves = [states.new_zeros(*shape, num_forces * num_waves)]
    roots = driving.roots.flatten(-2).unsqueeze(-2)
    for part in flow.parts(states):
        with torch.enable_grad():
            y = states[part].detach().requires_grad_()
            forces = [one.detach().requires_grad_() for one in stages(table, part)]
            # A copy for each step: their gradients must not be summed.
            inputs = [value.detach().expand(len(y), *value.shape).clone().requires_grad_() for value in values]
            after = flow.step(part, y, forces, inputs)
        rows: list[list[Tensor]] = []
        for i in range(after.shape[-1]):
            unit = torch.zeros_like(after)
            unit[..., i] = 1.0
            grads = torch.autograd.grad(
                after, [y, *forces, *inputs], unit, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            rows.append([*grads[:4], torch.cat(grads[4:], -1)])
        own, *pushes, of_values = (torch.stack(one, -2) for one in zip(*rows, strict=True))  # [n, ..., D, ...]
        source = (of_values.movedim(0, -3).flatten(-3, -2) @ driving.values).unflatten(-2, (len(after), -1))
        source = source.movedim(-3, 0)
        waves = after.new_zeros(*after.shape, num_forces, num_waves)
        for push, drive, wave in zip(pushes, stages(driving.table, part), stages(driving.waves, part), strict=True):
            for j in range(num_forces):
                source = source + push[..., j : j + 1] * drive[..., j : j + 1, :]
                own_wave = wave[..., min(j, wave.shape[-2] - 1), :].unsqueeze(-2)
                waves[..., j, :] += push[..., j : j + 1] * own_wave
        waves = waves.flatten(-2) * roots
        for k in range(len(after)):
            if flow.shape.apart:
                diagonal = torch.diagonal(own[k], dim1=-2, dim2=-1).unsqueeze(-1)
                by_z.append(torch.addcmul(source[k], diagonal, by_z[-1]))
                by_waves.append(torch.addcmul(waves[k], diagonal, by_waves[-1]))
            else:
                by_z.append(own[k] @ by_z[-1] + source[k])
                by_waves.append(own[k] @ by_waves[-1] + waves[k])
    return torch.stack(by_z), torch.stack(by_waves)
