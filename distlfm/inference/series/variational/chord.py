"""The force given the parameters, near one Gaussian of both: its centre and spread follow the parameters along curves.

`Layers` finds the Gaussian of v for each z anew, with a Jacobian of its own. Here centres and Jacobians are known at
q's mean and a deviation to both sides along each of its axes, and parabolas through them serve all z (a chord in place
of a tangent): a step of Gauss–Newton then takes one trajectory, and not one for each inducing value. What that misses,
the weights of `Layers` against the true density correct.
Shapes: `A` problems, `B` instances, `n` parameters, `V = L·M` inducing values, `N = P·T`, `C = 1 + 2n` coefficients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.series.forward import Forward
from distlfm.inference.series.layers import Given, Layers, curved, slopes_of
from distlfm.inference.series.variational.ascent import responses

PART = 0.3
"""Of a step that led down, what is taken instead."""

ANCHOR = ("z", "v", "follow", "root", "centres", "jacobians")

REACH = 3.0
"""Deviations of q beyond which parabolas are not followed."""


@dataclass(frozen=True)
class Chord(Layers):
    """Layers anchored at the mean of a Gaussian of z and v.

    root: [B, n, n], lower triangular, of the covariance of z. centres: [B, C, V], and jacobians: [B, C, N·V], as
    coefficients of 1, of x and of x²/2, where z = mean + root x.
    """

    root: Tensor
    centres: Tensor
    jacobians: Tensor

    @staticmethod
    def along(forward: Forward, mean: Tensor, root: Tensor, seeds: Sequence[int]) -> Chord:
        """Around a Gaussian of mean [B, W] and a lower triangular root [B, W, W] of its covariance."""
        size = forward.model.space.num_free
        layers, axes, rows = Layers.at(forward, mean, seeds), root[:, :size, :size], torch.arange(len(mean))
        # E[v | z] of a Gaussian.
        follow: Tensor = torch.linalg.solve_triangular(axes, root[:, size:, :size], upper=False, left=False)
        layers = replace(layers, follow=follow)
        centres, jacobians = _fitted(layers, layers.z, axes, rows)
        return Chord(**vars(layers), root=axes, centres=centres, jacobians=jacobians)

    def placed(self, z: Tensor, root: Tensor, rows: Tensor) -> Chord:
        """With the instances `rows` [A] anchored at z [A, n] instead, with a root [A, n, n]."""
        size = z.shape[-1]
        follow: Tensor = torch.linalg.solve_triangular(
            self.root[rows], self.centres[rows, 1 : 1 + size].mT, upper=False, left=False
        )
        parts = {"z": z, "v": self.given(z, rows).centre, "follow": follow, "root": root}
        moved = self._with(parts, rows)
        centres, jacobians = _fitted(Layers(*(getattr(moved, one.name) for one in fields(Layers))), z, root, rows)
        return moved._with({"centres": centres, "jacobians": jacobians}, rows)

    def taking(self, other: Chord, rows: Tensor) -> Chord:
        """With the anchors of another for the instances `rows` [A]."""
        return self._with({name: getattr(other, name)[rows] for name in ANCHOR}, rows)

    def _with(self, parts: Mapping[str, Tensor], rows: Tensor) -> Chord:
        whole = {name: getattr(self, name).clone() for name in parts}
        for name, part in parts.items():
            whole[name][rows] = part
        return replace(self, **whole)

    @torch.no_grad()
    def given(self, z: Tensor, rows: Tensor, steps: int = 2) -> Given:
        """The Gaussian of v for the instances `rows` at z [A, n]."""
        v, jacobian = self._followed(z, rows)
        found, step = self._stepped(z, rows, v, jacobian)
        for _ in range(steps - 1):
            further, next_step = self._stepped(z, rows, v + step, jacobian)
            better = further.ok & (further.peak > found.peak)
            found = Given(*(_where(better, getattr(further, name), getattr(found, name)) for name in vars(found)))
            # Where a whole step leads down, a part of it is still likely to lead up.
            step = _where(better, next_step, PART * step)
            v = found.centre
        left = (found.factor.mT @ step.unsqueeze(-1)).squeeze(-1).square().sum(-1)
        return replace(found, centre=v + torch.where((left <= 1.0).unsqueeze(-1), step, 0.0))

    def _followed(self, z: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Centres [A, V] and Jacobians [A, N, V] at z [A, n], by the parabolas."""
        away = (z - self.z[rows]).unsqueeze(-1)
        x: Tensor = torch.linalg.solve_triangular(self.root[rows], away, upper=False).squeeze(-1)
        x = x.clamp(-REACH, REACH)
        terms = torch.cat([x.new_ones(len(x), 1), x, 0.5 * x.square()], -1)
        v = (terms.unsqueeze(1) @ self.centres[rows]).squeeze(1)
        jacobian = v.new_zeros(len(z), self.jacobians.shape[-1])
        for row in rows.unique():
            mine = rows == row
            jacobian[mine] = terms[mine] @ self.jacobians[row]
        return v, jacobian.unflatten(-1, (-1, v.shape[-1]))

    def _stepped(self, z: Tensor, rows: Tensor, v: Tensor, jacobian: Tensor) -> tuple[Given, Tensor]:
        """The Gaussian by the curvature at v [A, V], as if that were its centre, and how far [A, V] it is off."""
        values, outputs, ok = self._respond(z, rows, v.unsqueeze(0))
        pull, bend, density = slopes_of(self.forward, values, outputs[0], rows)
        identity = torch.eye(v.shape[-1], dtype=v.dtype)
        precision = curved(self.forward, values, jacobian, bend, rows) + identity
        fine = ok[0] & torch.isfinite(precision).flatten(1).all(-1) & torch.isfinite(density)
        factor, factored = safe_cholesky(_where(fine, precision, identity), jitter=0.0)
        slope = _where(fine, (jacobian.mT @ pull.unsqueeze(-1)).squeeze(-1) - v, torch.zeros_like(v))
        step = torch.cholesky_solve(slope.unsqueeze(-1), factor).squeeze(-1)
        return Given(v, factor, density - 0.5 * v.square().sum(-1), fine & factored), step


def _fitted(layers: Layers, z: Tensor, root: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Coefficients of the parabolas of centres [A, C, V] and of Jacobians [A, C, N·V], around z [A, n]."""
    size = z.shape[-1]
    steps = torch.cat([z.new_zeros(1, size), torch.eye(size).to(z), -torch.eye(size).to(z)])
    places = z.unsqueeze(1) + steps @ root.mT
    every = rows.repeat_interleave(len(steps))
    found = layers.in_chunks(lambda z, rows: _centred(layers, z, rows), places.flatten(0, 1), every)
    here, ahead, behind = found.unflatten(0, places.shape[:2]).split([1, size, size], 1)
    fitted = torch.cat([here, 0.5 * (ahead - behind), ahead + behind - 2 * here], 1)
    return fitted[..., : layers.v.shape[-1]], fitted[..., layers.v.shape[-1] :]


def _centred(layers: Layers, z: Tensor, rows: Tensor) -> Tensor:
    """Centre and Jacobian [A, V + N·V] of v at z [A, n], after a step of Gauss–Newton."""
    v = layers.given(z, rows, 1).centre
    _, _, jacobian, _ = responses(layers.forward, z, v, rows)
    return torch.cat([v, jacobian.flatten(1)], -1)


def _where(choice: Tensor, one: Tensor, other: Tensor) -> Tensor:
    """One's rows where chosen [A], else the other's."""
    return torch.where(choice.reshape(-1, *[1] * (one.dim() - 1)), one, other)
