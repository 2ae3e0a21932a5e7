"""An n-th order linear ODE with a force: y⁽ⁿ⁾ + a_{n−1} y⁽ⁿ⁻¹⁾ + … + a_0 y = s f(t), with y observed."""

from __future__ import annotations

from typing import ClassVar

import torch
from pydantic import Field
from torch import Tensor

from distlfm.errors import UsageError
from distlfm.instance import NUMBER, TIME, VALUE
from distlfm.mechanisms.base import Mechanism, MechanismConfig, by_options, register, zero_state
from distlfm.mechanisms.priors import LogNormal, Normal, Parameter, Values, start_parameter


class LinearODEConfig(MechanismConfig):
    """`order` is n; the start (y and its derivatives) is zero or free."""

    outputs: tuple[str, ...] = ("y",)
    order: int = Field(default=2, ge=1, le=6)
    free_start: bool = False


@register("linear_ode")
class LinearODE(Mechanism):
    """A linear equation with constant coefficients. A mass on a spring is order 2: a_1 the damping, a_0 the stiffness.

    order: n, from 1 to 6. free_start: whether y and its derivatives at the first time are learned; else they are zero.
    """

    Options: ClassVar[type[MechanismConfig]] = LinearODEConfig

    @by_options
    def __init__(self, options: LinearODEConfig) -> None:
        super().__init__(options)
        if len(self.outputs) != 1:
            raise UsageError(
                f"linear_ode has one output, and {len(self.outputs)} were given: {', '.join(self.outputs)}.",
                "Name one in mechanism.outputs, and leave the others out of the data.",
            )
        self.order, self.free_start = options.order, options.free_start
        self.derivatives = tuple(f"d{i}" for i in range(options.order))
        self.force_dimension = VALUE / TIME**options.order

    @property
    def num_states(self) -> int:
        return self.order

    def parameters(self) -> list[Parameter]:
        prior = LogNormal(median=1.0, spread=0.7)
        states = {name: VALUE / TIME**i for i, name in enumerate(self.derivatives)}
        pulls = {name: TIME ** (i - self.order) for i, name in enumerate(self.derivatives)}
        of_order = "a_i, of the i-th derivative of y"
        declared = [
            Parameter("coefficient", self.derivatives, prior, positive=True, dimension=pulls, meaning=of_order),
            Parameter("sensitivity", ("s",), prior, positive=True, dimension=NUMBER, meaning="s, effect of the force"),
        ]
        if self.free_start:
            declared.append(start_parameter(self.derivatives, Normal(mean=0.0, sd=1.0), dimension=states))
        return declared

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        del t
        highest = values["sensitivity"] * f - (values["coefficient"] * y).sum(-1, keepdim=True)
        return torch.cat([y[..., 1:].expand(*highest.shape[:-1], self.order - 1), highest], -1)

    def initial_state(self, values: Values) -> Tensor:
        return values["initial"] if self.free_start else zero_state(values, self.order)

    def observe(self, y: Tensor, values: Values) -> Tensor:
        del values
        return y[..., :1]
