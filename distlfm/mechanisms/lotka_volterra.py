"""Lotka–Volterra with unseen prey: ẏ = y (g·prey − m), prey = G(f) with a positive response.

The predator y is observed, and the prey is the latent force.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from distlfm.instance import TIME, VALUE
from distlfm.mechanisms.base import Mechanism, MechanismConfig, by_options, register, start_parameter
from distlfm.mechanisms.priors import LogNormal, Parameter, Values
from distlfm.mechanisms.responses import ResponseConfig, build_response


class LotkaVolterraConfig(MechanismConfig):
    """`response` makes the prey from the force; the default keeps it positive."""

    outputs: tuple[str, ...] = ("predator",)
    response: ResponseConfig = ResponseConfig(kind="softplus")


@register("lotka_volterra")
class LotkaVolterra(Mechanism):
    """A predator that grows on prey nobody counted: prey and growth have no unit that the data tell."""

    Options: ClassVar[type[MechanismConfig]] = LotkaVolterraConfig
    force_names = ("prey",)
    never_negative: ClassVar[bool] = True

    @by_options
    def __init__(self, options: LotkaVolterraConfig) -> None:
        super().__init__(options)
        self.response = build_response(options.response)

    def parameters(self) -> list[Parameter]:
        growth, mortality = LogNormal(median=0.5, spread=0.7), LogNormal(median=0.8, spread=0.7)
        fed, dies = "g, growth for each unit of prey", "m, share that dies"
        return [
            Parameter("growth", self.outputs, growth, positive=True, meaning=fed),
            Parameter("mortality", self.outputs, mortality, positive=True, dimension=TIME**-1, meaning=dies),
            start_parameter(self.outputs, LogNormal(median=1.0, spread=1.0), positive=True, dimension=VALUE),
            *self.response.parameters(self.force_names, self.outputs),
        ]

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        del t
        return y * (values["growth"] * self.response(f, values) - values["mortality"])

    def act(self, f: Tensor, values: Values) -> Tensor:
        return self.response(f, values)

    def initial_state(self, values: Values) -> Tensor:
        return values["initial"]
