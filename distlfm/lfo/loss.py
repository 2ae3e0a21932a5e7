"""The loss of a prediction: Gaussian likelihood of forces and parameters, an example at a time.

Shapes: `B` instances, `L` forces, `K` parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor

from distlfm.lfo.dataset import Batch
from distlfm.lfo.model import Normal, Prediction
from distlfm.lfo.physics import Forward
from distlfm.lfo.settings import LossConfig


def losses(
    prediction: Prediction,
    batch: Batch,
    normal: Normal,
    config: LossConfig,
    beta: float,
    forward: Forward | None = None,
) -> dict[str, Tensor]:
    """`total`, `force` and `parameters`, each [B]. Dimensionless: in the prediction's own units.

    With `forward`, `reconstruction` too: it needs no label, and instances without any learn from it alone.
    """
    shift = 2 * prediction.unit.log().view(*prediction.unit.shape, *(1,) * (batch.force.dim() - 2))
    spread = torch.nan_to_num(batch.force_var) if config.variance == "expected" else torch.zeros_like(batch.force_var)
    scale = (-shift).exp()
    force = gaussian(
        (prediction.force - torch.nan_to_num(batch.force)).square() * scale,
        prediction.force_logvar - shift,
        spread * scale,
        beta,
    )
    found = {"force": mean_known(force, batch.force)}
    target = normal.standardised(batch.params)
    known = batch.params_var if config.variance == "expected" else torch.zeros_like(target)
    spread = normal.standardised_variance(batch.params, known)
    parameters = gaussian(
        (prediction.params - torch.nan_to_num(target)).square(), prediction.params_logvar, spread, beta
    )
    found["parameters"] = mean_known(parameters, target)
    found["total"] = found["force"] + config.parameters * found["parameters"]
    if forward is not None:
        found["reconstruction"] = reconstruction(prediction, batch, normal, forward)
        found["total"] = found["total"] + config.reconstruction * found["reconstruction"]
    return found


def reconstruction(prediction: Prediction, batch: Batch, normal: Normal, forward: Forward) -> Tensor:
    """Mean squared difference [B] of the observations and what the predicted force and parameters would have given.

    In units of the training split's variances. Parameters are brought into their range, so that no solve diverges.
    """
    solved = forward(prediction.force, normal.within(normal.physical(prediction.params)))
    off = ((solved - batch.values) / normal.value_sd.unsqueeze(-1)).square()
    return (off * batch.mask).flatten(1).sum(-1) / batch.mask.flatten(1).sum(-1).clamp_min(1)


def gaussian(squared_error: Tensor, logvar: Tensor, spread: Tensor, beta: float) -> Tensor:
    """Expected negative log-likelihood for a target with variance `spread`, times the variance to the power beta.

    All of one shape, [B, ...], and so is the result.
    """
    found = 0.5 * (logvar + (squared_error + spread) * torch.exp(-logvar))
    return found * torch.exp(beta * logvar.detach()) if beta else found


def mean_known(loss: Tensor, target: Tensor) -> Tensor:
    """Mean [B] over what is known of the target [B, ...]; the loss itself is finite everywhere."""
    known = torch.isfinite(target)
    loss = torch.where(known, loss, torch.zeros_like(loss)).flatten(1)
    return loss.sum(-1) / known.flatten(1).sum(-1).clamp_min(1)
