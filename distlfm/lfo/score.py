"""How well a model does on some examples: loss, force Q² and parameter errors, over all ranks."""

from __future__ import annotations

import torch
from torch import Tensor

from distlfm.lfo.dataset import Examples, Index
from distlfm.lfo.loss import losses
from distlfm.lfo.model import FourierOperator
from distlfm.lfo.ranks import Ranks
from distlfm.lfo.settings import TrainSettings


@torch.no_grad()
def score(
    model: FourierOperator, examples: Examples, indices: Index, config: TrainSettings, ranks: Ranks
) -> dict[str, float]:
    """`loss` (the plain likelihood, whatever the training's beta), its parts, `q2` of the force, `parameter_mae`.

    parameter_mae: mean absolute error of the equation's parameters, in units of their spread in the training split.
    """
    model.eval()
    sums: Tensor | None = None
    names: list[str] = []
    for first in range(0, len(indices), config.loop.batch):
        whole = indices[first : first + config.loop.batch]
        mine = whole[ranks.share(len(whole))]
        batch = examples.batch(mine).to(ranks.device)
        prediction = model(batch.values, batch.mask)
        found = losses(prediction, batch, model.normal, config.loss, beta=0.0)
        found["q2"] = force_q2(prediction.force, batch.force)
        found["parameter_mae"] = torch.nanmean((prediction.params - model.normal.standardised(batch.params)).abs(), -1)
        names = list(found)
        part = torch.stack([torch.nan_to_num(one).double().sum() for one in found.values()])
        sums = part if sums is None else sums + part
    model.train()
    assert sums is not None
    means = (ranks.sum(sums) / len(indices)).tolist()
    told = dict(zip(names, means, strict=True))
    told["loss"] = told.pop("total")
    return told


def force_q2(predicted: Tensor, true: Tensor) -> Tensor:
    """1 − squared error / squared deviation from the mean, [B], averaged over forces; NaN of the truth aside."""
    true, predicted = true.flatten(2), predicted.flatten(2)
    error = torch.nansum((predicted - true).square(), -1)
    spread = torch.nansum((true - torch.nanmean(true, -1, keepdim=True)).square(), -1)
    return (1 - error / spread.clamp_min(1e-30)).mean(-1)
