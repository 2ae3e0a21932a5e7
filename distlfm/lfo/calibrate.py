"""Honest intervals: factors that make the bands of held-out instances cover what they promise.

The network's standard deviations are multiplied by one factor per force and parameter (their likelihood's best
temperature), and the widths of the 68 and 95 % bands are the quantiles that the held-out errors have, in place of the
normal ones (split conformal prediction, Vovk et al. 2005). The points of an instance err together, so that its force
tells less than as many instances would: bands of forces are made a standard error of the coverage wider.

Shapes: `B` instances, `L` forces, `K` parameters.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from distlfm.config import Config
from distlfm.lfo.dataset import Batch
from distlfm.lfo.model import OperatorOutput, Scaling
from distlfm.lfo.spectral import table

LEVELS = {68: 0.68, 95: 0.95}
NORMAL = {68: 0.9944578832097532, 95: 1.959963984540054}
FEWEST = 50
"""With fewer held-out instances, parameters share their factors."""

SEED = 20
"""Seed of the draws that stand for the truth of fitted instances."""

MOST = 4_000_000
"""Evenly spaced errors that quantiles are found from: torch takes no more."""

EDGE = 1e-3
"""Intervals are never made narrower than this part of the network's."""


class Factors(Config):
    """sd: multiplies the network's standard deviation; width68 and width95: half the band, in these."""

    sd: float = 1.0
    width68: float = NORMAL[68]
    width95: float = NORMAL[95]

    def width(self, level: int) -> float:
        return self.width68 if level == 68 else self.width95


class Calibration(Config):
    """Factors of each force and of each parameter. instances: how many they were found from; 0: not calibrated."""

    forces: tuple[Factors, ...]
    parameters: tuple[Factors, ...]
    instances: int = 0

    @staticmethod
    def none(forces: int, parameters: int) -> Calibration:
        return Calibration(forces=(Factors(),) * forces, parameters=(Factors(),) * parameters)

    def apply(self, prediction: OperatorOutput) -> OperatorOutput:
        """The prediction with calibrated log-variances; widths are left to whoever makes bands of it."""
        shift = _log_variances(tuple(one.sd for one in self.forces)).to(prediction.force)
        force_logvar = prediction.force_logvar + shift.view(-1, *(1,) * (prediction.force.dim() - 2))
        shift = _log_variances(tuple(one.sd for one in self.parameters)).to(prediction.params)
        return prediction._replace(force_logvar=force_logvar, params_logvar=prediction.params_logvar + shift)


@table
def _log_variances(sds: tuple[float, ...]) -> Tensor:
    return torch.tensor([2 * math.log(sd) for sd in sds])


def calibrate(prediction: OperatorOutput, batch: Batch, normal: Scaling) -> Calibration:
    """Find the factors from the predictions of held-out instances."""
    force_off, params_off = _off(prediction, batch, normal)
    force, params = force_off.movedim(1, 0).flatten(2), params_off.T.unsqueeze(-1)
    if len(batch) < FEWEST:
        params = params.reshape(1, -1, 1).expand(len(params), -1, 1)
    return Calibration(
        forces=tuple(_factors(rows, len(batch)) for rows in force),
        parameters=tuple(_factors(rows, len(batch)) for rows in params),
        instances=len(batch),
    )


def _off(prediction: OperatorOutput, batch: Batch, normal: Scaling) -> tuple[Tensor, Tensor]:
    """How far the truth is from a prediction, in standard deviations: of forces [B, L, *grid], of parameters [B, K].

    For fitted instances the truth is a draw from their posterior, point by point: a band must hold the truth and not a
    fit's mean, to which an operator of fits comes much nearer. Of generated ones it is known.
    """
    seeded = torch.Generator().manual_seed(SEED)
    force = batch.force + torch.nan_to_num(batch.force_var).sqrt() * torch.randn(batch.force.shape, generator=seeded)
    spread = normal.standardised_variance(batch.params, batch.params_var).sqrt()
    params = normal.standardised(batch.params) + spread * torch.randn(spread.shape, generator=seeded)
    return (
        (prediction.force - force).abs() * (-0.5 * prediction.force_logvar).exp(),
        (prediction.params - params).abs() * (-0.5 * prediction.params_logvar).exp(),
    )


def _factors(off: Tensor, instances: int) -> Factors:
    """From absolute errors in standard deviations, [B, points].

    Quantiles are a little high: of single values, as a new one is one more; where an instance has several, by the
    standard error of the share of them within the band.
    """
    known = torch.isfinite(off)
    every = off[known].double()
    if not len(every):
        return Factors()
    sd = max(EDGE, float(every.square().mean().sqrt()))
    few, widths = every[:: -(-len(every) // MOST)], {}
    for level, share in LEVELS.items():
        more = share / instances
        if off.shape[-1] > 1 and instances > 1:
            within = (off <= torch.quantile(few, share)) & known
            more = float((within.sum(-1) / known.sum(-1).clamp_min(1)).std()) / math.sqrt(instances)
        widths[level] = max(EDGE, float(torch.quantile(few, min(1.0, share + more))) / sd)
    return Factors(sd=sd, width68=widths[68], width95=widths[95])


def coverage(ready: OperatorOutput, batch: Batch, normal: Scaling, calibration: Calibration) -> dict[str, float]:
    """Share of the truth within the bands of a calibrated prediction: `force_68`, `force_95`, `parameters_68`, …."""
    shares = {}
    force, params = _off(ready, batch, normal)
    for level in LEVELS:
        shares[f"force_{level}"] = _inside(force.movedim(1, -1), calibration.forces, level)
        shares[f"parameters_{level}"] = _inside(params, calibration.parameters, level)
    return shares


def _inside(off: Tensor, factors: tuple[Factors, ...], level: int) -> float:
    known = torch.isfinite(off)
    return float((off <= torch.tensor([one.width(level) for one in factors]))[known].double().mean())
