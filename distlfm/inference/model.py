"""The whole model of an instance: mechanism, one kernel per force, likelihood, and the vector of all unknowns.

What a kernel's parameters are measured in follows from its force and from what the force depends on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TypeVar

from gpytorch.kernels import Kernel
from torch import Tensor

from distlfm.config import Config, nearest
from distlfm.errors import UsageError
from distlfm.gp.expression import Periodic, Scaled, Stationary
from distlfm.gp.kernels import FunctionalKernel, KernelConfig
from distlfm.inference.observations import Observations
from distlfm.instance import AXES, Dimension
from distlfm.likelihoods import LikelihoodConfig, build_likelihood
from distlfm.mechanisms.base import Known, Mechanism, System
from distlfm.mechanisms.field import FieldMechanism
from distlfm.mechanisms.priors import LogNormal, Parameter, ParameterSpace, Prior, Values
from distlfm.solvers.linear import Linearity, probe


def kernel_dimension(
    kernel: FunctionalKernel,
    name: str,
    labels: Sequence[str],
    force: Dimension | None,
    inputs: Sequence[Dimension | None],
) -> Dimension | Mapping[str, Dimension] | None:
    """The dimension of one parameter; None where it is not known, as for sums and products, whose parts share a scale.

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
    for `glucose` a lengthscale around 40 minutes and a variance around 0.5. For a field, `lengthscale[t]` and
    `lengthscale[x]` are those in time and along x, where one prior does not suit both.

    fixed: known values, a number for all dimensions or one for each by its name, `{lengthscale: {t: 1.0, x: 0.2}}`.

    Of several forces each may have its own: `intake.lengthscale` is that of the force `intake`, and goes before
    `lengthscale`, which is for all.
    """

    kernel: KernelConfig = KernelConfig()
    priors: Mapping[str, Prior] = {}
    fixed: Mapping[str, Known] = {}


Given = TypeVar("Given")


def _of_force(force: str, forces: Sequence[str], given: Mapping[str, Given]) -> dict[str, Given]:
    """What is given for one force: its own, and that of all where it has none; by the kernel's names alone."""
    shared = {name: one for name, one in given.items() if not name.startswith(tuple(f"{other}." for other in forces))}
    own = {name.removeprefix(f"{force}."): one for name, one in given.items() if name.startswith(f"{force}.")}
    # A prior of a whole parameter of one force replaces what all forces have for its elements.
    shared = {name: one for name, one in shared.items() if name.partition("[")[0] not in own}
    return shared | own


class Model:
    """What inference works on: natural values from `z`, kernels' hyperparameters and noise from those values."""

    def __init__(
        self, system: System, force: ForceConfig, likelihood: LikelihoodConfig, kernel: Kernel | None = None
    ) -> None:
        """kernel: any gpytorch kernel, in place of the one that `force` describes; `force.priors` go by its names."""
        self.kernel = kernel
        self.system, self.force = system, force
        self.likelihood = build_likelihood(likelihood, system.outputs, system.noise_prior, system.drift)
        if self.likelihood.drift is not None and self.is_field:
            raise UsageError(
                "A drift is the error of one sensor in time, and a field has many places.",
                "Leave likelihood.drift out.",
            )
        self.kernels = tuple(FunctionalKernel(kernel or force.kernel, system.force_dims) for _ in system.force_names)
        parameters = [*system.settled(), *self._kernel_parameters(force), *self.likelihood.parameters()]
        self.space = ParameterSpace(parameters)

    @property
    def mechanism(self) -> Mechanism:
        """The ordinary differential equation; raises a UsageError for a model of another kind."""
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

    @cached_property
    def linearity(self) -> Linearity:
        """Whether the ordinary differential equation is linear, found by probing it once."""
        return probe(self.mechanism, self.space)

    @property
    def integrable(self) -> bool:
        """Whether outputs are linear in the force and noise is Gaussian, so that the force can be integrated out."""
        return self.likelihood.gaussian and (self.linearity.affine or self.linearity.changing)

    def _kernel_parameters(self, force: ForceConfig) -> list[Parameter]:
        known, sizes = self.kernels[0].parameter_names, self.kernels[0].shapes
        elements = [f"{name}[{label}]" for name in known if sizes[name] for label in self._dimensions(sizes[name][0])]
        forces = self.system.force_names
        for named, names in ((force.priors, (*known, *elements)), (force.fixed, known)):
            own = [f"{one}.{name}" for one in forces for name in names]
            for name in named:
                if name not in (*names, *own):
                    raise UsageError(f"The kernel has no parameter {name!r}.", nearest(name, [*names, *own]))
        found = []
        for force_name, kernel in zip(forces, self.kernels, strict=True):
            priors = _of_force(force_name, forces, force.priors)
            known_values = _of_force(force_name, forces, force.fixed)
            for name in known:
                size = kernel.shapes[name]
                labels = self._dimensions(size[0]) if size else (name,)
                given = known_values.get(name, {})
                fixed = given if isinstance(given, Mapping) else dict.fromkeys(labels, given)
                prior = priors.get(name, self.system.force_priors.get(name, DEFAULT_KERNEL_PRIOR))
                of = kernel_dimension(kernel, name, labels, self.system.force_dimension, self.system.input_dimensions)
                meaning = KERNEL_MEANINGS.get(name, "")
                each = {label: priors[key] for label in labels if (key := f"{name}[{label}]") in priors}
                found.append(Parameter(f"{force_name}.{name}", labels, prior, "kernel", True, fixed, of, meaning, each))
        return found

    def _dimensions(self, count: int) -> tuple[str, ...]:
        """Names of a kernel's inputs: time and space for a field, numbers otherwise."""
        if self.is_field and count == self.system.force_dims:
            return ("t", *AXES[: count - 1])
        return tuple(str(i) for i in range(count))

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
        return self.likelihood.noise_variance(values, observations)
