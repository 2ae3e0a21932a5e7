"""What hides a patient, with all of their windows: DP-SGD, updates of patients, figures, and whole updates.

What is added covers every real number that leaves: Fourier weights are pairs of real numbers, both of which get theirs.
Noise is whole numbers, on a grid that the values are put on first: `secure/discrete.py`.

Shapes: `N` patients, `W` windows of the patient who has most, `D` tuned weights.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import grad, vmap

from distlfm.errors import UsageError
from distlfm.federated.refused import Reason, Refused
from distlfm.federated.secure.discrete import Random, chance, discrete_gaussian
from distlfm.federated.secure.noise import MARGIN
from distlfm.federated.secure.records import ARRAY_BITS
from distlfm.federated.settings import PrivacyConfig, RoundTask, SharedNoise
from distlfm.federated.site.cohort import groups
from distlfm.federated.site.tuning import Descent, Objective, Weights, all_finite, hold_back
from distlfm.federated.site.worktime import keep_time
from distlfm.lfo import Batch, Operator
from distlfm.lfo.tail import Features, Tail

GRAIN = 2.0**-30
"""The grid of numbers that get noise before they leave, in units of the largest contribution."""


def noised(sums: NDArray[np.float64], clip: float, noise: float, random: Random = os.urandom) -> NDArray[np.float64]:
    """Return sums [D] with discrete noise of `noise` times `clip`, on a grid that does not depend on the sums."""
    step = clip * GRAIN
    drawn = discrete_gaussian(noise * MARGIN / GRAIN, sums.size, random).reshape(sums.shape)
    found: NDArray[np.float64] = (np.rint(sums / step) + drawn) * step
    return found


def clipped(gradients: Tensor, clip: float) -> Tensor:
    """Rows [N, D] shortened to at most `clip`, in double precision; a row of zeros stays.

    A row that is not finite becomes one of zeros: if it spoiled the sum, all would see that one patient did so.
    """
    finite = torch.isfinite(gradients).all(1, keepdim=True)
    rows = torch.where(finite, gradients, torch.zeros_like(gradients)).double()
    length = rows.square().sum(1, keepdim=True).sqrt()
    return rows * (clip / length.clamp_min(clip))


def noisy_mean(gradients: Tensor, expected: float, privacy: PrivacyConfig, random: Random = os.urandom) -> Tensor:
    """Clipped gradients [N, D] of the patients in a step, added up with noise, over their expected number: [D]."""
    total = clipped(gradients, privacy.clip).sum(0).numpy()
    return torch.from_numpy(noised(total, privacy.clip, privacy.noise, random)) / expected


def tune_privately(
    operator: Operator, names: Sequence[str], near: Sequence[str], batch: Batch, task: RoundTask, privacy: PrivacyConfig
) -> Weights:
    """DP-SGD on an adapter's weights (Abadi et al. 2016), the records being patients; the ledger is the caller's.

    Each step takes each patient with probability `privacy.sample`. No loss is given: it would not be private. Nor does
    it fail because of the patients' data: weights that are no longer finite are left as they came.
    """
    if task.adapter == "none":
        refuse_whole()
    own = dict(operator.model.named_parameters())
    weights = {name: own[name].detach().clone().requires_grad_(True) for name in names}
    start = {name: weights[name].detach().clone() for name in near}
    gradients = PatientGradients(operator, batch, task)
    descent = Descent(list(weights.values()), task)
    expected = privacy.sample * (privacy.patients or gradients.num_patients)
    for _ in range(task.steps):
        keep_time()
        taken = np.flatnonzero(chance(privacy.sample, gradients.num_patients))
        each = gradients({name: one.detach() for name, one in weights.items()}, taken)
        mean = noisy_mean(each, expected, privacy)
        parts = mean.float().split([one.numel() for one in weights.values()])
        for one, part in zip(weights.values(), parts, strict=True):
            one.grad = part.reshape(one.shape).clone()
        hold_back(weights, start, task.mu)
        descent.step()
    found = {name: one.detach() for name, one in weights.items()}
    if not all_finite(found.values()):
        return {name: own[name].detach().clone() for name in names}
    operator.model.load_state_dict(found, strict=False)
    return found


def refuse_whole() -> NoReturn:
    """Noise on all weights of a network would leave nothing of what tens of patients can teach."""
    raise UsageError(
        "This site tunes with differential privacy, and the whole network is asked for.",
        "Set task.adapter to head or shift.",
    )


class PatientGradients:
    """The gradient of each patient's mean loss over their windows, [N, D]; patients are padded to W windows."""

    def __init__(self, operator: Operator, batch: Batch, task: RoundTask) -> None:
        self._tail, self._objective = Tail(operator.model), Objective(operator, task)
        self._grid = tuple(batch.values.shape[2:])
        rows = list(groups(batch.ids).values())
        most = max(len(one) for one in rows)
        self.num_patients = len(rows)
        at = torch.tensor([one + [one[0]] * (most - len(one)) for one in rows])
        self._share = torch.tensor([[1 / len(one)] * len(one) + [0.0] * (most - len(one)) for one in rows])
        seen = self._tail.features(batch.values, batch.mask)._asdict()
        self._seen = {name: one[at] for name, one in seen.items()}
        self._batch = {name: tensor[at] for name, tensor in batch.tensors.items()}
        # Tables that are made when first needed cannot be made inside of a transformation.
        one = {name: value[0] for name, value in self._seen.items()}, {n: v[0] for n, v in self._batch.items()}
        self._loss({}, *one, self._share[0])
        self._each: Callable[..., dict[str, Tensor]] = vmap(grad(self._loss), in_dims=(None, 0, 0, 0))
        self._apart: Callable[..., dict[str, Tensor]] = vmap(grad(self._loss), in_dims=(0, 0, 0, 0))

    def __call__(self, weights: Mapping[str, Tensor], patients: NDArray[np.intp]) -> Tensor:
        """Of some patients, by number; none of them is an empty answer."""
        size = sum(one.numel() for one in weights.values())
        if not len(patients):
            return torch.zeros(0, size)
        at = torch.from_numpy(patients)
        seen, batch = ({name: one[at] for name, one in part.items()} for part in (self._seen, self._batch))
        found = self._each(dict(weights), seen, batch, self._share[at])
        return torch.cat([found[name].flatten(1) for name in weights], 1)

    def apart(self, weights: Mapping[str, Tensor], patients: NDArray[np.intp]) -> dict[str, Tensor]:
        """Gradients [N, ...] where each of the patients has weights [N, ...] of their own."""
        at = torch.from_numpy(patients)
        seen, batch = ({name: one[at] for name, one in part.items()} for part in (self._seen, self._batch))
        return self._apart(dict(weights), seen, batch, self._share[at])

    def _loss(
        self, weights: Mapping[str, Tensor], seen: Mapping[str, Tensor], batch: Mapping[str, Tensor], share: Tensor
    ) -> Tensor:
        prediction = self._tail.predict(weights, Features(**seen), self._grid)
        windows = Batch(**batch, ids=())
        return (self._objective(prediction, windows) * share).sum()


def check_grain(vector: NDArray[np.float64], count: int, noise: SharedNoise) -> None:
    """Refuse a clip so small that rounding, when the mean is added to weights [D] and becomes whole numbers, is more
    than the part of it that `MARGIN` allows for.
    """
    rounding = 2.0**-ARRAY_BITS + count * float(np.spacing(np.abs(vector).max(initial=0.0)))
    least = math.sqrt(len(vector)) * rounding / (MARGIN - 1)
    if not least <= noise.clip or not math.isfinite(noise.multiplier * noise.clip):
        raise Refused(
            Reason.TASK,
            f"noise.clip is {noise.clip:.3g} and noise.multiplier {noise.multiplier:.3g}; with these weights the clip "
            f"is {least:.3g} at least, and both are finite.",
        )


def private_mean(figures: NDArray[np.float64], privacy: PrivacyConfig, random: Random = os.urandom) -> float:
    """The mean of a figure over patients [N], each held within ± bound, with noise."""
    held = np.clip(np.nan_to_num(figures), -privacy.bound, privacy.bound)
    total = noised(np.array([held.sum()]), privacy.bound, privacy.figures, random)
    return float(total[0]) / (privacy.patients or len(held))


def shortened(before: NDArray[np.float64], after: NDArray[np.float64], clip: float) -> NDArray[np.float64]:
    """The new weights [D], whose difference from the old ones is at most `clip` long; not finite, they are the old."""
    change = after - before if np.isfinite(after).all() else np.zeros_like(before)
    length = float(np.linalg.norm(change))
    held: NDArray[np.float64] = before + (change * min(1.0, clip / length) if length > 0 else change)
    return held


def summed_updates(
    operator: Operator, names: Sequence[str], batch: Batch, task: RoundTask, noise: SharedNoise
) -> NDArray[np.float64]:
    """Return the sum [D] of the updates of the patients who take part in a round, each at most `noise.clip` long.

    Each is made of the common weights and of the patient's own windows alone, by steps of gradient descent, all at
    once; so a patient more or less changes the sum by `noise.clip` at most.
    """
    own = dict(operator.model.named_parameters())
    gradients = PatientGradients(operator, batch, task)
    taken = np.flatnonzero(chance(noise.sample, gradients.num_patients))
    start = {name: own[name].detach().expand(len(taken), *own[name].shape) for name in names}
    size = sum(own[name].numel() for name in names)
    if not len(taken):
        return np.zeros(size)
    weights = start
    for _ in range(task.steps):
        keep_time()
        found = gradients.apart(weights, taken)
        weights = {name: one - task.lr * found[name] for name, one in weights.items()}
    changes = torch.cat([(weights[name] - start[name]).flatten(1) for name in names], 1)
    return np.asarray(clipped(changes, noise.clip).sum(0).numpy(), np.float64)
