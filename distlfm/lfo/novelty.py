"""How unlike the training data an input is: distances of several kinds of features from those of the training split.

Each kind has a Gaussian description (mean and shrunk covariance) of the training split. The logarithm of a distance is
told in standard deviations of the calibration split's, and the score is a soft maximum of these, in units of what
hardly any instance of that split exceeds. One is the limit; beyond it the answer comes with a sentence that says which
kind gave it away. Where the equation can be held against the answer, what it leaves unexplained says most.

Shapes: `B` instances, `P` outputs, `F` features of a kind.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from distlfm.lfo.derivatives import local_fit, scatter
from distlfm.lfo.explain import explain
from distlfm.lfo.model import FourierOperator, Prediction

RARELY = 0.99
"""The share of the calibration split that stays below the limit."""

SHRINK = 0.05
"""Part of the variances that is added to a covariance's diagonal."""

ROUGH_WINDOW = 0.025
"""Fluctuations faster than this part of the domain are roughness."""

WINDOWS = 11
"""Parts of time in which what the equation leaves unexplained is averaged."""

SEEN = 0.05
"""A share of missing observations that is not worth mentioning."""

MISSING = 0.25
"""The share of missing observations beyond which an answer warns, where none are missing in training."""

SHARPNESS = 0.05
"""How far below that share, in its logarithm, they begin to count."""

CONSTANT = 1e-6
"""Features whose standard deviations are all below this are the same for all of the training split."""

LEAST_NOISE = 0.005
"""Noise that is smaller than this part of the fluctuations is not told from what grids and splines leave."""

LEAST = (0.5, 0.1)
"""The least typical distance, and the least standard deviation of its logarithm: constant features have neither."""

SENTENCES = {
    "size": "its level or the size of its fluctuations is not what the training data have",
    "roughness": "it is rougher, or smoother, than the training data",
    "course": "its course is unlike those of the training data",
    "doubt": "the operator is less, or more, certain than it was on the training data",
    "seen": "it was observed at other points than the training data",
    "unexplained": "no force and parameters near those found for it explain it by the equation",
    "moved": "the equation asks for quite another force, or other parameters, than were found for it",
    "residual": "the force and parameters found for it do not explain it by the equation",
    "equation": "the force and parameters found for it do not explain it by the equation",
    "answer": "such parameters, with such certainty, are not what the operator finds for the training data",
}


@torch.no_grad()
def features(model: FourierOperator, values: Tensor, mask: Tensor, prediction: Prediction) -> dict[str, Tensor]:
    """Features [B, F] of each kind."""
    normal, grid = model.normal, values.shape[2:]
    wide = (-1, *(1,) * len(grid))
    v = (values - normal.value_mean.view(wide)) / normal.value_sd.view(wide)
    dims = tuple(range(2, v.dim()))
    means = v.mean(dims)
    spread = (v - means.view(*means.shape, *wide[1:])).square().mean(dims).sqrt()
    real = model.thinned(mask).round()
    rough = ((scatter(model.thinned(v), ROUGH_WINDOW) * real).sum(dims) / real.sum(dims).clamp_min(1)).sqrt()
    log_rough, log_spread = _log(torch.stack([rough, spread])).unbind()
    certainty = prediction.force_logvar.flatten(2).mean(-1) - 2 * prediction.unit.log()
    doubt = torch.cat([certainty, prediction.params_logvar], -1)
    found = {
        "size": torch.cat([means, log_spread], -1),
        "roughness": torch.cat([log_rough, log_rough - log_spread], -1),
        "seen": mask.mean(dims) / SEEN,
    }
    if model.equation is None:
        return found | {"course": prediction.summary, "doubt": doubt}
    residual = model.equation.residual(values, prediction.force, normal.physical(prediction.params))
    noise = (rough.square() + (LEAST_NOISE * spread).square() + 1e-12).sqrt() * normal.value_sd
    explained = explain(model, values, prediction, noise, residual)
    residual = residual / normal.value_sd.view(wide)
    start = residual[..., : max(2, grid[0] // 8)]
    found["equation"] = _log(torch.cat([residual.square().mean(-1).sqrt(), start.abs().mean(-1)], -1))
    found["answer"] = torch.cat([found["equation"], doubt, prediction.params, log_rough, log_spread], -1)
    left = explained.left.square().mean(-1)
    found["unexplained"] = _log(torch.cat([left, left.mean(-1, keepdim=True)], -1))
    found["moved"] = _log(explained.moved)
    parts = residual @ local_fit(grid[0], 0.5 / WINDOWS, WINDOWS, v.dtype, v.device)[0].T
    expected = rough.mean(-1) + 0.02 * (prediction.unit / normal.force_sd).mean(-1)
    found["residual"] = (parts / expected.view(-1, 1, 1)).flatten(1)
    return found


def soft_maximum(distances: Tensor) -> Tensor:
    """log Σ exp [B] of distances [B, kinds]: about the largest, but several that are large say more than one."""
    return distances.logsumexp(-1)


def _log(x: Tensor) -> Tensor:
    return (x + 1e-4).log()


@dataclass(frozen=True)
class Kind:
    """mean: [F], whiten: [F, F] so that distances are lengths of (x − mean) @ whiten.

    typical, spread: mean and standard deviation of the distance's logarithm.
    """

    mean: Tensor
    whiten: Tensor
    typical: float = 0.0
    spread: float = 1.0

    def distance(self, x: Tensor) -> Tensor:
        """How far [B] from usual, in standard deviations of what is usual."""
        away = ((x.double() - self.mean) @ self.whiten).square().mean(-1).sqrt()
        return (away.clamp_min(1e-9).log() - self.typical) / self.spread


@dataclass(frozen=True)
class Novelty:
    """The kinds by name, and the limit of the largest of their distances."""

    kinds: Mapping[str, Kind]
    limit: float

    @staticmethod
    def fit(train: Mapping[str, Tensor], held_out: Mapping[str, Tensor], hidden: float = 0.0) -> Novelty:
        """From the features [instances, F] of each kind, of the training and of the calibration split.

        hidden: the largest share of observations that was hidden in training, of which the splits do not tell.
        """
        kinds = {}
        for name, x in train.items():
            if float(x.std(0).max()) < CONSTANT:  # nothing is known of what else it might be
                continue
            mean, whiten = _describe(torch.nan_to_num(x.double()))
            logs = Kind(mean, whiten).distance(torch.nan_to_num(held_out[name]))
            typical, spread = max(float(logs.mean()), math.log(LEAST[0])), max(float(logs.std()), LEAST[1])
            kinds[name] = Kind(mean, whiten, typical, spread)
        every = soft_maximum(Novelty(kinds, 1.0).distances(held_out))
        limit = max(1.0, float(torch.quantile(every, RARELY)))
        if "seen" not in kinds and "seen" in train:
            kinds["seen"] = _always_seen(train["seen"], max(MISSING, hidden), limit)
        return Novelty(kinds, limit)

    def score(self, found: Mapping[str, Tensor]) -> tuple[Tensor, list[str]]:
        """The score [B], 0 or more, and the kind that it comes from."""
        every, names = self.distances(found), list(self.kinds)
        return soft_maximum(every).clamp_min(0) / self.limit, [names[i] for i in every.argmax(-1).tolist()]

    def distances(self, found: Mapping[str, Tensor]) -> Tensor:
        """Those of all kinds, [B, kinds]: as `Kind.distance`, in one go."""
        mean, whiten, shares, typical, spread = self._together
        x = torch.nan_to_num(torch.cat([found[name] for name in self.kinds], -1).double())
        away = (((x - mean) @ whiten).square() @ shares).sqrt()
        return (away.clamp_min(1e-9).log() - typical) / spread

    @cached_property
    def _together(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Mean [F] and whitening [F, F] of all features, shares [F, kinds], and typical and spread [kinds]."""
        every = list(self.kinds.values())
        shares = [torch.full((len(kind.mean), 1), 1 / len(kind.mean), dtype=torch.float64) for kind in every]
        return (
            torch.cat([kind.mean for kind in every]),
            torch.block_diag(*(kind.whiten for kind in every)),
            torch.block_diag(*shares),
            torch.tensor([kind.typical for kind in every], dtype=torch.float64),
            torch.tensor([kind.spread for kind in every], dtype=torch.float64),
        )

    def state(self) -> dict[str, Any]:
        kinds = {
            name: {"mean": kind.mean, "whiten": kind.whiten, "typical": kind.typical, "spread": kind.spread}
            for name, kind in self.kinds.items()
        }
        return {"kinds": kinds, "limit": self.limit}

    @staticmethod
    def of(state: Mapping[str, Any]) -> Novelty | None:
        """From what `state` gave; None from nothing."""
        if not state:
            return None
        return Novelty({name: Kind(**kind) for name, kind in state["kinds"].items()}, state["limit"])


def _always_seen(x: Tensor, allowed: float, limit: float) -> Kind:
    """Where all of the training split was observed alike: the limit is a share of observations that are missing.

    Of several outputs, the root mean square of their shares.
    """
    mean = x.double().mean(0)
    typical = math.log(allowed / SEEN) - SHARPNESS * limit
    return Kind(mean, torch.eye(len(mean), dtype=torch.float64), typical, SHARPNESS)


def _describe(x: Tensor) -> tuple[Tensor, Tensor]:
    mean = x.mean(0)
    centred = x - mean
    covariance = centred.mT @ centred / max(1, len(x) - 1)
    diagonal = covariance.diagonal()
    floor = 1e-6 + 1e-3 * diagonal.mean() + (diagonal < 1e-9).double()
    covariance = covariance + torch.diag(SHRINK * diagonal + floor)
    values, vectors = torch.linalg.eigh(covariance)
    return mean, vectors / values.sqrt()
