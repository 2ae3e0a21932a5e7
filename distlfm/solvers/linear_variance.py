"""How much outputs of a linear mechanism vary if its forces do: variances carried from one time to the next.

With the weights w of `solvers.linear.response` they are wᵀ K w for each output and time, which takes products of large
matrices: all outputs and times by all nodes, by all nodes. Between two breaks only the force at the panel's own nodes
is new, so that a step needs no more than its covariance with the state so far.

Shapes: `B` instances, `D` states, `P` outputs, `L` forces, `n` panels with `Q` nodes each, `G = n·Q`, `N` observations.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distlfm.solvers.linear import LinearSystem, Panels


def output_variance(
    system: LinearSystem, grid: Panels, among: Sequence[Tensor], explained: Tensor, *, diagonal: bool
) -> Tensor:
    """Variances [B, P, n + 1] of the outputs at all breaks.

    among: covariance [B, G, G] of each force at the nodes, before data; forces are independent of each other then.
    explained: [B, N, L, G], what data take from it: together, forces have the covariance among − explainedᵀ explained.
    """
    plain = diagonal and _shows_states(system)
    steps, kicks = _diagonal_moves(system, grid) if diagonal else _dense_moves(system, grid)
    if diagonal and not plain:
        steps = torch.diag_embed(steps)
    left = -_explained(steps, kicks, explained)
    for i, one in enumerate(among):
        left = left + _before_data(steps, kicks[:, :, :, i], one)
    if plain:
        return left.mT
    seen = system.C.unsqueeze(1)
    return ((seen @ left) * seen).sum(-1).mT


def _shows_states(system: LinearSystem) -> bool:
    identity = torch.eye(system.C.shape[-1], dtype=system.C.dtype)
    return system.C.shape[-2:] == identity.shape and torch.equal(system.C, identity.expand_as(system.C))


def _diagonal_moves(system: LinearSystem, grid: Panels) -> tuple[Tensor, Tensor]:
    """What is left [B, n, D] of a state after each panel, and what forces at its nodes add to it, [B, n, D, L, Q]."""
    rates = torch.diagonal(system.A, dim1=-2, dim2=-1)
    length, lag = _lengths(grid)
    arriving = torch.exp(rates[:, None, :, None] * lag.unsqueeze(2)) * _by_panel(grid.weights, grid).unsqueeze(2)
    return torch.exp(rates.unsqueeze(1) * length.unsqueeze(-1)), arriving.unsqueeze(3) * system.B[:, None, :, :, None]


def _dense_moves(system: LinearSystem, grid: Panels) -> tuple[Tensor, Tensor]:
    """The same for any A: [B, n, D, D] and [B, n, D, L, Q]."""
    A = system.A.unsqueeze(1)
    length, lag = _lengths(grid)
    arriving = torch.linalg.matrix_exp(A.unsqueeze(1) * lag[..., None, None])
    arriving = arriving * _by_panel(grid.weights, grid)[..., None, None]
    kicks = arriving @ system.B[:, None, None]
    return torch.linalg.matrix_exp(A * length[..., None, None]), kicks.permute(0, 1, 3, 4, 2)


def _lengths(grid: Panels) -> tuple[Tensor, Tensor]:
    """Of the panels, [B, n], and from each of their nodes to their ends, [B, n, Q]."""
    return torch.diff(grid.breaks, dim=-1), grid.breaks[:, 1:, None] - _by_panel(grid.nodes, grid)


def _by_panel(values: Tensor, grid: Panels) -> Tensor:
    parted: Tensor = values.unflatten(-1, (grid.breaks.shape[-1] - 1, -1))
    return parted


def _before_data(steps: Tensor, kicks: Tensor, among: Tensor) -> Tensor:
    """Variances [B, n + 1, D], or covariances [B, n + 1, D, D] for steps [B, n, D, D], that one force gives the states.

    kicks: [B, n, D, Q].
    """
    num_panels, size = kicks.shape[1], kicks.shape[-1]
    state = torch.zeros(len(among), kicks.shape[2], among.shape[-1], dtype=among.dtype)
    met = []  # covariance [B, D, Q] of the state at the start of each panel with the force at the panel's nodes
    for i, (step, kick) in enumerate(zip(steps.unbind(1), kicks.unbind(1), strict=True)):
        met.append(state[..., :size])
        state = _stepped(step, state[..., size:], kick, among[:, i * size : (i + 1) * size, (i + 1) * size :])
    blocks = among.unflatten(2, (num_panels, size)).unflatten(1, (num_panels, size))
    own = blocks.diagonal(dim1=1, dim2=3).movedim(-1, 1)  # [B, n, Q, Q]
    before = torch.stack(met, 1)
    if steps.dim() == 3:
        gained = ((2 * steps.unsqueeze(-1) * before + kicks @ own) * kicks).sum(-1)
    else:
        mixed = steps @ before @ kicks.mT
        gained = mixed + mixed.mT + kicks @ own @ kicks.mT
    found = [torch.zeros_like(gained[:, 0])]
    for step, gain in zip(steps.unbind(1), gained.unbind(1), strict=True):
        kept = step.square() * found[-1] if steps.dim() == 3 else step @ found[-1] @ step.mT
        found.append(kept + gain)
    return torch.stack(found, 1)


def _explained(steps: Tensor, kicks: Tensor, explained: Tensor) -> Tensor:
    """Of the same, what data explain."""
    num_panels = kicks.shape[1]
    sources = explained.unflatten(-1, (num_panels, -1)).permute(3, 0, 2, 4, 1).flatten(2, 3)  # [n, B, L·Q, N]
    state = torch.zeros(len(explained), kicks.shape[2], explained.shape[1], dtype=explained.dtype)
    found = [_squared(state, steps.dim() == 3)]
    for step, kick, source in zip(steps.unbind(1), kicks.flatten(-2).unbind(1), sources, strict=True):
        state = _stepped(step, state, kick, source)
        found.append(_squared(state, steps.dim() == 3))
    return torch.stack(found, 1)


def _stepped(step: Tensor, state: Tensor, kick: Tensor, source: Tensor) -> Tensor:
    """The state [B, D, m] after a panel in which kicks [B, D, k] come from the source [B, k, m]."""
    kept = state * step.unsqueeze(-1) if step.dim() == 2 else step @ state
    return torch.baddbmm(kept, kick, source)


def _squared(state: Tensor, plain: bool) -> Tensor:
    return state.square().sum(-1) if plain else state @ state.mT
