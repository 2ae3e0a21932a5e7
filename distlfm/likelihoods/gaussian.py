"""Normal noise, added to the outputs: learned, given with the data, or growing with the level of the signal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.instance import NUMBER, TIME, VALUE, FloatArray
from distlfm.likelihoods.base import Likelihood, LikelihoodConfig, Numbers, Observed, register_likelihood
from distlfm.likelihoods.drift import DRIFT, wander
from distlfm.mechanisms.priors import Parameter, Values


@register_likelihood("gaussian")
class Gaussian(Likelihood):
    """Normal around the output."""

    gaussian = True
    keys: ClassVar = {
        "noise": "prior",
        "relative_noise": "relative",
        "drift": "drift.size",
        "drift_time": "drift.time",
    }
    vanishing = frozenset({"noise", "relative_noise"})

    def __init__(self, options: LikelihoodConfig, outputs: Sequence[str], *suggested: Any, **named: Any) -> None:
        super().__init__(options, outputs, *suggested, **named)
        self.learns_noise, self.knows_noise = options.noise == "learned", options.noise == "given"
        self.takes_variances, self.takes_level = not self.learns_noise, options.relative is not None
        self.steady = options.noise != "both" and not self.takes_level and self.drift is None

    def data_variance(self, data: Observed) -> Tensor:
        return super().data_variance(data) if self.learns_noise else self._given(data) + self.options.floor**2

    def unit_variance(self, values: Values) -> Tensor:
        return values["noise"].square() + self.options.floor**2 if self.learns_noise else torch.ones(1).double()

    def parameters(self) -> list[Parameter]:
        found, relative = [], self.options.relative
        if self.options.noise != "given":
            what = "standard deviation of the noise"
            found.append(Parameter("noise", self.labels, self.prior, "noise", True, {}, VALUE, what))
        if relative is not None:
            share = "standard deviation as a share of the level"
            found.append(Parameter("relative_noise", self.labels, relative, "noise", True, {}, NUMBER, share))
        if self.drift is not None:
            size, time = "standard deviation of the error that wanders", "over what time that error stays alike"
            found.append(Parameter("drift", self.labels, self.drift.size, "noise", True, {}, VALUE, size))
            found.append(Parameter("drift_time", self.labels, self.drift.time, "noise", True, {}, TIME, time))
        return found

    def density(self, values: Values, outputs: Tensor, data: Observed) -> Tensor:
        variance = self.noise_variance(values, data)
        return -0.5 * ((data.values - outputs).square() / variance + torch.log(2 * math.pi * variance))

    def log_prob(self, values: Values, outputs: Tensor, data: Observed) -> Tensor:
        factor = self.noise_factor(values, data)
        if factor is None:
            return super().log_prob(values, outputs, data)
        off = torch.where(data.mask, data.values - outputs, 0.0).unsqueeze(-1)
        white: Tensor = torch.linalg.solve_triangular(factor, off, upper=False)
        volume = torch.log(torch.diagonal(factor, dim1=-2, dim2=-1)).sum((-2, -1))
        count = data.mask.sum((-2, -1)).to(white)
        return -0.5 * (white.square().sum((-3, -2, -1)) + count * math.log(2 * math.pi)) - volume

    def noise_variance(self, values: Values, data: Observed, outputs: Tensor | None = None) -> Tensor:
        """That of the white noise alone; a drift is beside it."""
        del outputs
        floor = self.options.floor**2
        learned = values["noise"].unsqueeze(-1) ** 2 + floor if "noise" in values else torch.tensor(floor)
        if "relative_noise" in values:
            level = data.values.abs() if data.level is None else data.level
            learned = learned + (values["relative_noise"].unsqueeze(-1) * level) ** 2
        of_data = (*learned.shape[:-2], *data.values.shape[-2:])
        return self._given(data) + learned if self.takes_variances else learned.expand(of_data)

    def _given(self, data: Observed) -> Tensor:
        if data.variance is None:
            raise UsageError(
                "The likelihood takes the noise that is given with the data, and the data give none.",
                "Name the variance column in data.columns, or set likelihood.noise=learned.",
            )
        return data.variance

    def deviation(self, values: Numbers, outputs: FloatArray, variance: FloatArray | None) -> FloatArray | None:
        noise: FloatArray | None = None
        if "noise" in values:
            slow = values.get("drift", np.zeros(1))
            noise = np.sqrt(values["noise"] ** 2 + self.options.floor**2 + slow**2)[:, None]
        if variance is not None and self.takes_variances:
            noise = np.sqrt(variance + (0.0 if noise is None else noise**2))
        if noise is not None and "relative_noise" in values:
            noise = np.sqrt(noise**2 + (values["relative_noise"][:, None] * outputs) ** 2)
        return noise

    def sample(self, values: Numbers, outputs: FloatArray, generator: np.random.Generator) -> FloatArray:
        variance = values["noise"][:, None] ** 2 + self.options.floor**2
        if "relative_noise" in values:
            variance = variance + (values["relative_noise"][:, None] * outputs) ** 2
        noise: FloatArray = np.sqrt(variance) * generator.standard_normal(outputs.shape)
        return outputs + noise

    def observe(
        self, values: Numbers, outputs: FloatArray, times: FloatArray, generator: np.random.Generator
    ) -> FloatArray:
        seen = self.sample(values, outputs, generator)
        if self.drift is None:
            return seen
        size, scale = (np.broadcast_to(values[name], len(outputs)) for name in DRIFT)
        return seen + size[:, None] * wander(self.drift.kind, times, scale, generator)

    def words(self, parameters: Sequence[str]) -> list[str]:
        parts = ["variances as given with the data"] if self.takes_variances else []
        parts += parameters
        if parts and self.options.shared:
            parts.append("one for all outputs")
        if self.options.floor:
            parts.append(f"never below {self.options.floor:g}")
        return [one.removeprefix("noise ") for one in parts]
