"""Glucose minimal model: Ġ = −p (G − G_b) + f(t). The force is what meals and insulin add or take a minute."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from torch import Tensor

from distlfm.errors import UsageError
from distlfm.instance import RATE, TIME, VALUE
from distlfm.mechanisms.base import Mechanism, MechanismConfig, by_options, register
from distlfm.mechanisms.priors import LogNormal, Parameter, Prior, Values, start_parameter


class GlucoseConfig(MechanismConfig):
    """Values in mg/dL, times in minutes."""

    outputs: tuple[str, ...] = ("glucose",)
    initial: Literal["free", "steady"] = "free"


@register("glucose")
class Glucose(Mechanism):
    """One patient's glucose, pulled to a base level at a rate p and driven by an unseen appearance rate.

    initial: `free` learns the level at the first time, `steady` starts at the base level. Default priors are for mg/dL
    and minutes.
    """

    Options: ClassVar[type[MechanismConfig]] = GlucoseConfig
    force_names = ("appearance",)
    force_dimension = RATE
    prior_units: ClassVar = {"time": "min", "value": "mg/dL"}
    force_priors: ClassVar[Mapping[str, Prior]] = {
        "lengthscale": LogNormal(median=40.0, spread=0.5),
        "variance": LogNormal(median=0.5, spread=1.0),
    }
    noise_prior: ClassVar[Prior | None] = LogNormal(median=2.0, spread=0.5)
    drift: ClassVar[Mapping[str, Any] | None] = {
        "kind": "matern52",
        "size": LogNormal(median=6.0, spread=0.5),
        "time": LogNormal(median=30.0, spread=0.5),
    }
    never_negative: ClassVar[bool] = True

    @by_options
    def __init__(self, options: GlucoseConfig) -> None:
        super().__init__(options)
        if len(self.outputs) != 1:
            raise UsageError(
                f"glucose is an equation of one output, and here are {len(self.outputs)}: {', '.join(self.outputs)}.",
                "Name the column of glucose alone in data.columns.values, or write an equation of your own for all.",
            )
        self.start = options.initial

    def parameters(self) -> list[Parameter]:
        slow, rest = "p, how fast it returns to the base level", "G_b, where it rests"
        declared = [
            Parameter("return_rate", ("p",), LogNormal(0.02, 0.5), positive=True, dimension=TIME**-1, meaning=slow),
            Parameter("base_level", ("base",), LogNormal(110.0, 0.25), positive=True, dimension=VALUE, meaning=rest),
        ]
        if self.start == "free":
            declared.append(start_parameter(self.outputs, LogNormal(130.0, 0.4), positive=True, dimension=VALUE))
        return declared

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        del t
        return -values["return_rate"] * (y - values["base_level"]) + f

    def initial_state(self, values: Values) -> Tensor:
        return values["initial"] if self.start == "free" else values["base_level"]
