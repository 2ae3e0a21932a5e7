"""New observations of the same instances: noise and gaps drawn anew for each step. Only training is augmented.

Shapes: `B` instances, `P` outputs.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from distlfm.lfo.dataset import Batch
from distlfm.lfo.grid import fill
from distlfm.lfo.schema import OperatorSchema
from distlfm.lfo.settings import AugmentConfig


def augmented(batch: Batch, config: AugmentConfig, schema: OperatorSchema, generator: torch.Generator) -> Batch:
    """The batch as it might have been observed another time; a function of the generator's state."""
    del schema
    values, mask = batch.values, batch.mask
    dims = (1,) * (values.dim() - 2)
    if config.noise:
        noise = batch.noise.view(*batch.noise.shape, *dims)
        drawn = batch.clean + noise * torch.randn(values.shape, generator=generator)
        values = torch.where(torch.isfinite(drawn), drawn, values)
    if config.missing:
        share = config.missing * torch.rand(len(batch), 1, *dims, generator=generator)
        mask = mask * (torch.rand(values.shape, generator=generator) >= share)
    if config.noise or config.missing:
        values = fill(values, mask, 2)
    return replace(batch, values=values, mask=mask)
