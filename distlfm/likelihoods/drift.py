"""An error that wanders: a slow process beside the white noise, as that of a sensor whose calibration drifts.

It belongs to the noise: the curve of a fit is without it. Shapes: leading dimensions `…` are samples and instances, `P`
outputs, `T` times.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from distlfm.config import Config
from distlfm.mechanisms.priors import LogNormal, Prior


class DriftConfig(Config):
    """A Matérn process of measurement error, one for each output.

    kind: how smooth it is; `matern12` is an Ornstein–Uhlenbeck process. size: prior of its standard deviation.
    time: prior of the time over which it stays alike.
    """

    kind: Literal["matern12", "matern32", "matern52"] = "matern12"
    size: Prior = LogNormal(median=0.1, spread=1.0)
    time: Prior = LogNormal(median=1.0, spread=1.0)


def correlation(kind: str, times: Tensor, scale: Tensor) -> Tensor:
    """Correlations [..., P, T, T] of an error at times [..., T] whose time scales are [..., P]."""
    smoothness = {"matern12": 1, "matern32": 3, "matern52": 5}[kind]
    apart = (times.unsqueeze(-1) - times.unsqueeze(-2)).abs().unsqueeze(-3)
    u = math.sqrt(smoothness) * apart / scale[..., None, None]
    rise = {1: torch.ones_like(u), 3: 1 + u, 5: 1 + u + u.square() / 3}[smoothness]
    return rise * torch.exp(-u)
