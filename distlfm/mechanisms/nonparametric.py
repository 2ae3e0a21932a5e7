"""A non-parametric ODE: ẏ = f(y). The Gaussian process takes the state as its input: the force is the flow itself."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from distlfm.instance import RATE, VALUE, Dimension
from distlfm.mechanisms.base import Mechanism, MechanismConfig, by_options, register
from distlfm.mechanisms.priors import Normal, Parameter, Values, start_parameter


class NonparametricConfig(MechanismConfig):
    """One force per output: the component of the flow."""


@register("nonparametric")
class Nonparametric(Mechanism):
    """A flow of which only trajectories are known."""

    Options: ClassVar[type[MechanismConfig]] = NonparametricConfig
    force_dimension = RATE

    @by_options
    def __init__(self, options: NonparametricConfig) -> None:
        super().__init__(options)
        self.force_names = tuple(f"flow_{output}" for output in self.outputs)

    @property
    def input_dimensions(self) -> tuple[Dimension | None, ...]:
        return (VALUE,) * len(self.outputs)

    def parameters(self) -> list[Parameter]:
        return [start_parameter(self.outputs, Normal(mean=0.0, sd=2.0), dimension=VALUE)]

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        del t, y, values
        return f

    def initial_state(self, values: Values) -> Tensor:
        return values["initial"]

    def force_input(self, t: Tensor, y: Tensor) -> Tensor:
        del t
        return y
