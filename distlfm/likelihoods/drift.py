"""An error that wanders: a slow process beside the white noise, as that of a sensor whose calibration drifts.

It belongs to the noise: the curve of a fit is without it. Shapes: leading dimensions `…` are samples and instances, `P`
outputs, `T` times.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from scipy.linalg import solve_banded
from torch import Tensor

from distlfm.config import Config
from distlfm.instance import FloatArray
from distlfm.mechanisms.priors import LogNormal, Prior


class DriftConfig(Config):
    """A Matérn process of measurement error, one for each output.

    kind: how smooth it is; `matern12` is an Ornstein–Uhlenbeck process. size: prior of its standard deviation.
    time: prior of the time over which it stays alike.
    """

    kind: Literal["matern12", "matern32", "matern52"] = "matern12"
    size: Prior = LogNormal(median=0.1, spread=1.0)
    time: Prior = LogNormal(median=1.0, spread=1.0)


DRIFT = ("drift", "drift_time")
"""Parameters of a likelihood with such an error: its deviation and its time scale."""

SMOOTHNESS = {"matern12": 1, "matern32": 3, "matern52": 5}

STATIONARY = {
    1: np.eye(1),
    2: np.eye(2),
    3: np.array([[1, 0, -1 / 3], [0, 1 / 3, 0], [-1 / 3, 0, 1]]),
}
"""Covariance of a process and of as many derivatives as it has, D in all, in units of its time scale."""

JITTER = 1e-14
"""Variance added to what a step adds: neighbours that are very near leave rounding alone."""


def correlation(kind: str, times: Tensor, scale: Tensor) -> Tensor:
    """Correlations [..., P, T, T] of an error at times [..., T] whose time scales are [..., P]."""
    smoothness = SMOOTHNESS[kind]
    apart = (times.unsqueeze(-1) - times.unsqueeze(-2)).abs().unsqueeze(-3)
    u = math.sqrt(smoothness) * apart / scale[..., None, None]
    rise = {1: torch.ones_like(u), 3: 1 + u, 5: 1 + u + u.square() / 3}[smoothness]
    return rise * torch.exp(-u)


def wander(kind: str, times: FloatArray, scale: FloatArray, generator: np.random.Generator) -> FloatArray:
    """Draw errors [P, T] of unit deviation at increasing times [T], whose time scales are [P].

    A Matérn process and its derivatives are a Markov chain, so that all steps are one banded system.
    """
    size = (SMOOTHNESS[kind] + 1) // 2
    shift, stationary = np.eye(size, k=1), STATIONARY[size]
    shift[-1] -= [math.comb(size, i) for i in range(size)]
    slowing = shift + np.eye(size)  # nilpotent: all rates of the chain are one
    u = math.sqrt(SMOOTHNESS[kind]) * np.diff(times, prepend=times[0]) / scale[:, None]
    u = u[..., None, None]
    step = np.exp(-u) * (np.eye(size) + slowing * u + slowing @ slowing * u**2 / 2)
    step[:, 0] = 0
    added = stationary - step @ stationary @ step.swapaxes(-1, -2) + JITTER * np.eye(size)
    noise = generator.standard_normal((*u.shape[:2], size, 1))
    kicks = (np.linalg.cholesky(added) @ noise).ravel()
    bands = np.zeros((2 * size, len(kicks)))
    bands[0] = 1
    carried = step.reshape(-1, size, size)[1:]
    for row in range(size):
        for column in range(size):
            bands[size + row - column, column : len(kicks) - size : size] = -carried[:, row, column]
    states: FloatArray = solve_banded((2 * size - 1, 0), bands, kicks)
    return states.reshape(noise.shape[:3])[..., 0]
