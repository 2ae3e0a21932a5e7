"""Transcriptional regulation: ẏ_j = b_j + s_j G(f) − d_j y_j, for any number of genes and of transcription factors."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field
from torch import Tensor

from distlfm.instance import NUMBER, RATE, TIME, VALUE
from distlfm.mechanisms.base import Initial, Mechanism, MechanismConfig, by_options, register, zero_state
from distlfm.mechanisms.priors import LogNormal, Parameter, Values, start_parameter
from distlfm.mechanisms.responses import Identity, ResponseConfig, build_response


class TranscriptionConfig(MechanismConfig):
    """`initial: steady` starts at b/d, where the genes rest while no factor acts."""

    forces: tuple[str, ...] = Field(default=("force",), min_length=1)
    response: ResponseConfig = ResponseConfig()
    initial: Initial = "steady"


@register("transcription")
class Transcription(Mechanism):
    """Genes driven by one or several transcription factors.

    forces: names of the L factors. response: G, how a factor acts on the genes. initial: `steady` starts at b/d, where
    the genes rest while no factor acts; `zero` starts at zero; `free` learns the start.
    """

    Options: ClassVar[type[MechanismConfig]] = TranscriptionConfig

    @by_options
    def __init__(self, options: TranscriptionConfig) -> None:
        super().__init__(options)
        self.start = options.initial
        self.response = build_response(options.response)
        self.force_names = options.forces
        # A curved response takes and gives pure numbers; else the force is measured by what it does.
        self.straight = isinstance(self.response, Identity)
        self.force_dimension = RATE if self.straight else NUMBER

    @property
    def _mixes(self) -> bool:
        return len(self.force_names) > 1 and not self.response.per_output

    def parameters(self) -> list[Parameter]:
        genes, push = self.outputs, NUMBER if self.straight else RATE
        pairs = tuple(f"{gene},{force}" for gene in genes for force in self.force_names) if self._mixes else genes
        basal, sensitivity, decay = (
            LogNormal(median=0.1, spread=1.0),
            LogNormal(median=1.0, spread=1.0),
            LogNormal(median=0.4, spread=0.8),
        )
        declared = [
            Parameter("basal", genes, basal, positive=True, dimension=RATE, meaning="b, made while no factor acts"),
            Parameter(
                "sensitivity", pairs, sensitivity, positive=True, dimension=push, meaning="s, effect of the force"
            ),
            Parameter("decay", genes, decay, positive=True, dimension=TIME**-1, meaning="d, share that decays"),
            *self.response.parameters(self.force_names, genes),
        ]
        if self.start == "free":
            declared.append(start_parameter(genes, LogNormal(median=0.3, spread=1.0), positive=True, dimension=VALUE))
        return declared

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        del t
        drive = self.response(f, values)
        sensitivity = values["sensitivity"]
        if self._mixes:
            weights = sensitivity.unflatten(-1, (len(self.outputs), len(self.force_names)))
            push: Tensor = (weights * drive.unsqueeze(-2)).sum(-1)
        else:
            push = sensitivity * drive
        return values["basal"] + push - values["decay"] * y

    def initial_state(self, values: Values) -> Tensor:
        if self.start == "steady":
            return values["basal"] / values["decay"]
        if self.start == "free":
            return values["initial"]
        return zero_state(values, self.num_states)
