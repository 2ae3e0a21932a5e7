"""What a model is given in training: normalised, and augmented.

Means and standard deviations of the training split are put into the model. `Augmentation` draws other observations of
the same instances anew for each step; only training is augmented.

Shapes: `B` instances, `L` forces, `P` outputs, `K` parameters.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from distlfm.lfo.dataset import Batch, Examples
from distlfm.lfo.grid import fill
from distlfm.lfo.model import Scaling
from distlfm.lfo.physics import GridSolver
from distlfm.lfo.schema import OperatorSchema
from distlfm.lfo.settings import AugmentConfig, Index

MOST = 4096
"""Examples of the training split that are looked at."""

SMALLEST = 1e-12


def fit_normal(normal: Scaling, examples: Examples, train: Index, hidden: bool = False) -> None:
    """Set a model's normalisation from the training split, or from evenly spaced members of a large one.

    hidden: whether observations will be hidden in training.
    """
    batch = examples.batch(examples.some(train, MOST))
    set_normal(normal, batch)
    normal.holes.fill_(float(hidden or bool((batch.mask < 1).any())))


def set_normal(normal: Scaling, batch: Batch) -> None:
    """Set the buffers from a batch."""
    seen = torch.where(batch.mask > 0, batch.values, torch.full_like(batch.values, torch.nan))
    params = batch.params.T
    logs = torch.stack([_is_logarithmic(row) for row in params]) if len(params) else torch.zeros(0)
    normal.param_log.copy_(logs)
    known = torch.isfinite(params)
    normal.param_low.copy_(torch.where(known, params, torch.inf).amin(-1))
    normal.param_high.copy_(torch.where(known, params, -torch.inf).amax(-1))
    shown = torch.where(logs.unsqueeze(-1) > 0, params.clamp_min(1e-30).log(), params)
    rows = {"value": seen.movedim(1, 0).flatten(1), "force": batch.force.movedim(1, 0).flatten(1), "param": shown}
    for name, tensor in rows.items():
        mean, sd = _moments(tensor)
        getattr(normal, f"{name}_mean").copy_(mean)
        getattr(normal, f"{name}_sd").copy_(sd)


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


OF_THE_FORCE = "kernel"
"""The kind of parameters that belong to the force, and go where it goes."""


class Augmentation:
    """A batch → the batch as it might have been; a function of the generator's state alone."""

    def __init__(self, config: AugmentConfig, schema: OperatorSchema) -> None:
        self.config = config
        self._forward = GridSolver(schema) if config.recombine else None
        self._goes_with_force = torch.tensor([kind == OF_THE_FORCE for kind in schema.parameter_kinds])

    def __call__(self, batch: Batch, generator: torch.Generator) -> Batch:
        if self._forward is not None:
            batch = self._recombined(batch, self._forward, generator)
        values, mask = batch.values, batch.mask
        dims = (1,) * (values.dim() - 2)
        if self.config.noise:
            noise = batch.noise.view(*batch.noise.shape, *dims)
            drawn = batch.clean + noise * torch.randn(values.shape, generator=generator)
            values = torch.where(torch.isfinite(drawn), drawn, values)
        if self.config.missing:
            share = self.config.missing * torch.rand(len(batch), 1, *dims, generator=generator)
            mask = mask * (torch.rand(values.shape, generator=generator) >= share)
        if self.config.noise or self.config.missing:
            values = fill(values, mask, 2)
        return replace(batch, values=values, mask=mask)

    def _recombined(self, batch: Batch, forward: GridSolver, generator: torch.Generator) -> Batch:
        """Some instances get the parameters of others, and some of these a sum of two forces, solved forward.

        Without new noise they get that of the others' observations too, with their holes.
        """
        count = len(batch)
        chosen = torch.rand(count, generator=generator) < self.config.recombine
        chosen &= torch.isfinite(batch.clean).flatten(1).all(-1) & torch.isfinite(batch.noise).all(-1)
        partner = torch.randperm(count, generator=generator)
        other = torch.randperm(count, generator=generator)
        angle = 2 * torch.pi * torch.rand(count, generator=generator)
        mixed = torch.rand(count, generator=generator) < self.config.mix
        chosen &= chosen[partner] & chosen[other]
        if not bool(chosen.any()):
            return batch
        stretch = (-1, *(1,) * (batch.force.dim() - 1))
        force = angle.cos().view(stretch) * batch.force + angle.sin().view(stretch) * batch.force[other]
        force = torch.where(mixed.view(stretch), force, batch.force)
        own = torch.where(mixed.unsqueeze(-1), torch.full_like(batch.params, torch.nan), batch.params)
        params = torch.where(self._goes_with_force, own, batch.params[partner])
        clean = forward(force, batch.params[partner])
        chosen &= torch.isfinite(clean).flatten(1).all(-1)
        wide, flat = chosen.view(stretch), chosen.unsqueeze(-1)
        if not self.config.noise:  # else it is drawn anew around the solution
            mask = torch.where(wide, batch.mask[partner], batch.mask)
            seen = fill(clean + (batch.values - batch.clean)[partner], mask, 2)
            batch = replace(batch, values=torch.where(wide, seen, batch.values), mask=mask)
        return replace(
            batch,
            force=torch.where(wide, force, batch.force),
            params=torch.where(flat, params, batch.params),
            clean=torch.where(wide, clean, batch.clean),
            noise=torch.where(flat, batch.noise[partner], batch.noise),
        )
