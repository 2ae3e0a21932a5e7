"""How good a model is for the patients of a site: one number a patient and figure.

Shapes: `B` windows, `N` patients.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distlfm.federated.cohort import groups
from distlfm.federated.tune import PLAIN
from distlfm.lfo import Batch, Operator, Prediction
from distlfm.lfo.loss import losses, reconstruction
from distlfm.lfo.operator import TOGETHER
from distlfm.lfo.physics import Forward
from distlfm.lfo.score import force_q2

LABELLED = ("loss", "force_loss", "force_q2", "coverage_95", "parameter_error")
"""Figures for windows that were fitted."""

UNLABELLED = ("reconstruction",)
"""For any windows: what the prediction, solved forward, leaves of the observations, in units of their variance."""


def names_of(kind: str) -> tuple[str, ...]:
    """The figures of a kind of task; the first one is what models are chosen by, and less of it is better."""
    return LABELLED if kind == "pairs" else UNLABELLED


@torch.no_grad()
def window_figures(operator: Operator, batch: Batch, names: tuple[str, ...]) -> dict[str, Tensor]:
    """Each figure of each window, [B]. loss: the likelihood of the fit's forces and parameters; less is better."""
    model = operator.model
    ready = _ready(operator, batch)
    found: dict[str, Tensor] = {}
    if set(names) & set(LABELLED):
        parts = losses(ready, batch, model.normal, PLAIN, 0.0)
        found["loss"], found["force_loss"] = parts["total"], parts["force"]
        found["force_q2"] = force_q2(ready.force, batch.force)
        # The fit's own variance is part of what the band has to cover.
        spread = (ready.force_logvar.exp() + torch.nan_to_num(batch.force_var)).sqrt()
        width = torch.tensor([one.width(95) for one in operator.calibration.forces])
        off = (ready.force - batch.force).abs() / spread
        known = torch.isfinite(off)
        inside = (off <= width.view(-1, *(1,) * (off.dim() - 2))) & known
        found["coverage_95"] = inside.flatten(1).sum(-1) / known.flatten(1).sum(-1).clamp_min(1)
        found["parameter_error"] = torch.nanmean((ready.params - model.normal.standardised(batch.params)).abs(), -1)
    if "reconstruction" in names:
        found["reconstruction"] = reconstruction(ready, batch, model.normal, Forward(operator.schema))
    return {name: found[name] for name in names}


def patient_figures(operator: Operator, batch: Batch, names: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """Means over each patient's windows, [N]."""
    of_windows = window_figures(operator, batch, names)
    rows = list(groups(batch.ids).values())
    return {
        name: np.array([float(torch.nanmean(values[one].double())) for one in rows])
        for name, values in of_windows.items()
    }


def means(figures: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
    """The mean of each figure [patients]."""
    return {name: float(np.nanmean(values)) for name, values in figures.items()}


def _ready(operator: Operator, batch: Batch) -> Prediction:
    """The calibrated prediction; tables that the network keeps may serve gradients later, so no inference mode."""
    pairs = zip(batch.values.split(TOGETHER), batch.mask.split(TOGETHER), strict=True)
    pieces = [operator.calibration.apply(operator.model(values, mask)) for values, mask in pairs]
    return Prediction(*(torch.cat(one) for one in zip(*pieces, strict=True)))
