"""What every equation is to inference, ordinary or partial: outputs, forces, and unknowns with their priors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from pydantic import Field

from distlfm.config import Config, nearest
from distlfm.dimension import Dimension
from distlfm.errors import UsageError
from distlfm.mechanisms.known import Known
from distlfm.mechanisms.parameters import Parameter
from distlfm.mechanisms.priors import Prior


class MechanismConfig(Config):
    """Options that every mechanism takes; a mechanism adds its own in a subclass."""

    kind: str
    outputs: tuple[str, ...] = ()
    priors: Mapping[str, Prior] = Field(default={}, description="By the parameter's name.")
    fixed: Mapping[str, Known] = Field(
        default={}, description="Known elements, {sensitivity: {p21: 1.0}}, or a number for all of them."
    )


class System(ABC):
    """An equation with named outputs and forces. force_dimension: what forces are measured in, if that is known.

    prior_units: of `time`, `value` and `position`, where the default priors are numbers of certain units.
    force_priors, noise_prior: of the kernel's parameters by name, and of the noise, where a config leaves them out; an
    equation that has units of its own knows better than numbers around one.
    never_negative: whether outputs are of something that is never measured below zero; who has such values is told.
    """

    Options: ClassVar[type[MechanismConfig]] = MechanismConfig
    force_names: tuple[str, ...] = ("force",)
    force_dimension: Dimension | None = None
    prior_units: ClassVar[Mapping[str, str]] = {}
    force_priors: ClassVar[Mapping[str, Prior]] = {}
    noise_prior: ClassVar[Prior | None] = None
    never_negative: ClassVar[bool] = False

    def __init__(self, options: MechanismConfig) -> None:
        self.options = options
        self.outputs = tuple(options.outputs)

    @property
    @abstractmethod
    def force_dims(self) -> int:
        """How many numbers the Gaussian process takes as input."""

    @property
    def input_dimensions(self) -> tuple[Dimension | None, ...]:
        """What each of these numbers is measured in, if that is known."""
        return (None,) * self.force_dims

    @abstractmethod
    def parameters(self) -> list[Parameter]:
        """The unknowns Φ with their default priors."""

    def settled(self) -> list[Parameter]:
        """The parameters with the priors and known values of the options put in."""
        parameters = self.parameters()
        known = [parameter.name for parameter in parameters]
        for name in (*self.options.priors, *self.options.fixed):
            if name not in known:
                raise UsageError(f"{self.options.kind} has no parameter {name!r}.", nearest(name, known))
        return [
            replace(
                parameter,
                prior=self.options.priors.get(parameter.name, parameter.prior),
                fixed=self._fixed(parameter),
            )
            for parameter in parameters
        ]

    def _fixed(self, parameter: Parameter) -> Mapping[str, float]:
        given = self.options.fixed.get(parameter.name, parameter.fixed)
        return given if isinstance(given, Mapping) else dict.fromkeys(parameter.labels, given)
