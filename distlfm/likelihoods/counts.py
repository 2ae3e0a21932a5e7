"""Counts, whose expected values are the outputs: Poisson, and negative binomial where they scatter more."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from distlfm.errors import UsageError
from distlfm.instance import NUMBER, FloatArray, Instance
from distlfm.likelihoods.base import Likelihood, Numbers, Observed, register_likelihood
from distlfm.mechanisms.priors import Parameter, Values

SHARPNESS = 20.0
"""A count's rate is softplus(20 y)/20: y itself where y is well above zero, and positive everywhere."""


def positive_rate(outputs: Tensor) -> Tensor:
    """The rates of counts whose expected values are outputs [..., P, T] of the equation."""
    return softplus(outputs * SHARPNESS) / SHARPNESS + 1e-9


@register_likelihood("poisson")
class Poisson(Likelihood):
    """Counts as scattered as their mean."""

    def parameters(self) -> list[Parameter]:
        return []

    def density(self, values: Values, outputs: Tensor, data: Observed) -> Tensor:
        del values
        rate = positive_rate(outputs)
        return data.values * torch.log(rate) - rate - torch.lgamma(data.values + 1)

    def noise_variance(self, values: Values, data: Observed, outputs: Tensor | None = None) -> Tensor:
        del values, data
        assert outputs is not None
        return positive_rate(outputs)

    def sample(self, values: Numbers, outputs: FloatArray, generator: np.random.Generator) -> FloatArray:
        del values
        return generator.poisson(positive_rate(torch.from_numpy(outputs)).numpy()).astype(np.float64)

    def check(self, instance: Instance) -> None:
        seen = instance.values[instance.mask]
        wrong = (seen < 0) | (seen != np.rint(seen))
        if wrong.any():
            raise UsageError(
                f"Instance {instance.id!r} has the value {seen[wrong][0]:g}, which is not a count.",
                "Poisson and negative binomial take whole numbers from 0; use likelihood.kind=gaussian for others.",
            )


@register_likelihood("negative_binomial")
class NegativeBinomial(Poisson):
    """Counts whose variance is mean + dispersion · mean²."""

    keys: ClassVar = {"dispersion": "dispersion"}

    def parameters(self) -> list[Parameter]:
        wider = "variance of counts beyond Poisson's, as a share of the squared mean"
        return [Parameter("dispersion", self.labels, self.options.dispersion, "noise", True, {}, NUMBER, wider)]

    def density(self, values: Values, outputs: Tensor, data: Observed) -> Tensor:
        count, mean = data.values, positive_rate(outputs)
        size = 1 / values["dispersion"].unsqueeze(-1)
        share = torch.log(size + mean)
        return (
            torch.lgamma(count + size)
            - torch.lgamma(size)
            - torch.lgamma(count + 1)
            + size * (torch.log(size) - share)
            + count * (torch.log(mean) - share)
        )

    def noise_variance(self, values: Values, data: Observed, outputs: Tensor | None = None) -> Tensor:
        mean = super().noise_variance(values, data, outputs)
        return mean + values["dispersion"].unsqueeze(-1) * mean**2

    def sample(self, values: Numbers, outputs: FloatArray, generator: np.random.Generator) -> FloatArray:
        mean = positive_rate(torch.from_numpy(outputs)).numpy()
        shape = 1 / values["dispersion"][:, None]
        rate: FloatArray = generator.gamma(np.broadcast_to(shape, mean.shape)) * mean / shape
        return generator.poisson(rate).astype(np.float64)
