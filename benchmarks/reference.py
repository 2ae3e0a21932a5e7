"""The one-by-one reference that speed is measured against: how alfi fits a transcription instance.

A sparse variational GP, its force sampled with the full covariance of the time grid (a Cholesky factor an epoch), each
of 80 samples solved by plain torchdiffeq with RK4 and a step of 0.1, 700 epochs of Adam, parameters as point estimates.
Here the force between grid points is interpolated, so that every Runge–Kutta stage sees its own time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import gpytorch
import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus
from torchdiffeq import odeint

from distlfm.instance import FloatArray, Instance

SAMPLES, STEP, EPOCHS, INDUCING, RATE = 80, 0.1, 700, 20, 0.03
COARSE_STEP = 0.5
"""The step that the scripts beside the paper ask of its software, whose own default is STEP."""


class _Force(gpytorch.models.ApproximateGP):  # type: ignore[misc]
    def __init__(self, inducing: Tensor) -> None:
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(inducing))
        strategy = gpytorch.variational.VariationalStrategy(self, inducing, distribution)
        super().__init__(strategy)
        self.mean = gpytorch.means.ZeroMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x: Tensor) -> gpytorch.distributions.MultivariateNormal:
        return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))


@dataclass(frozen=True)
class ReferenceFit:
    """Mean and variance, with noise, of the outputs [P, Q] at the times asked for."""

    mean: FloatArray
    variance: FloatArray


def fit_reference(
    instance: Instance, query: FloatArray, epochs: int = EPOCHS, seed: int = 0, step: float = STEP
) -> ReferenceFit:
    """Fit one instance of transcription whose first sensitivity is 1, and predict its outputs at `query`.

    Times of the instance and of the query are multiples of the step.
    """
    torch.manual_seed(seed)
    end = max(instance.times[-1], query[-1])
    grid = torch.arange(0, end + step / 2, step, dtype=torch.float64)
    force = _Force(torch.linspace(0, float(end), INDUCING, dtype=torch.float64).unsqueeze(-1)).double()
    num_genes = len(instance.outputs)
    raw = {
        name: torch.full((num_genes,), value, dtype=torch.float64)
        for name, value in (("basal", -2.0), ("sensitivity", 0.5), ("decay", -0.5), ("noise", -2.0))
    }
    parameters = {name: value.requires_grad_(True) for name, value in raw.items()}
    optimiser = torch.optim.Adam([*force.parameters(), *parameters.values()], lr=RATE)
    at_data = torch.from_numpy(np.rint(instance.times / step).astype(int))
    values, mask = torch.from_numpy(instance.values), torch.from_numpy(instance.mask)
    for _ in range(epochs):
        optimiser.zero_grad()
        with gpytorch.settings.cholesky_jitter(double_value=1e-6):
            samples = force(grid.unsqueeze(-1)).rsample(torch.Size([SAMPLES]))
        outputs = _solve(parameters, samples, grid)[:, :, at_data]
        noise = softplus(parameters["noise"]).unsqueeze(-1) + 1e-4
        density = -0.5 * ((values - outputs) / noise).square() - torch.log(noise) - 0.5 * math.log(2 * math.pi)
        expected = torch.where(mask, density, torch.zeros_like(density)).sum((1, 2)).mean()
        loss = force.variational_strategy.kl_divergence() - expected
        loss.backward()
        optimiser.step()
    with torch.no_grad(), gpytorch.settings.cholesky_jitter(double_value=1e-6):
        samples = force(grid.unsqueeze(-1)).rsample(torch.Size([SAMPLES]))
        found = _solve(parameters, samples, grid)[:, :, torch.from_numpy(np.rint(query / step).astype(int))]
        noise = softplus(parameters["noise"]).unsqueeze(-1) + 1e-4
        return ReferenceFit(found.mean(0).numpy(), (found.var(0) + noise.square()).numpy())


def _solve(parameters: dict[str, Tensor], samples: Tensor, grid: Tensor) -> Tensor:
    """Outputs [S, P, G] of force samples [S, G], from the steady state."""
    step = float(grid[1] - grid[0])
    basal, decay = softplus(parameters["basal"]), softplus(parameters["decay"])
    sensitivity = torch.cat([torch.ones(1, dtype=grid.dtype), softplus(parameters["sensitivity"][1:])])

    def field(t: Tensor, y: Tensor) -> Tensor:
        place = (t / step).clamp(0, len(grid) - 1)
        left = place.floor().long().clamp(max=len(grid) - 2)
        share = place - left
        force = (1 - share) * samples[:, left] + share * samples[:, left + 1]
        return basal + sensitivity * force.unsqueeze(-1) - decay * y

    start = (basal / decay).expand(len(samples), -1)
    states: Tensor = odeint(field, start, grid, method="rk4", options={"step_size": step})
    return states.permute(1, 2, 0)
