"""A cascade: ẋ = G(f) − δ x, ẏ_j = b_j + s_j x − d_j y_j.

The force drives a protein x that nobody measures, and the protein drives the observed mRNAs.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from distlfm.instance import RATE, TIME, VALUE
from distlfm.mechanisms.base import Initial, Mechanism, MechanismConfig, by_options, register, zero_state
from distlfm.mechanisms.priors import LogNormal, Parameter, Values, start_parameter
from distlfm.mechanisms.responses import ResponseConfig, build_response


class CascadeConfig(MechanismConfig):
    """`response` acts between the force and the protein.

    initial: `steady` starts without protein and with the mRNAs at b/d, where they rest then; `zero` without either;
    `free` learns both.
    """

    response: ResponseConfig = ResponseConfig()
    initial: Initial = "steady"


@register("cascade")
class Cascade(Mechanism):
    """Force → protein → mRNA. The protein has a scale of its own, and so have the force and the sensitivities.

    response: G, how the force acts on the protein. initial: `steady` starts without protein and with the mRNAs at b/d,
    where they rest then; `zero` starts without either; `free` learns both.
    """

    Options: ClassVar[type[MechanismConfig]] = CascadeConfig

    @by_options
    def __init__(self, options: CascadeConfig) -> None:
        super().__init__(options)
        self.start = options.initial
        self.response = build_response(options.response)

    @property
    def num_states(self) -> int:
        return 1 + len(self.outputs)

    def parameters(self) -> list[Parameter]:
        genes = self.outputs
        rate, protein, basal, decay = TIME**-1, LogNormal(0.5, 0.7), LogNormal(0.1, 1.0), LogNormal(0.4, 0.8)
        declared = [
            Parameter(
                "protein_decay", ("protein",), protein, positive=True, dimension=rate, meaning="δ, of the protein"
            ),
            Parameter("basal", genes, basal, positive=True, dimension=RATE, meaning="b, made without the protein"),
            Parameter("sensitivity", genes, LogNormal(1.0, 1.0), positive=True, meaning="s, effect of the protein"),
            Parameter("decay", genes, decay, positive=True, dimension=rate, meaning="d, share that decays"),
            *self.response.parameters(self.force_names, ("protein",)),
        ]
        if self.start == "free":
            known, prior = dict.fromkeys(genes, VALUE), LogNormal(0.3, 1.0)
            declared.append(start_parameter(("protein", *genes), prior, positive=True, dimension=known))
        return declared

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        del t
        protein, mrna = y[..., :1], y[..., 1:]
        protein_rate = self.response(f, values) - values["protein_decay"] * protein
        mrna_rate = values["basal"] + values["sensitivity"] * protein - values["decay"] * mrna
        shape = torch.broadcast_shapes(protein_rate.shape[:-1], mrna_rate.shape[:-1])
        return torch.cat([protein_rate.expand(*shape, -1), mrna_rate.expand(*shape, -1)], -1)

    def initial_state(self, values: Values) -> Tensor:
        if self.start == "free":
            return values["initial"]
        if self.start == "zero":
            return zero_state(values, self.num_states)
        rest = values["basal"] / values["decay"]
        return torch.cat([torch.zeros_like(rest[..., :1]), rest], -1)

    def observe(self, y: Tensor, values: Values) -> Tensor:
        del values
        return y[..., 1:]
