"""Normal noise, added to the outputs: learned, given with the data, or growing with the level of the signal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.instance import NUMBER, VALUE, FloatArray
from distlfm.likelihoods.base import Likelihood, Numbers, Observed, register_likelihood
from distlfm.mechanisms.priors import Parameter, Values


@register_likelihood("gaussian")
class Gaussian(Likelihood):
    """Normal around the output."""

    gaussian = True
    keys: ClassVar = {"noise": "prior", "relative_noise": "relative"}

    @property
    def learns_noise(self) -> bool:
        return self.options.noise == "learned"

    @property
    def takes_variances(self) -> bool:
        return self.options.noise != "learned"

    def parameters(self) -> list[Parameter]:
        found, relative = [], self.options.relative
        if self.options.noise != "given":
            what = "standard deviation of the noise"
            found.append(Parameter("noise", self.labels, self.prior, "noise", True, {}, VALUE, what))
        if relative is not None:
            share = "standard deviation as a share of the level"
            found.append(Parameter("relative_noise", self.labels, relative, "noise", True, {}, NUMBER, share))
        return found

    def density(self, values: Values, outputs: Tensor, data: Observed) -> Tensor:
        variance = self.noise_variance(values, data)
        return -0.5 * ((data.values - outputs).square() / variance + torch.log(2 * math.pi * variance))

    def noise_variance(self, values: Values, data: Observed, outputs: Tensor | None = None) -> Tensor:
        del outputs
        floor = self.options.floor**2
        learned = values["noise"].unsqueeze(-1) ** 2 + floor if "noise" in values else torch.tensor(floor)
        if "relative_noise" in values:
            level = data.values.abs() if data.level is None else data.level
            learned = learned + (values["relative_noise"].unsqueeze(-1) * level) ** 2
        if not self.takes_variances:
            return learned.expand(*learned.shape[:-2], *data.values.shape[-2:])
        if data.variance is None:
            raise UsageError(
                "The likelihood takes the noise that is given with the data, and the data give none.",
                "Name the variance column in data.columns, or set likelihood.noise=learned.",
            )
        return data.variance + learned

    def sample(self, values: Numbers, outputs: FloatArray, generator: np.random.Generator) -> FloatArray:
        variance = values["noise"][:, None] ** 2 + self.options.floor**2
        if "relative_noise" in values:
            variance = variance + (values["relative_noise"][:, None] * outputs) ** 2
        noise: FloatArray = np.sqrt(variance) * generator.standard_normal(outputs.shape)
        return outputs + noise

    def words(self, parameters: Sequence[str]) -> list[str]:
        parts = ["variances as given with the data"] if self.takes_variances else []
        parts += parameters
        if parts and self.options.shared:
            parts.append("one for all outputs")
        if self.options.floor:
            parts.append(f"never below {self.options.floor:g}")
        return [one.removeprefix("noise ") for one in parts]
