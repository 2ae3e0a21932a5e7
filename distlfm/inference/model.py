"""The whole model of an instance: mechanism, one kernel per force, likelihood, and the vector of all unknowns.

What a kernel's parameters are measured in follows from its force and from what the force depends on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from gpytorch.kernels import Kernel
from pydantic import Field
from torch import Tensor

from distlfm.config import Config, nearest
from distlfm.dimension import NUMBER, VALUE, Dimension
from distlfm.errors import UsageError
from distlfm.gp.expression import Periodic, Scaled, Stationary
from distlfm.gp.kernels import FunctionalKernel, KernelConfig
from distlfm.inference.observations import Observations
from distlfm.mechanisms.base import Mechanism
from distlfm.mechanisms.field import FieldMechanism
from distlfm.mechanisms.parameters import Parameter, ParameterSpace, Values
from distlfm.mechanisms.priors import LogNormal, Prior
from distlfm.mechanisms.system import Known, System


def kernel_dimension(
    kernel: FunctionalKernel,
    name: str,
    labels: Sequence[str],
    force: Dimension | None,
    inputs: Sequence[Dimension | None],
) -> Dimension | Mapping[str, Dimension] | None:
    """Of one parameter; None where it is not known, as for sums and products, whose parts share one scale.

    force: of the force. inputs: of each number that it depends on, time first.
    """
    whole = kernel.expression
    if not isinstance(whole, Scaled) or not isinstance(whole.part, Stationary | Periodic):
        return None
    part = whole.part
    if name == whole.scale.name:
        return None if force is None else force**2
    along = part.lengthscale if isinstance(part, Stationary) else part.period
    if name != along.name:
        return None
    seen = [inputs[i] for i in (range(len(inputs)) if part.dims is None else part.dims)]
    if len(labels) == len(seen):
        return {label: one for label, one in zip(labels, seen, strict=True) if one is not None}
    return seen[0] if len(set(seen)) == 1 else None


DEFAULT_KERNEL_PRIOR = LogNormal(median=1.0, spread=1.0)
KERNEL_MEANINGS = {
    "lengthscale": "over what distance the force stays alike",
    "variance": "squared size of the force",
    "period_length": "after what time the force repeats itself",
}


class ForceConfig(Config):
    """The prior of the latent forces. `priors` go by the kernel's parameter names; the default is lognormal(1, 1), but
    for `glucose` a lengthscale around 40 minutes and a variance around 0.5. Of a field, `lengthscale[t]` and
    `lengthscale[x]` are those in time and along x, where one prior does not suit both.

    fixed: known values, a number for all dimensions or one for each by its name, `{lengthscale: {t: 1.0, x: 0.2}}`.
    """

    kernel: KernelConfig = KernelConfig()
    priors: Mapping[str, Prior] = {}
    fixed: Mapping[str, Known] = {}


class LikelihoodConfig(Config):
    """How data scatter around the outputs.

    noise: `learned` (a standard deviation an output), `given` (the variances that come with the data), or `both`
    (given, and a learned one on top). `shared` learns one for all outputs. Poisson and negative binomial take no noise.
    prior: of the noise; lognormal(0.1, 1), but for `glucose` around 2 mg/dL.
    floor: no measurement is believed more exactly than this, however well a curve passes through the data.
    relative: prior of a share by which noise grows with the level of the signal, on top of the rest; none by default.
    """

    kind: Literal["gaussian", "poisson", "negative_binomial"] = "gaussian"
    noise: Literal["learned", "given", "both"] = "learned"
    shared: bool = False
    floor: float = Field(default=0.0, ge=0.0)
    prior: Prior = LogNormal(median=0.1, spread=1.0)
    dispersion: Prior = LogNormal(median=0.1, spread=1.0)
    relative: Prior | None = None


class Model:
    """What inference works on: natural values from `z`, kernels' hyperparameters and noise from those values."""

    def __init__(
        self, system: System, force: ForceConfig, likelihood: LikelihoodConfig, kernel: Kernel | None = None
    ) -> None:
        """kernel: any gpytorch kernel, in place of the one that `force` describes; `force.priors` go by its names."""
        self.kernel = kernel
        self.system, self.force, self.likelihood = system, force, likelihood
        self.kernels = tuple(FunctionalKernel(kernel or force.kernel, system.force_dims) for _ in system.force_names)
        parameters = [*system.settled(), *self._kernel_parameters(force), *self._noise_parameters()]
        self.space = ParameterSpace(parameters)

    @property
    def mechanism(self) -> Mechanism:
        """The ordinary differential equation; asked of a model that is none, it says so."""
        if not isinstance(self.system, Mechanism):
            raise UsageError(
                f"{self.system.options.kind} is a partial differential equation, and this works on ordinary ones only.",
                "Use inference.method=auto.",
            )
        return self.system

    @property
    def field(self) -> FieldMechanism:
        """The partial differential equation."""
        assert isinstance(self.system, FieldMechanism)
        return self.system

    @property
    def is_field(self) -> bool:
        return isinstance(self.system, FieldMechanism)

    def _kernel_parameters(self, force: ForceConfig) -> list[Parameter]:
        known, sizes = self.kernels[0].parameter_names, self.kernels[0].shapes
        elements = [f"{name}[{label}]" for name in known if sizes[name] for label in self._dimensions(sizes[name][0])]
        for given, names in ((force.priors, (*known, *elements)), (force.fixed, known)):
            for name in given:
                if name not in names:
                    raise UsageError(f"The kernel has no parameter {name!r}.", nearest(name, names))
        found = []
        for force_name, kernel in zip(self.system.force_names, self.kernels, strict=True):
            for name in known:
                size = kernel.shapes[name]
                labels = self._dimensions(size[0]) if size else (name,)
                fixed = self._known(name, labels)
                prior = force.priors.get(name, self.system.force_priors.get(name, DEFAULT_KERNEL_PRIOR))
                of = kernel_dimension(kernel, name, labels, self.system.force_dimension, self.system.input_dimensions)
                meaning = KERNEL_MEANINGS.get(name, "")
                own = {label: force.priors[key] for label in labels if (key := f"{name}[{label}]") in force.priors}
                found.append(Parameter(f"{force_name}.{name}", labels, prior, "kernel", True, fixed, of, meaning, own))
        return found

    def _dimensions(self, count: int) -> tuple[str, ...]:
        """Names of a kernel's inputs: time and space for a field, numbers otherwise."""
        if self.is_field and count == self.system.force_dims:
            return ("t", *"xyz"[: count - 1])
        return tuple(str(i) for i in range(count))

    def _known(self, name: str, labels: tuple[str, ...]) -> Mapping[str, float]:
        given = self.force.fixed.get(name, {})
        return given if isinstance(given, Mapping) else dict.fromkeys(labels, given)

    def _noise_parameters(self) -> list[Parameter]:
        options = self.likelihood
        if options.kind == "negative_binomial":
            wider = "variance of counts beyond Poisson's, as a share of the squared mean"
            return [Parameter("dispersion", self._noise_labels, options.dispersion, "noise", True, {}, NUMBER, wider)]
        found, labels = [], self._noise_labels
        if options.kind == "gaussian" and options.noise != "given":
            left = options.prior == LikelihoodConfig.model_fields["prior"].default
            prior = self.system.noise_prior if left and self.system.noise_prior is not None else options.prior
            found.append(Parameter("noise", labels, prior, "noise", True, {}, VALUE, "standard deviation of the noise"))
        if options.kind == "gaussian" and options.relative is not None:
            share = "standard deviation as a share of the level"
            found.append(Parameter("relative_noise", labels, options.relative, "noise", True, {}, NUMBER, share))
        return found

    @property
    def _noise_labels(self) -> tuple[str, ...]:
        return ("all",) if self.likelihood.shared else self.system.outputs

    def hyper(self, values: Values) -> list[dict[str, Tensor]]:
        """The hyperparameters of each force's kernel, in the shapes that `FunctionalKernel` takes."""
        return [
            {
                name: values[f"{force}.{name}"] if kernel.shapes[name] else values[f"{force}.{name}"].squeeze(-1)
                for name in kernel.parameter_names
            }
            for force, kernel in zip(self.system.force_names, self.kernels, strict=True)
        ]

    def noise_variance(self, values: Values, observations: Observations) -> Tensor:
        """Variance of each observation, [..., B, P, T]."""
        assert self.likelihood.kind == "gaussian"
        floor = self.likelihood.floor**2
        learned = values["noise"].unsqueeze(-1) ** 2 + floor if "noise" in values else torch.tensor(floor)
        if "relative_noise" in values:
            level = observations.values.abs() if observations.level is None else observations.level
            learned = learned + (values["relative_noise"].unsqueeze(-1) * level) ** 2
        if self.likelihood.noise == "learned":
            return learned.expand(*learned.shape[:-2], *observations.values.shape[-2:])
        if observations.variance is None:
            raise UsageError(
                "The likelihood takes the noise that is given with the data, and the data give none.",
                "Name the variance column in data.columns, or set likelihood.noise=learned.",
            )
        return observations.variance + learned
