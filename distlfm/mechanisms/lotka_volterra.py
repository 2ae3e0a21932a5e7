"""Lotka–Volterra with unseen prey: ẏ = y (g·prey − m), prey = G(f) with a positive response.

The predator y is observed, and the prey is the latent force.
"""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from distlfm.instance import TIME, VALUE
from distlfm.mechanisms.base import Mechanism, MechanismConfig, by_options, register
from distlfm.mechanisms.priors import LogNormal, Parameter, Values, start_parameter
from distlfm.mechanisms.responses import ResponseConfig, build_response


class LotkaVolterraConfig(MechanismConfig):
    """`response` makes the prey from the force; the default keeps it positive."""

    outputs: tuple[str, ...] = ("predator",)
    response: ResponseConfig = ResponseConfig(kind="softplus")


@register("lotka_volterra")
class LotkaVolterra(Mechanism):
    """A predator that grows on prey nobody counted: prey and growth have no unit that the data tell.

    response: G, which makes the prey from the force; the default keeps it positive.
    """

    Options: ClassVar[type[MechanismConfig]] = LotkaVolterraConfig
    force_names = ("prey",)
    never_negative: ClassVar[bool] = True

    @by_options
    def __init__(self, options: LotkaVolterraConfig) -> None:
        super().__init__(options)
        self.response = build_response(options.response)

    def parameters(self) -> list[Parameter]:
        names, growth, mortality = self.outputs, LogNormal(0.5, 0.7), LogNormal(0.8, 0.7)
        return [
            Parameter("growth", names, growth, positive=True, meaning="g, growth for each unit of prey"),
            Parameter("mortality", names, mortality, positive=True, dimension=TIME**-1, meaning="m, share that dies"),
            start_parameter(names, LogNormal(1.0, 1.0), positive=True, dimension=VALUE),
            *self.response.parameters(self.force_names, names),
        ]

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        del t
        return y * (values["growth"] * self.response(f, values) - values["mortality"])

    def act(self, f: Tensor, values: Values) -> Tensor:
        # A response of its own for each of several predators makes several preys of one force: no one of them is shown.
        several = self.response.per_output and len(self.outputs) > 1
        return f if several else self.response(f, values)

    def initial_state(self, values: Values) -> Tensor:
        return values["initial"]
