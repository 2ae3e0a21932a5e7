"""What every equation is to inference, ordinary or partial: outputs, forces, and unknowns with their priors.

A config may say that values are known: a number for all elements of a parameter, or one for each by its name.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from distlfm.config import Config, nearest
from distlfm.dimension import Dimension
from distlfm.errors import UsageError
from distlfm.mechanisms.parameters import Parameter
from distlfm.mechanisms.priors import Prior


def _numbers(given: Any) -> Any:
    """Refuse what is no number before a union of types would tell of each of its members."""
    for label, value in given.items() if isinstance(given, Mapping) else [("", given)]:
        if not _is_number(value):
            what = f"{value!r} is not a number" if given is value else f"{label} is {value!r}, which is not a number"
            raise ValueError(
                f"{what}. Give a number for all elements, such as 1.0, or one for each by name: {{NAME: 1.0}}"
            )
    return given


def _is_number(value: Any) -> bool:
    """Also as text: YAML reads 1e-3 so."""
    if isinstance(value, bool):
        return False
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


Known = Annotated[Mapping[str, float] | float, BeforeValidator(_numbers)]


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
    never_negative: whether outputs are of something that is never measured below zero; such values give a notice.
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
                parameter, prior=self.options.priors.get(parameter.name, parameter.prior), fixed=self._fixed(parameter)
            )
            for parameter in parameters
        ]

    def _fixed(self, parameter: Parameter) -> Mapping[str, float]:
        given = self.options.fixed.get(parameter.name, parameter.fixed)
        return given if isinstance(given, Mapping) else dict.fromkeys(parameter.labels, given)
