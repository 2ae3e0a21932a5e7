"""Weights that a coordinator could make to measure, to read a record in an update: the drill and tests attack by them.

First all sites but one are made silent, by a layer that stays with them. Then the hidden units of the network's first
head switch on one after another in time, so that the gradients of neighbours differ by one point of the record.

Spies need no silent sites: some hidden units are on for one patient of all sites alone, one after another. Their
outer weights are small, so that the other units, which are decoys, give each layer its patients and its strength.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch

from distlfm.federated.codec import Vector
from distlfm.federated.settings import RoundTask
from distlfm.federated.site.work import Site, codec_of
from distlfm.instance import FloatArray
from distlfm.lfo import FourierOperator, Operator
from distlfm.lfo.tail import GATE, HIDDEN, PROJECTION, projection_of, with_projection

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
    inner = _inner(operator, task, moved)
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


SPIES = 12
"""Hidden units that are on for one patient alone; the others are decoys."""
STEEP = 3.0
"""How fast a spy is switched on in time."""
FAINT = 0.002
"""Outer weight of a spy, which its update is in proportion to; a sum holds far smaller numbers."""
SPIED = ("lift.*", "layers.*", *SHARED, LAYER)
FITS = (1e-3, 3e-3, 1e-2, 3e-2, 0.1)
"""Strengths of the ridge with which a series is solved for; a coordinator looks at all of them."""


@dataclass(frozen=True)
class Target:
    """The patient whom a direction tells best from all others. sign: of the channels that hold levels and size. place:
    the patient's there. series: the record [T, P], which a coordinator does not know."""

    sign: tuple[int, ...]
    place: float
    series: FloatArray


def target_of(operator: Operator, sites: Iterable[Site]) -> Target:
    """Find it by looking; a coordinator finds it by trying."""
    seen = []
    for site in sites:
        batch = site.windows("pairs")
        seen.append(operator.model.channels(batch.values, batch.mask)[0].double().numpy())
    known, outputs = np.concatenate(seen), _outputs(operator)
    best: tuple[float, Target] | None = None
    for sign in itertools.product((-1, 0, 1), repeat=outputs + 1):
        places = known[:, 0, 3 * outputs : 4 * outputs + 1] @ np.array(sign, np.float64)
        first, second = np.argsort(-places)[:2]
        gap = float(places[first] - places[second])
        if best is None or gap > best[0]:
            best = gap, Target(sign, float(places[first]), known[first, :, :outputs])
    assert best is not None
    return best[1]


def spying(operator: Operator, target: Target, late: float) -> tuple[FourierOperator, RoundTask, FloatArray]:
    """Return weights with spies, their task, and the times [SPIES] at which they switch on for the target.

    The weights are within `drift: 10` of the first operator. late: shift of these times, in
    units of their distance.
    """
    model, outputs = copy.deepcopy(operator.model), _outputs(operator)
    head = projection_of(model)
    lift, narrow = (cast("torch.nn.Linear", model.lift[place]) for place in (0, 2))
    hidden = len(head.inner)
    shift = 10 * max(float(head.gate.detach().abs().max()), 0.1)
    gain, times = 1 + 0.8 * shift, -1 + 2 * (np.arange(SPIES) + 0.5 + late) / SPIES
    with torch.no_grad():
        half = len(lift.weight) // 2
        for one in (*model.layers.parameters(), *lift.parameters(), *narrow.parameters(), head.modulate):
            one.zero_()
        # Of silu(x) − silu(−x) = x the lifting is linear: how far a patient is from the target, in two channels.
        place = 3 * outputs
        lift.weight[:half, place : place + outputs + 1] = 0.5 * torch.tensor(target.sign, dtype=torch.float32)
        lift.weight[half:] = -lift.weight[:half]
        lift.bias[:half], lift.bias[half:] = -0.5 * target.place, 0.5 * target.place
        narrow.weight[:2, :half], narrow.weight[:2, half:] = 0.4, -0.4
        head.gate[:hidden], head.gate[hidden:] = gain - 1, 0.0
        head.inner[:SPIES] = 0.0
        head.inner[:SPIES, :2], head.inner[:SPIES, -1] = 1.7, STEEP / gain
        on = torch.tensor(-STEEP * times, dtype=torch.float32)
        moved = on.clamp(-0.75 * shift, 0.75 * shift)
        head.gate[hidden : hidden + SPIES] = moved
        head.bias[:SPIES] = (on - moved) / gain
        head.outer[:, :SPIES] = torch.tensor([[FAINT], [0.0]])
    return model, RoundTask(steps=1, batch=0, optimiser="sgd", lr=0.5, shared=SPIED), times


def spied(
    operator: Operator, task: RoundTask, moved: Sequence[Vector], times: Sequence[FloatArray], points: int
) -> list[FloatArray]:
    """Return the series [T, P] that opened means tell of, for each strength of the fit. moved: as for `recovered`."""
    outputs, clock = _outputs(operator), _channels(operator, points)[0, :, -1].double().numpy()
    ramps = np.concatenate([STEEP * (clock - one[:, None]) for one in times])
    switched = 1 / (1 + np.exp(-ramps))
    slopes = switched * (1 + ramps * (1 - switched))
    channels = _channels(operator, points).shape[-1]
    seen = np.concatenate([_inner(operator, task, one)[:SPIES, -channels:] for one in moved])
    left, sizes, right = np.linalg.svd(slopes, full_matrices=False)
    found = []
    for strength in FITS:
        solved = right.T @ ((sizes / (sizes**2 + strength**2))[:, None] * (left.T @ seen))
        with np.errstate(all="ignore"):
            found.append(np.nan_to_num(solved[:, :outputs] / solved[:, outputs : outputs + 1]))
    return found


def likeness(target: Target, found: Iterable[FloatArray]) -> float:
    """Return the correlation of the target's series with the likest of those found, the least over its outputs."""
    outputs = range(target.series.shape[1])
    return max(
        min(float(np.corrcoef(one[:, k], target.series[:, k])[0, 1]) for k in outputs)
        for one in found
        if np.ptp(one, axis=0).all()
    )


def _inner(operator: Operator, task: RoundTask, moved: Vector) -> FloatArray:
    """How far the head's inner weights [hidden, width] have moved."""
    codec, start = codec_of(operator.model, task), 0
    for name, size in zip(codec.names, codec.sizes, strict=True):
        if name == HIDDEN:
            break
        start += size
    return np.asarray(moved[start : start + size].reshape(codec.shapes[name]), np.float64)


def _outputs(operator: Operator) -> int:
    return len(operator.schema.outputs)


def _channels(operator: Operator, points: int) -> torch.Tensor:
    """The network's input [1, T, C] for a record of zeros."""
    blank = torch.zeros(1, _outputs(operator), points)
    return operator.model.channels(blank, torch.ones_like(blank))[0]
