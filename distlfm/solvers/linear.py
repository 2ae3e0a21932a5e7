"""Linear mechanisms solved without stepping: the map from the force to the outputs as a matrix.

Where `ẏ = A y + B f + c` with constant coefficients and outputs `C y + e`,

    y(t) = e^{A(t−t0)} y0 + ∫ e^{A(t−s)} (B f(s) + c) ds,

and the integral over each panel between two times is taken by Gauss–Legendre quadrature, so the outputs are an affine
function of the force at the quadrature nodes. A rule with Q nodes is of order 2Q in the panel's length.

Shapes: leading dimensions `…` are free, `D` states, `P` outputs, `L` forces, `T` times, `G` nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from distlfm.mechanisms.base import Mechanism
from distlfm.mechanisms.priors import ParameterSpace, Values

PROBE_TOLERANCE = 1e-9
PROBES = 7


@dataclass(frozen=True)
class LinearSystem:
    """A: [..., D, D], B: [..., D, L], c: [..., D], C: [..., P, D], e: [..., P], start: [..., D]."""

    A: Tensor
    B: Tensor
    c: Tensor
    C: Tensor
    e: Tensor
    start: Tensor


@dataclass(frozen=True)
class Panels:
    """Quadrature of a time axis that starts at the first of `breaks`, [..., N], and has a panel between each two.

    nodes, weights: [..., G]; a node of weight zero is padding.
    """

    nodes: Tensor
    weights: Tensor
    breaks: Tensor


def extract(mechanism: Mechanism, values: Values, at: Tensor | None = None) -> LinearSystem:
    """The matrices of a linear mechanism, read off its vector field by unit states and unit forces.

    at: times whose shape goes with that of the values, [...], where coefficients change; by default zero.
    """
    num_states, num_forces = mechanism.num_states, len(mechanism.force_names)
    some = next(iter(values.values()))
    states = torch.eye(1 + num_states + num_forces, dtype=some.dtype)[:, 1 : 1 + num_states]
    forces = torch.eye(1 + num_states + num_forces, dtype=some.dtype)[:, 1 + num_states :]
    rows = {name: value.unsqueeze(-2) for name, value in values.items()}
    at = some.new_zeros(()) if at is None else at
    time = at.unsqueeze(-1).expand(*torch.broadcast_shapes(some.shape[:-1], at.shape), len(states))
    states, forces = states.expand(*time.shape, -1), forces.expand(*time.shape, -1)
    rates = mechanism.vector_field(time, states, forces, rows).expand(*time.shape, num_states)
    c = rates[..., 0, :]
    columns = (rates[..., 1:, :] - c.unsqueeze(-2)).transpose(-1, -2)
    seen = mechanism.observe(states[..., : 1 + num_states, :], rows)
    e = seen[..., 0, :]
    C = (seen[..., 1:, :] - e.unsqueeze(-2)).transpose(-1, -2)
    return LinearSystem(columns[..., :num_states], columns[..., num_states:], c, C, e, mechanism.initial_state(values))


@dataclass(frozen=True)
class Linearity:
    """What probing found. `affine`: the outputs are an affine function of the force; `diagonal`: A is diagonal.

    timed: the equation reads the time, so that its coefficients may change, whatever they are at some times; it is not
    called affine then, but `changing` where it is an affine function of state and force at each time.
    """

    affine: bool
    diagonal: bool
    timed: bool = False
    changing: bool = False


_ABOUT = {
    *(getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout", "requires_grad")),
    *(getattr(Tensor, name) for name in ("dim", "size", "numel", "__len__", "is_floating_point", "new_tensor")),
    *(getattr(Tensor, f"new_{name}") for name in ("zeros", "ones", "empty", "full")),
    *(getattr(torch, f"{name}_like") for name in ("zeros", "ones", "empty", "full")),
}
"""What tells of a tensor without its values."""


class _Clock(Tensor):
    """A time that notes whether it was read."""

    was_read = False

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        with torch._C.DisableTorchFunctionSubclass():
            if func not in _ABOUT:
                for one in (*args, *(kwargs or {}).values()):
                    for part in one if isinstance(one, (list, tuple)) else (one,):
                        if isinstance(part, _Clock):
                            part.was_read = True
            return func(*args, **(kwargs or {}))


def reads_time(mechanism: Mechanism, t: Tensor, y: Tensor, f: Tensor, values: Values) -> bool:
    """Whether the vector field does anything with its time, as a known input or a changing rate does.

    A pulse is zero at almost all times, so no sample of times could tell.
    """
    clock = t.as_subclass(_Clock)
    mechanism.vector_field(clock, y, f, values)
    return clock.was_read


def probe(mechanism: Mechanism, space: ParameterSpace) -> Linearity:
    """Find out by trial whether a mechanism is linear with constant coefficients, at several parameters and states."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    values = space.unpack(normal(PROBES, space.num_free))
    t = normal(PROBES).abs() * 10
    size = 10.0 ** torch.arange(PROBES, dtype=torch.float64).sub(2).unsqueeze(-1)
    y, f = normal(PROBES, mechanism.num_states) * size, normal(PROBES, len(mechanism.force_names)) * size
    if mechanism.force_input(t, y).shape[-1] != 1 or not torch.equal(mechanism.force_input(t, y)[..., 0], t):
        return Linearity(affine=False, diagonal=False)
    timed = reads_time(mechanism, t, y, f, values)
    system = extract(mechanism, values, t)
    seen = (system.C @ y.unsqueeze(-1)).squeeze(-1) + system.e
    affine = is_affine(mechanism, values, t, y, f, system) and _close(mechanism.observe(y, values), seen)
    if timed:
        return Linearity(affine=False, diagonal=False, timed=True, changing=affine)
    off_diagonal = system.A - torch.diag_embed(torch.diagonal(system.A, dim1=-2, dim2=-1))
    return Linearity(affine=affine, diagonal=affine and not bool(off_diagonal.any()))


def is_affine(mechanism: Mechanism, values: Values, t: Tensor, y: Tensor, f: Tensor, system: LinearSystem) -> bool:
    """Whether the vector field is that of the system's matrices at times [...], states [..., D], forces [..., L]."""
    expected = (system.A @ y.unsqueeze(-1) + system.B @ f.unsqueeze(-1)).squeeze(-1) + system.c
    return _close(mechanism.vector_field(t, y, f, values), expected)


def _close(given: Tensor, expected: Tensor) -> bool:
    scale = expected.abs().amax(-1, keepdim=True) + 1
    return bool(((given - expected).abs() <= PROBE_TOLERANCE * scale).all())


@lru_cache
def _unit_panel(substeps: int, order: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of the composite rule on [0, 1]."""
    points, weights = np.polynomial.legendre.leggauss(order)  # type: ignore[no-untyped-call]
    offsets = (torch.arange(substeps).unsqueeze(-1) + torch.from_numpy((points + 1) / 2)) / substeps
    return offsets.flatten(), (torch.from_numpy(weights) / 2 / substeps).repeat(substeps)


def panels(times: Tensor, substeps: int, order: int) -> Panels:
    """Gauss–Legendre nodes between consecutive times [..., T], each interval cut into `substeps`.

    G = (T−1)·substeps·order. Times do not decrease; a repeated time makes an empty panel of weight zero.
    """
    offsets, weights = _unit_panel(substeps, order)
    length = torch.diff(times, dim=-1).unsqueeze(-1)
    nodes = times[..., :-1, None] + length * offsets.to(times)
    scaled = length * weights.to(times)
    return Panels(nodes.flatten(-2), scaled.flatten(-2), times)


def response(system: LinearSystem, times: Tensor, grid: Panels, *, diagonal: bool) -> tuple[Tensor, Tensor]:
    """Outputs at `times` [..., T] as offset [..., P, T] + Σ_l weight [..., L, P, T, G] · force at the nodes.

    The times are some of the grid's breaks, and the system starts at the first break.
    """
    columns = torch.cat([system.B, system.c.unsqueeze(-1)], -1)
    propagate = _diagonal_columns if diagonal else _dense_columns
    driven, rest = propagate(system, columns, times, grid)
    num_states = system.C.shape[-1]
    if system.C.shape[-2] == num_states and torch.equal(
        system.C, torch.eye(num_states, dtype=times.dtype).expand_as(system.C)
    ):
        seen = driven.movedim(-3, -4)
    else:
        seen = torch.einsum("...pd,...dktg->...kptg", system.C, driven)
    weight, drift = seen[..., :-1, :, :, :], seen[..., -1, :, :, :].sum(-1)
    start = torch.einsum("...pd,...dt->...pt", system.C, rest)
    return start + drift + system.e.unsqueeze(-1), weight


def propagate(system: LinearSystem, grid: Panels, forces: Tensor, *, diagonal: bool) -> Tensor:
    """Outputs [..., P, N] at all breaks for forces [..., L, G] given at the nodes, without the matrix of `response`."""
    each = grid.nodes.shape[-1] // (grid.breaks.shape[-1] - 1)
    drive = (system.B @ forces + system.c.unsqueeze(-1)) * grid.weights.unsqueeze(-2)
    lag = grid.breaks[..., 1:].repeat_interleave(each, -1) - grid.nodes
    length = torch.diff(grid.breaks, dim=-1)
    state = system.start
    states = [state]
    if diagonal:
        rates = torch.diagonal(system.A, dim1=-2, dim2=-1).unsqueeze(-1)
        kicks = (torch.exp(rates * lag.unsqueeze(-2)) * drive).unflatten(-1, (-1, each)).sum(-1)
        for decay, kick in zip(torch.exp(rates * length.unsqueeze(-2)).unbind(-1), kicks.unbind(-1), strict=True):
            state = decay * state + kick
            states.append(state)
    else:
        A = system.A.unsqueeze(-3)
        arriving = (torch.linalg.matrix_exp(A * lag[..., None, None]) @ drive.mT.unsqueeze(-1)).squeeze(-1)
        kicks = arriving.unflatten(-2, (-1, each)).sum(-2)
        carries = torch.linalg.matrix_exp(A * length[..., None, None])
        for carry, kick in zip(carries.unbind(-3), kicks.unbind(-2), strict=True):
            state = (carry @ state.unsqueeze(-1)).squeeze(-1) + kick
            states.append(state)
    return system.C @ torch.stack(states, -1) + system.e.unsqueeze(-1)


def _diagonal_columns(system: LinearSystem, columns: Tensor, times: Tensor, grid: Panels) -> tuple[Tensor, Tensor]:
    """e^{A(t−s)} w times each column, [..., D, k, T, G], and e^{A(t−t0)} y0, [..., D, T]; A is diagonal."""
    rates = torch.diagonal(system.A, dim1=-2, dim2=-1)
    lag = times.unsqueeze(-1) - grid.nodes.unsqueeze(-2)
    past = (lag > 0) * grid.weights.unsqueeze(-2)
    decay = torch.exp(rates[..., None, None] * lag.clamp_min(0).unsqueeze(-3)) * past.unsqueeze(-3)
    since = (times - grid.breaks[..., :1]).unsqueeze(-2)
    rest = torch.exp(rates.unsqueeze(-1) * since) * system.start.unsqueeze(-1)
    return columns[..., None, None] * decay.unsqueeze(-3), rest


def _dense_columns(system: LinearSystem, columns: Tensor, times: Tensor, grid: Panels) -> tuple[Tensor, Tensor]:
    """The same for any A, carried from one break to the next."""
    num_panels = grid.breaks.shape[-1] - 1
    each = grid.nodes.shape[-1] // num_panels
    A = system.A.unsqueeze(-3)
    steps = torch.linalg.matrix_exp(A * torch.diff(grid.breaks, dim=-1)[..., None, None])
    ends = grid.breaks[..., 1:].repeat_interleave(each, -1)
    entry = torch.linalg.matrix_exp(A * (ends - grid.nodes)[..., None, None])
    entry = (entry * grid.weights[..., None, None]) @ columns.unsqueeze(-3)
    return carry(system.start, steps, entry, times, grid)


def carry(state: Tensor, steps: Tensor, entry: Tensor, times: Tensor, grid: Panels) -> tuple[Tensor, Tensor]:
    """What enters at nodes and what was there at the start, carried on to times [..., T].

    state: [..., D]; steps: [..., n, D, D] over each panel; entry: [..., G, D, k], of a unit at each node when its panel
    ends. Returns [..., D, k, T, G] and [..., D, T].
    """
    num_panels = grid.breaks.shape[-1] - 1
    each = grid.nodes.shape[-1] // num_panels
    entry = entry.movedim(-3, -1)
    carried = torch.zeros_like(entry)
    driven, rest = [carried], [state]
    for i in range(num_panels):
        step = steps[..., i, :, :]
        state = (step @ state.unsqueeze(-1)).squeeze(-1)
        carried = torch.einsum("...de,...ekg->...dkg", step, carried)
        here = slice(i * each, (i + 1) * each)
        carried = torch.cat([carried[..., : here.start], entry[..., here], carried[..., here.stop :]], -1)
        driven.append(carried)
        rest.append(state)
    at = torch.searchsorted(grid.breaks.contiguous(), times.contiguous())
    return (
        torch.take_along_dim(torch.stack(driven, -2), at[..., None, None, :, None], -2),
        torch.take_along_dim(torch.stack(rest, -1), at.unsqueeze(-2), -1),
    )
