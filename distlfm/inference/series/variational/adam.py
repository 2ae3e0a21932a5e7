"""Stochastic gradients of the ELBO by Adam, through the solver: for what natural steps cannot move, inducing points.

Shapes: `S` draws, `B` instances, `A` of them, `W` unknowns, `L` forces, `R` features, `M` inducing points.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from distlfm.gp.variational import WhitenedGaussian, gaussian_from_unconstrained
from distlfm.inference.optimise import Status
from distlfm.inference.series.forward import Forward
from distlfm.inference.series.variational.ascent import Ascent, Pace, calm, estimated
from distlfm.runtime.reporting import stepped

REACH = 0.4
"""How far an inducing point may move when places are learned, in units of the mean gap between points."""

MAX_GRADIENT = 10.0
"""Norm to which an instance's gradient is cut, so that one wild draw does not undo a hundred good ones."""


def climb_by_adam(
    forward: Forward, start: Ascent, seeds: Sequence[int], pace: Pace, num_features: int, learn_inducing: bool
) -> tuple[Forward, Ascent]:
    """Go on from another ascent's q; with `learn_inducing` the inducing points move too, within `REACH`."""
    # Steps are taken in units of q's own deviations: w = mean + root · (I + change) · noise.
    q, record = start.q, _Record(start.status, pace)
    change = torch.zeros_like(q.scale, requires_grad=True)
    shift = torch.zeros_like(q.mean, requires_grad=True)
    moves = torch.zeros_like(forward.inducing, requires_grad=True)
    learned = (shift, change, moves) if learn_inducing else (shift, change)
    assert pace.rate is not None
    adam = torch.optim.Adam(learned, lr=pace.rate)
    gap = (forward.domain.upper - forward.domain.lower).unsqueeze(1) / (forward.num_inducing - 1)
    streams = [torch.Generator().manual_seed(seed + 7) for seed in seeds]

    def placed() -> Forward:
        return forward.with_inducing(forward.inducing + REACH * gap * torch.tanh(moves)) if learn_inducing else forward

    for iteration in range(pace.iterations):
        stepped("variational step", iteration + 1, pace.iterations)
        rows = torch.nonzero(~record.stopped).squeeze(-1)
        if len(rows) == 0:
            break
        whitened, features = (
            torch.stack([torch.randn(shape, generator=streams[int(i)], dtype=torch.float64) for i in rows], 1)
            for shape in (
                (2 * pace.pairs, 1, forward.size),
                (2 * pace.pairs, len(forward.model.kernels), 2, num_features),
            )
        )
        now = _moved(q, shift, change)
        elbo = estimated(placed(), WhitenedGaussian(now.mean[rows], now.scale[rows]), rows, whitened, features)
        adam.zero_grad()
        (-elbo[torch.isfinite(elbo)].sum()).backward()
        _cut(*learned)
        still = record.stopped.clone()
        kept = [tensor.detach()[still].clone() for tensor in learned]
        adam.step()
        with torch.no_grad():  # Adam's momentum must not carry on an instance that has stopped
            for tensor, value in zip(learned, kept, strict=True):
                tensor[still] = value
        record.note(rows, elbo.detach())
    with torch.no_grad():
        trace = torch.cat([start.trace, *(one.unsqueeze(0) for one in record.bounds)])
        iterations = start.iterations + len(record.bounds)
        return placed(), Ascent(_moved(q, shift, change), record.settled(), trace, iterations)


class _Record:
    """Bounds of all iterations, and which instances [B] have stopped: whose averaged bound rises no more."""

    def __init__(self, status: Tensor, pace: Pace) -> None:
        self.status, self.pace = status.clone(), pace
        self.stopped = status == Status.DIVERGED
        self.bounds: list[Tensor] = []

    def note(self, rows: Tensor, elbo: Tensor) -> None:
        """Take note of the bounds [A] of one iteration."""
        latest = self.bounds[-1].clone() if self.bounds else torch.full(self.stopped.shape, -torch.inf).to(elbo)
        latest[rows] = elbo
        self.bounds.append(latest)
        self.status[rows[~torch.isfinite(elbo)]] = int(Status.DIVERGED)
        self.stopped[rows[~torch.isfinite(elbo)]] = True
        window = self.pace.window
        if len(self.bounds) % window == 0 and len(self.bounds) >= 2 * window:
            done = calm(self.bounds, self.pace) & ~self.stopped
            self.status[done] = int(Status.CONVERGED)
            self.stopped |= done

    def settled(self) -> Tensor:
        """Status of all; one that was still rising when the iterations ran out says so."""
        return torch.where(self.stopped, self.status, int(Status.MAX_ITERATIONS)) if self.bounds else self.status


def _cut(*tensors: Tensor) -> None:
    """Bound each instance's gradient, over all tensors [B, ...] together."""
    grads = [tensor.grad.nan_to_num_(0.0, 0.0, 0.0) for tensor in tensors if tensor.grad is not None]
    norm = torch.stack([grad.flatten(1).square().sum(-1) for grad in grads]).sum(0).sqrt()
    share = (MAX_GRADIENT / norm.clamp_min(MAX_GRADIENT)).nan_to_num(0.0)
    for grad in grads:
        grad.mul_(share.reshape(-1, *[1] * (grad.dim() - 1)))


def _moved(q: WhitenedGaussian, shift: Tensor, change: Tensor) -> WhitenedGaussian:
    relative = gaussian_from_unconstrained(shift, change)
    mean = q.mean + (q.scale @ shift.unsqueeze(-1)).squeeze(-1)
    return WhitenedGaussian(mean, q.scale @ relative.scale)
