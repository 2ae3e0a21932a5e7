"""The loss of a prediction, and the score of a model over all ranks.

The loss is the Gaussian likelihood of forces and parameters, an example at a time. The score of some examples is their
loss, force Q² and parameter errors.

Shapes: `B` instances, `L` forces, `K` parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from distlfm.lfo.dataset import Batch, Examples
from distlfm.lfo.model import FourierOperator, OperatorOutput, Scaling
from distlfm.lfo.physics import GridSolver
from distlfm.lfo.ranks import Ranks
from distlfm.lfo.settings import Index, LossConfig, TrainSettings


def losses(
    prediction: OperatorOutput,
    batch: Batch,
    normal: Scaling,
    config: LossConfig,
    beta: float,
    forward: GridSolver | None = None,
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
    parts = {"force": mean_known(force, batch.force)}
    target = normal.standardised(batch.params)
    known = batch.params_var if config.variance == "expected" else torch.zeros_like(target)
    spread = normal.standardised_variance(batch.params, known)
    parameters = gaussian(
        (prediction.params - torch.nan_to_num(target)).square(), prediction.params_logvar, spread, beta
    )
    parts["parameters"] = mean_known(parameters, target)
    parts["total"] = parts["force"] + config.parameters * parts["parameters"]
    if forward is not None:
        parts["reconstruction"] = reconstruction(prediction, batch, normal, forward)
        parts["total"] = parts["total"] + config.reconstruction * parts["reconstruction"]
    return parts


def reconstruction(prediction: OperatorOutput, batch: Batch, normal: Scaling, forward: GridSolver) -> Tensor:
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
    loss = 0.5 * (logvar + (squared_error + spread) * torch.exp(-logvar))
    return loss * torch.exp(beta * logvar.detach()) if beta else loss


def mean_known(loss: Tensor, target: Tensor) -> Tensor:
    """Mean [B] over what is known of the target [B, ...]; the loss itself is finite everywhere."""
    known = torch.isfinite(target)
    loss = torch.where(known, loss, torch.zeros_like(loss)).flatten(1)
    return loss.sum(-1) / known.flatten(1).sum(-1).clamp_min(1)


@torch.no_grad()
def score(
    model: FourierOperator,
    examples: Examples,
    indices: Index,
    config: TrainSettings,
    ranks: Ranks,
    forward: GridSolver | None = None,
) -> dict[str, float]:
    """Score a model by figures of the examples with labels, and `reconstruction` of those without.

    Where there are any of the latter, `standing` is what weights are chosen by: without a label the likelihood says
    nothing, and would be best where the network is the most certain of itself. Else it is `calibrated`.
    """
    labelled = examples.labelled[indices]
    model.eval()
    scores: dict[str, float] = {}
    if labelled.any():
        batches = _shares(model, examples, indices[labelled], config, ranks)
        scores = score_labelled(model, batches, int(labelled.sum()), config, ranks)
    if forward is not None and not labelled.all():
        total = torch.zeros((), dtype=torch.float64)
        for batch in _shares(model, examples, indices[~labelled], config, ranks):
            off = reconstruction(model(batch.values, batch.mask), batch, model.normal, forward)
            total = total.to(off.device) + off.double().sum()
        scores["reconstruction"] = float(ranks.sum(total)) / int((~labelled).sum())
        scores["standing"] = scores.get("calibrated", 0.0) + config.loss.reconstruction * scores["reconstruction"]
    model.train()
    return scores


def standing(report: Mapping[str, Any]) -> float:
    """By what epochs are compared, less is better: of a report with the figures of the validation split."""
    return float(report.get("validation_standing", report.get("validation_calibrated", math.inf)))


def _shares(
    model: FourierOperator, examples: Examples, indices: Index, config: TrainSettings, ranks: Ranks
) -> Iterator[Batch]:
    """This rank's part of each batch of the examples, where the model is."""
    for first in range(0, len(indices), config.loop.batch):
        whole = indices[first : first + config.loop.batch]
        yield examples.batch(whole[ranks.share(len(whole))]).to(ranks.device, model.normal.value_sd.dtype)


def score_labelled(
    model: FourierOperator, batches: Iterable[Batch], count: int, config: TrainSettings, ranks: Ranks
) -> dict[str, float]:
    """`loss` (the plain likelihood, whatever the training's beta), its parts, `q2` of the force, `parameter_mae`.

    calibrated: the loss that the best temperatures would give, by which weights are chosen: calibration comes later.

    parameter_mae: mean absolute error of the equation's parameters, in units of their spread in the training split.
    """
    sums: Tensor | None = None
    names: list[str] = []
    for batch in batches:
        prediction = model(batch.values, batch.mask)
        scores = losses(prediction, batch, model.normal, config.loss, beta=0.0)
        scores["q2"] = force_q2(prediction.force, batch.force)
        squares, logs = standardised_errors(prediction, batch, model.normal)
        names_of_moments = [f"{kind}_{i}" for kind in ("square", "log") for i in range(squares.shape[-1])]
        scores |= dict(zip(names_of_moments, torch.cat([squares, logs], -1).unbind(-1), strict=True))
        scores["parameter_mae"] = torch.nanmean((prediction.params - model.normal.standardised(batch.params)).abs(), -1)
        names = list(scores)
        part = torch.stack([torch.nan_to_num(one).double().sum() for one in scores.values()])
        sums = part if sums is None else sums + part
    assert sums is not None
    report = dict(zip(names, (ranks.sum(sums) / count).tolist(), strict=True))
    report["loss"] = report.pop("total")
    moments = [(report.pop(f"square_{i}"), report.pop(f"log_{i}")) for i in range(1 + model.num_params)]
    parts = [0.5 * (math.log(max(square, 1e-30)) + log + 1) for square, log in moments]
    report["calibrated"] = parts[0] + config.loss.parameters * sum(parts[1:]) / max(1, model.num_params)
    return report


def standardised_errors(prediction: OperatorOutput, batch: Batch, normal: Scaling) -> tuple[Tensor, Tensor]:
    """Mean squared errors in standard deviations and mean log-variances, of forces and each parameter, [B, 1 + K]."""
    unit = 2 * prediction.unit.log().view(*prediction.unit.shape, *(1,) * (batch.force.dim() - 2))
    known = torch.isfinite(batch.force)
    square = (prediction.force - batch.force).square() * (-prediction.force_logvar).exp()
    count = known.flatten(1).sum(-1).clamp_min(1)
    force = torch.where(known, square, torch.zeros_like(square)).flatten(1).sum(-1) / count
    logvar = (prediction.force_logvar - unit).flatten(1).mean(-1)
    error = (prediction.params - normal.standardised(batch.params)).square() * (-prediction.params_logvar).exp()
    return (
        torch.cat([force.unsqueeze(-1), torch.nan_to_num(error)], -1),
        torch.cat([logvar.unsqueeze(-1), prediction.params_logvar], -1),
    )


def force_q2(predicted: Tensor, true: Tensor) -> Tensor:
    """1 − squared error / squared deviation from the mean, [B], averaged over forces; NaN of the truth aside."""
    true, predicted = true.flatten(2), predicted.flatten(2)
    error = torch.nansum((predicted - true).square(), -1)
    spread = torch.nansum((true - torch.nanmean(true, -1, keepdim=True)).square(), -1)
    return (1 - error / spread.clamp_min(1e-30)).mean(-1)
