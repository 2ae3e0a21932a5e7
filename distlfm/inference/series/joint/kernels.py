"""Evidence of the kernels' parameters, where the outputs are taken to be linear in all else.

The joint mode of a kernel and the amplitudes that it scales is of little use: it lies where the force is rougher than
the data ask for. So searches hold kernels where their evidence is highest, as they do with the noise. With the outputs
linear in amplitudes and other parameters, and D the deviations that the kernel gives to the amplitudes, it is that of a
Gaussian with the curvature I + D·K·D.

Shapes: `K` starts, `A` instances, `n` parameters, `k` of them of kernels, `W` unknowns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.inference.series.joint.density import Density, Linearised

NEAR = 0.05
"""Step of the differences by which slope and curvature of the evidence are found."""

STEP, LEAST = 0.7, 0.25
"""Largest change of a parameter in one step, and the least curvature that steps are measured by."""


@dataclass(frozen=True)
class Kernels:
    """curvature: K [K, A, W, W] of the likelihood by the waves' weights and by parameters, where those of kernels

    and noise have zeros; pull: [K, A, W], how the data pull from zero; z: [K, A, n], of the place.
    """

    density: Density
    curvature: Tensor
    pull: Tensor
    z: Tensor

    @staticmethod
    def around(density: Density, here: Linearised, w: Tensor, slope: Tensor) -> Kernels:
        """Around w [K, A, W]; slope: of the log likelihood by the outputs, [K, A, P·T]."""
        n = density.num_free
        sizes = _sizes(density, w[..., :n])
        scale = torch.where(density.active, 1 / sizes, 0.0)
        scale[..., :n] *= ~(density.noise | density.kernels)
        columns = here.jacobian * scale[..., None, None, :]
        white = density.weighted(here.values, here.outputs, columns)
        curvature = white.mT @ white
        weights = torch.where(scale != 0, w * sizes, 0.0).unsqueeze(-1)
        pull = (slope.unsqueeze(-2) @ columns.flatten(2, 3)).mT + curvature @ weights
        return Kernels(density, curvature, pull.squeeze(-1), w[..., :n])

    def evidence(self, z: Tensor) -> Tensor:
        """Log density [K, A] of the data and of the kernels' parameters at z [K, A, n]."""
        sizes = _sizes(self.density, z)
        factor = self.factor(sizes)
        pulled = torch.linalg.solve_triangular(factor, (sizes * self.pull).unsqueeze(-1), upper=False)
        volume = torch.log(torch.diagonal(factor, dim1=-2, dim2=-1)).sum(-1)
        own = torch.where(self.density.kernels, z, 0.0)
        found: Tensor = 0.5 * pulled.square().sum((-2, -1)) - volume - 0.5 * own.square().sum(-1)
        return found

    def factor(self, sizes: Tensor) -> Tensor:
        """Lower factor of I + D·K·D for D [K, A, W]."""
        curved = self.curvature * sizes.unsqueeze(-1) * sizes.unsqueeze(-2)
        curved.diagonal(dim1=-2, dim2=-1).add_(1.0)
        lower: Tensor = torch.linalg.cholesky_ex(curved).L
        return lower

    def slopes(self) -> tuple[Tensor, Tensor]:
        """Slope [K, A, k] of the evidence at z, and minus its curvature [K, A, k, k]."""
        places = torch.nonzero(self.density.kernels).squeeze(-1)
        count = len(places)
        moves = NEAR * torch.eye(self.z.shape[-1], dtype=self.z.dtype)[places]
        here = self.evidence(self.z)
        above, below = ([self.evidence(self.z + sign * one) for one in moves] for sign in (1, -1))
        slope = here.new_zeros(*here.shape, count)
        curvature = here.new_zeros(*here.shape, count, count)
        for i in range(count):
            slope[..., i] = (above[i] - below[i]) / (2 * NEAR)
            curvature[..., i, i] = (2 * here - above[i] - below[i]) / NEAR**2
            for j in range(i):
                both, neither = (self.evidence(self.z + sign * (moves[i] + moves[j])) for sign in (1, -1))
                mixed = above[i] + below[i] + above[j] + below[j] - 2 * here - both - neither
                curvature[..., i, j] = curvature[..., j, i] = mixed / (2 * NEAR**2)
        return slope.nan_to_num(0.0, 0.0, 0.0), curvature.nan_to_num(1.0, 1.0, 1.0)

    def step(self) -> Tensor:
        """z [K, A, n] after a Newton step of the kernels' parameters towards the highest evidence."""
        slope, curvature = self.slopes()
        turned, vectors = steep(curvature)
        step = (vectors @ ((vectors.mT @ slope.unsqueeze(-1)) / turned.unsqueeze(-1))).squeeze(-1)
        z = self.z.clone()
        z[..., self.density.kernels] += step.clamp(-STEP, STEP)
        return z

    def carried(self, w: Tensor, z: Tensor) -> Tensor:
        """w [K, A, W] with the kernels of z [K, A, n]: what data hold fast of the force stays as it is."""
        n = z.shape[-1]
        before, after = (self.factor(_sizes(self.density, one))[..., n:, n:] for one in (w[..., :n], z))
        moved = torch.linalg.solve_triangular(after.mT, before.mT @ w[..., n:, None], upper=True).squeeze(-1)
        return torch.cat([torch.where(self.density.kernels, z, w[..., :n]), moved], -1)


def steep(curvature: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues, none below `LEAST`, and eigenvectors of curvatures [..., k, k]."""
    values, vectors = torch.linalg.eigh(curvature)
    return values.abs().clamp_min(LEAST), vectors


def _sizes(density: Density, z: Tensor) -> Tensor:
    """Deviations [K, A, W] that kernels give to what they scale; one for all else."""
    return torch.cat([torch.ones_like(z), density.log_sizes(z).exp()], -1)
