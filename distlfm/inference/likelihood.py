"""How likely the data are given the outputs: Gaussian, Poisson, negative binomial; unobserved values count nothing.

Shapes: leading dimensions `…` are samples and instances, `P` outputs, `T` times.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import softplus

from distlfm.inference.model import Model
from distlfm.inference.observations import Observations
from distlfm.mechanisms.parameters import Values

SHARPNESS = 20.0
"""A count's rate is softplus(20 y)/20: y itself where y is well above zero, and positive everywhere."""


def log_likelihood(model: Model, values: Values, outputs: Tensor, data: Observations) -> Tensor:
    """log p(data | outputs) of each sample and instance, [...]; outputs: [..., P, T]."""
    kind = model.likelihood.kind
    if kind == "gaussian":
        variance = model.noise_variance(values, data)
        each = -0.5 * ((data.values - outputs).square() / variance + torch.log(2 * math.pi * variance))
    elif kind == "poisson":
        rate = positive_rate(outputs)
        each = data.values * torch.log(rate) - rate - torch.lgamma(data.values + 1)
    else:
        each = _negative_binomial(data.values, positive_rate(outputs), values["dispersion"].unsqueeze(-1))
    return torch.where(data.mask, each, torch.zeros_like(each)).sum((-2, -1))


def positive_rate(outputs: Tensor) -> Tensor:
    """The rates of counts whose expected values are outputs [..., P, T] of the equation."""
    return softplus(outputs * SHARPNESS) / SHARPNESS + 1e-9


def _negative_binomial(count: Tensor, mean: Tensor, dispersion: Tensor) -> Tensor:
    """Variance is mean + dispersion · mean²."""
    size = 1 / dispersion
    share = torch.log(size + mean)
    return (
        torch.lgamma(count + size)
        - torch.lgamma(size)
        - torch.lgamma(count + 1)
        + size * (torch.log(size) - share)
        + count * (torch.log(mean) - share)
    )
