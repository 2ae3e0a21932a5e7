"""Coordinates in which the posterior of a chain is nearly round, for the kernel that the chain has at the time.

With the kernel given, amplitudes and parameters have the curvature I + D·K·D: K is the expected curvature of the
likelihood by the waves' weights in the force and by parameters, which the kernel does not change, and D says how large
the kernel lets each wave be. So one K of an instance gives every chain its own coordinates. They also say how the
amplitudes follow when the kernel moves: what data hold fast of the force stays, and what they leave open keeps its
place in the prior.

Shapes: `C` chains, `A` instances, `n` parameters, `W` unknowns, `M` amplitudes of all forces.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from distlfm.inference.series.joint.density import Density
from distlfm.inference.series.joint.modes import Modes
from distlfm.inference.series.joint.waves import Circle

MOST = 8
"""Chains whose curvatures are averaged."""


@dataclass
class Factor:
    """Lower factor of I + D·K·D by blocks.

    waves: [C, A, M, M]; shared: [C, A, M, n], of waves and parameters; rest: [C, A, n, n], what parameters have beside.
    """

    waves: Tensor
    shared: Tensor
    rest: Tensor

    def away(self, x: Tensor) -> Tensor:
        """Unknowns [C, A, W], parameters first, of round coordinates x [C, A, W]."""
        n = self.rest.shape[-1]
        z = torch.linalg.solve_triangular(self.rest.mT, x[..., :n, None], upper=True)
        a = torch.linalg.solve_triangular(self.waves.mT, x[..., n:, None] - self.shared @ z, upper=True)
        return torch.cat([z, a], -2).squeeze(-1)

    def back(self, gradient: Tensor) -> Tensor:
        """Gradient by the round coordinates of that by the unknowns."""
        n = self.rest.shape[-1]
        a = torch.linalg.solve_triangular(self.waves, gradient[..., n:, None], upper=False)
        z = torch.linalg.solve_triangular(self.rest, gradient[..., :n, None] - self.shared.mT @ a, upper=False)
        return torch.cat([z, a], -2).squeeze(-1)

    def rows(self, index: Tensor) -> Factor:
        """Of the instances at `index`."""
        return Factor(self.waves[:, index], self.shared[:, index], self.rest[:, index])


@dataclass(frozen=True)
class Metric:
    """by_waves: [A, M, M], shared: [A, M, n], by_parameters: [A, n, n], the parts of K; density: of the A instances."""

    density: Density
    by_waves: Tensor
    shared: Tensor
    by_parameters: Tensor

    @staticmethod
    def of(density: Density, w: Tensor, modes: Modes) -> Metric:
        """From the curvature averaged over some of w [C, A, W]; that of the noise is the best mode's."""
        n = density.num_free
        w = w[:: max(1, len(w) // MOST)]
        here = density.linearised(w)
        columns = density.weighted(here.values, here.outputs, here.jacobian)
        scale = torch.ones_like(w)
        scale[..., n:] = torch.where(density.active[:, n:], (-log_sizes(density, w[..., :n])).exp(), 0.0)
        scale[..., :n] = (~(density.noise | held(density))).double()
        columns = torch.where(here.ok[..., None, None], columns * scale.unsqueeze(-2), 0.0)
        stacked = columns.transpose(0, 1).flatten(1, 2) / here.ok.sum(0).clamp_min(1).sqrt()[:, None, None]
        whole = stacked.mT @ stacked
        place = torch.nonzero(density.noise).squeeze(-1)
        best = modes.root[modes.evidence.argmax(0), torch.arange(w.shape[1])][:, place]
        own = torch.linalg.inv(best @ best.mT) - torch.eye(len(place), dtype=w.dtype)
        whole[:, place.unsqueeze(-1), place] = own.nan_to_num(0.0, 0.0, 0.0)
        return Metric(density, whole[:, n:, n:], whole[:, n:, :n], whole[:, :n, :n])

    @cached_property
    def kernels(self) -> Tensor:
        """Places of the parameters that trajectories do not move."""
        return torch.nonzero(held(self.density)).squeeze(-1)

    def rows(self, index: Tensor) -> Metric:
        """Of the instances at `index`."""
        parts = (one[index] for one in (self.by_waves, self.shared, self.by_parameters))
        return Metric(self.density.rows(index), *parts)

    def waves(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """The factor's first part for the kernels of z [C, A, n], and D [C, A, M]."""
        sizes = log_sizes(self.density, z).exp()
        curved = self.by_waves * sizes.unsqueeze(-1) * sizes.unsqueeze(-2)
        curved.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return torch.linalg.cholesky_ex(curved).L, sizes

    def factor(self, waves: Tensor, sizes: Tensor) -> Factor:
        """All of it, from what `waves` gave."""
        shared = torch.linalg.solve_triangular(waves, self.shared * sizes.unsqueeze(-1), upper=False)
        rest = self.by_parameters - shared.mT @ shared
        rest.diagonal(dim1=-2, dim2=-1).add_(1.0)
        return Factor(waves, shared, torch.linalg.cholesky_ex(rest).L)


def log_sizes(density: Density, z: Tensor) -> Tensor:
    """Logarithm of D, [C, A, M]: zero where the kernel does more to waves than to scale them."""
    if not isinstance(density.waves, Circle):
        return z.new_zeros(*z.shape[:-1], density.size - density.num_free)
    return density.waves.log_sizes(density.model.space.unpack(z)).flatten(-2)


def held(density: Density) -> Tensor:
    """Which of the n parameters are of kernels that do no more to waves than to scale them."""
    kinds = [one.kind == "kernel" for one in density.model.space.parameters for _ in one.free]
    return torch.tensor(kinds, dtype=torch.bool) & isinstance(density.waves, Circle)
