"""Means and standard deviations of the training split, put into a model."""

from __future__ import annotations

import torch
from torch import Tensor

from distlfm.lfo.dataset import Batch, Examples
from distlfm.lfo.model import Normal
from distlfm.lfo.split import Index

MOST = 4096
"""Examples of the training split that are looked at."""

SMALLEST = 1e-12


def fit_normal(normal: Normal, examples: Examples, train: Index, hidden: bool = False) -> None:
    """Set a model's normalisation from the training split, or from evenly spaced members of a large one.

    hidden: whether observations will be hidden in training.
    """
    batch = examples.batch(examples.some(train, MOST))
    set_normal(normal, batch)
    normal.holes.fill_(float(hidden or bool((batch.mask < 1).any())))


def set_normal(normal: Normal, batch: Batch) -> None:
    """Set the buffers from a batch."""
    seen = torch.where(batch.mask > 0, batch.values, torch.full_like(batch.values, torch.nan))
    for name, tensor in (("value", seen), ("force", batch.force)):
        mean, sd = _moments(tensor.movedim(1, 0).flatten(1))
        getattr(normal, f"{name}_mean").copy_(mean)
        getattr(normal, f"{name}_sd").copy_(sd)
    params = batch.params.T
    logs = torch.stack([_is_logarithmic(row) for row in params]) if len(params) else torch.zeros(0)
    normal.param_log.copy_(logs)
    known = torch.isfinite(params)
    normal.param_low.copy_(torch.where(known, params, torch.inf).amin(-1))
    normal.param_high.copy_(torch.where(known, params, -torch.inf).amax(-1))
    shown = torch.where(logs.unsqueeze(-1) > 0, params.clamp_min(1e-30).log(), params)
    mean, sd = _moments(shown)
    normal.param_mean.copy_(mean)
    normal.param_sd.copy_(sd)


def _moments(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each row, NaN aside."""
    rows = rows.double()
    known = torch.isfinite(rows)
    count = known.sum(-1).clamp_min(1)
    zero = torch.zeros_like(rows)
    mean = torch.where(known, rows, zero).sum(-1) / count
    deviations = torch.where(known, rows - mean.unsqueeze(-1), zero)
    sd = (deviations.square().sum(-1) / count).sqrt()
    return mean.float(), torch.where(sd > SMALLEST, sd, torch.ones_like(sd)).float()


def _is_logarithmic(row: Tensor) -> Tensor:
    """1 where the logarithm of a positive parameter is less skewed than the parameter itself."""
    row = row[torch.isfinite(row)].double()
    if len(row) < 3 or bool((row <= 0).any()):
        return torch.zeros(())
    return (_skewness(row.log()).abs() < _skewness(row).abs()).float()


def _skewness(row: Tensor) -> Tensor:
    centred = row - row.mean()
    return centred.pow(3).mean() / centred.square().mean().clamp_min(SMALLEST).pow(1.5)
