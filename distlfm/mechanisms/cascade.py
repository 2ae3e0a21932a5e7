"""A cascade: the force drives a protein that nobody measures, and the protein drives the observed mRNAs.

ẋ = G(f) − δ x,  ẏ_j = b_j + s_j x − d_j y_j.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from distlfm.mechanisms.base import Mechanism, MechanismConfig, register
from distlfm.mechanisms.parameters import Parameter, Values
from distlfm.mechanisms.priors import LogNormal
from distlfm.mechanisms.responses import ResponseConfig, build_response


class CascadeConfig(MechanismConfig):
    """`response` acts between the force and the protein."""

    response: ResponseConfig = ResponseConfig()


@register("cascade")
class Cascade(Mechanism):
    """Force → protein → mRNA; the protein starts at zero and the mRNAs at rest."""

    Options: ClassVar[type[MechanismConfig]] = CascadeConfig

    def __init__(self, options: CascadeConfig) -> None:
        super().__init__(options)
        self.response = build_response(options.response)

    @property
    def num_states(self) -> int:
        return 1 + len(self.outputs)

    def parameters(self) -> list[Parameter]:
        genes = self.outputs
        return [
            Parameter("protein_decay", ("protein",), LogNormal(median=0.5, spread=0.7), positive=True),
            Parameter("basal", genes, LogNormal(median=0.1, spread=1.0), positive=True),
            Parameter("sensitivity", genes, LogNormal(median=1.0, spread=1.0), positive=True),
            Parameter("decay", genes, LogNormal(median=0.4, spread=0.8), positive=True),
            *self.response.parameters(self.force_names, ("protein",)),
        ]

    def vector_field(self, t: Tensor, y: Tensor, f: Tensor, values: Values) -> Tensor:
        del t
        protein, mrna = y[..., :1], y[..., 1:]
        protein_rate = self.response(f, values) - values["protein_decay"] * protein
        mrna_rate = values["basal"] + values["sensitivity"] * protein - values["decay"] * mrna
        shape = torch.broadcast_shapes(protein_rate.shape[:-1], mrna_rate.shape[:-1])
        return torch.cat([protein_rate.expand(*shape, -1), mrna_rate.expand(*shape, -1)], -1)

    def initial_state(self, values: Values) -> Tensor:
        rest = values["basal"] / values["decay"]
        return torch.cat([torch.zeros_like(rest[..., :1]), rest], -1)

    def observe(self, y: Tensor, values: Values) -> Tensor:
        del values
        return y[..., 1:]
