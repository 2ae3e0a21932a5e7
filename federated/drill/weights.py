"""Weights that a coordinator could make to measure, to read a record in an update: the drill and tests attack by them.

First all sites but one are made silent, by a layer that stays with them. Then the hidden units of the network's first
head switch on one after another in time, so that the gradients of neighbours differ by one point of the record.
"""

from __future__ import annotations

import numpy as np
import torch

from distlfm.federated.codec import Vector
from distlfm.federated.settings import RoundTask
from distlfm.federated.site.work import Site, codec_of
from distlfm.instance import FloatArray
from distlfm.lfo import FourierOperator, Operator
from distlfm.lfo.tail import GATE, HIDDEN, PROJECTION, with_projection

LAYER, SHARED = GATE, PROJECTION
GAIN = 1e3
"""Of a hidden unit on the time channel: it is on after its threshold and off before."""
SILENT = -1e5
"""Value of the layer with which nothing passes it."""


def silenced(operator: Operator) -> torch.Tensor:
    """Return the layer as `deadening` leaves it at a site: shifts at `SILENT`, gains as they were."""
    layer = operator.model.get_parameter(LAYER).detach().clone()
    layer[len(layer) // 2 :] = SILENT
    return layer


def deadening(operator: Operator) -> tuple[FourierOperator, RoundTask]:
    """Return weights and a task that drive the layer which stays at a site to `SILENT` in one step."""
    hidden, width = operator.model.get_parameter(HIDDEN).shape
    outer = np.stack([np.ones(hidden), np.zeros(hidden)])
    model = with_projection(operator.model, np.zeros((hidden, width)), np.zeros(hidden), outer, np.array([1e3, 0.0]))
    task = RoundTask(steps=1, batch=0, optimiser="adam", lr=-SILENT, clip=None, shared=SHARED, local=(LAYER,))
    return model, task


def made_to_measure(
    operator: Operator, local: tuple[str, ...], batch: int, points: int
) -> tuple[FourierOperator, RoundTask]:
    """Return weights whose hidden units switch on one after another at the `points` of a series, and their task."""
    hidden, width = operator.model.get_parameter(HIDDEN).shape
    times = _channels(operator, points)[0, :, -1].numpy()
    inner = np.zeros((hidden, width))
    inner[:, -1] = GAIN
    outer = np.stack([np.full(hidden, 1e-3), np.zeros(hidden)])
    thresholds = ((times[1:] + times[:-1]) / 2)[:hidden]
    model = with_projection(operator.model, inner, -GAIN * thresholds, outer, np.array([5.0, 0.0]))
    shared = SHARED if local else (*SHARED, LAYER)
    return model, RoundTask(steps=1, batch=batch, optimiser="sgd", lr=1e-2, clip=None, shared=shared, local=local)


def recovered(operator: Operator, task: RoundTask, moved: Vector, points: int) -> FloatArray:
    """Return the network's input channels at single points [T, C], from how the opened mean differs from what was sent.

    moved: that difference, [D].
    """
    codec, parts, start = codec_of(operator.model, task), {}, 0
    for name, size in zip(codec.names, codec.sizes, strict=True):
        parts[name] = moved[start : start + size].reshape(codec.shapes[name])
        start += size
    inner = parts[HIDDEN]
    hidden, width = inner.shape
    gain = 1 + operator.model.get_parameter(LAYER)[:hidden].detach().double().numpy()
    slopes = inner / gain[:, None]
    channels = _channels(operator, points).shape[-1]
    ones = slopes[:, width - channels + _outputs(operator)]  # the mask's channel is one everywhere
    with np.errstate(all="ignore"):
        found = (slopes[:-1] - slopes[1:]) / (ones[:-1] - ones[1:])[:, None]
    return np.asarray(np.nan_to_num(found[:, -channels:]), np.float64)


def nearest_error(operator: Operator, site: Site, points: FloatArray) -> float:
    """Return the largest error of the recovered series against the window of the site that it is most like."""
    batch, outputs = site.windows("pairs"), _outputs(operator)
    errors = []
    for row in range(len(batch)):
        channels = operator.model.channels(batch.values[row : row + 1], batch.mask[row : row + 1])[0]
        truth = channels[0, 1 : 1 + len(points), :outputs].numpy()
        errors.append(float(np.abs(points[:, :outputs] - truth).max()))
    return min(errors)


def _outputs(operator: Operator) -> int:
    return len(operator.schema.outputs)


def _channels(operator: Operator, points: int) -> torch.Tensor:
    """The network's input [1, T, C] for a record of zeros."""
    blank = torch.zeros(1, _outputs(operator), points)
    return operator.model.channels(blank, torch.ones_like(blank))[0]
