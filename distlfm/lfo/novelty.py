"""How unlike the training data an input is: distances of several kinds of features from those of the training split.

Each kind has a Gaussian description (mean and shrunk covariance) of the training split. The logarithm of a distance is
given in standard deviations of the calibration split's, and the score is a soft maximum of these, in units of what
hardly any instance of that split exceeds. One is the limit; beyond it the answer comes with a sentence that says which
kind gave it away.

Where the equation can be held against the answer, what it leaves unexplained says most (`explain`). An answer is never
exact, and what is left unexplained by it is mostly its own error. A step of Gauss and Newton takes that part away: it
moves the parameters and a smooth correction of the force, each in units of the answer's own standard deviation, to
where the equation fits best. What remains is noise, unless the data do not follow the equation.

Shapes: `B` instances, `P` outputs, `L` forces, `T` times, `K` parameters, `F` features of a kind, `D` directions, `R`
windows of time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from distlfm.lfo.model import FourierOperator, OperatorOutput
from distlfm.lfo.spectral import local_fit, ridge, scatter, spline, table

WAVES = 14
"""Cosines that a correction of a force is made of."""

EXPLAIN_WINDOWS = 24
"""Parts of time in which what is unexplained is averaged."""

COARSE = 41
"""Times at which it is found out how moves change what is unexplained: roughly is enough."""

FREE = 0.1
"""Weight of a move by one standard deviation, in the variance of what is left in one window."""


TOGETHER = 32
"""Instances that are looked at together: each is moved in many directions."""


class Explained(NamedTuple):
    """left: [B, P, R], what remains, in units of the noise; moved: [B, 2], mean squares of the moves in standard

    deviations, of the forces and of the parameters.
    """

    left: Tensor
    moved: Tensor


def explain(
    model: FourierOperator, values: Tensor, prediction: OperatorOutput, noise: Tensor, residual: Tensor
) -> Explained:
    """For values [B, P, T] with noise of standard deviation [B, P], and the residual [B, P, T] of the prediction."""
    split = zip(*(one.split(TOGETHER) for one in (values, noise, residual, *prediction)), strict=True)
    pieces = [_explain(model, v, OperatorOutput(*predicted), n, left) for v, n, left, *predicted in split]
    return Explained(*(torch.cat(one) for one in zip(*pieces, strict=True)))


def _explain(
    model: FourierOperator, values: Tensor, prediction: OperatorOutput, noise: Tensor, residual: Tensor
) -> Explained:
    equation = model.equation
    assert equation is not None
    at = residual / noise.unsqueeze(-1) @ _windows(residual.shape[-1], residual.dtype, residual.device)
    start = at.flatten(1)  # [B, P·R]
    moves = (_moves(model, values, prediction) / noise[:, None, :, None]).flatten(2)  # [B, D, P·R]
    gram = moves @ moves.mT + ridge(moves.shape[1], FREE, moves.dtype, moves.device)
    step = torch.linalg.solve(gram, -(moves @ start.unsqueeze(-1)))  # [B, D, 1]
    left = start + (moves.mT @ step).squeeze(-1)
    forces, params = step.squeeze(-1).square().split([prediction.force.shape[1] * WAVES, len(equation.learned)], -1)
    return Explained(left.view_as(at), torch.stack([forces.mean(-1), params.mean(-1)], -1))


def _moves(model: FourierOperator, values: Tensor, prediction: OperatorOutput) -> Tensor:
    """How the residual's averages [B, D, P, R] change if a force or a parameter is moved by a standard deviation.

    A force acts on the rates at its own time. So one move of a whole force tells those by each of its waves.
    """
    equation = model.equation
    assert equation is not None
    batch, forces = prediction.force.shape[:2]
    thin = spline(values.shape[-1], COARSE, values.dtype, values.device).T
    lifted, ones = _directions(forces, prediction.params.shape[1], equation.learned, values.dtype, values.device)
    force_sd = (0.5 * prediction.force_logvar.mean(-1)).exp().unsqueeze(1)
    params_sd = (0.5 * prediction.params_logvar).exp().unsqueeze(1)
    force = (prediction.force @ thin).unsqueeze(1) + (force_sd * lifted).unsqueeze(-1)
    params = prediction.params.unsqueeze(1) + params_sd * ones
    start, rates = equation.start_and_rates(
        (values @ thin).repeat_interleave(len(ones), 0),
        force.flatten(0, 1),
        model.normal.physical(params.flatten(0, 1)),
    )
    start, rates = (one.unflatten(0, (batch, len(ones))) for one in (start, rates))
    change = rates[:, 1:] - rates[:, :1]
    by_waves, by_one = _integrals(equation.step(COARSE), values.dtype, values.device)
    by_forces = (change[:, :forces] @ by_waves).unflatten(-1, (WAVES, EXPLAIN_WINDOWS)).transpose(2, 3).flatten(1, 2)
    by_params = change[:, forces:] @ by_one + (start[:, 1 + forces :] - start[:, :1]).unsqueeze(-1)
    return -torch.cat([by_forces, by_params], 1)


@table
def _windows(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Averages over windows of what is known at n times, [n, R]."""
    return local_fit(size, 0.5 / EXPLAIN_WINDOWS, EXPLAIN_WINDOWS)[0].T.to(device, dtype)


@table
def _integrals(step: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """The windows' averages of the integral of a rate that is known at COARSE times, [COARSE, R]; before it, the same

    of the rate times each cosine of mean square one, [COARSE, WAVES · R].
    """
    weights = torch.ones(COARSE, COARSE, dtype=torch.float64).triu() - 0.5 * torch.eye(COARSE, dtype=torch.float64)
    weights[0] = 0.5
    weights[0, 0] = 0
    by_one = step * weights @ _windows(COARSE, torch.float64, torch.device("cpu"))
    times = torch.linspace(0, math.pi, COARSE, dtype=torch.float64)
    waves = torch.cos(torch.arange(WAVES, dtype=torch.float64) * times.unsqueeze(-1))
    waves[:, 1:] *= math.sqrt(2)
    by_waves = (waves.unsqueeze(-1) * by_one.unsqueeze(1)).flatten(1)
    return by_waves.to(device, dtype), by_one.to(device, dtype)


@table
def _directions(
    forces: int, params: int, chosen: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """What is added to the forces, [1 + L + chosen, L], and to the parameters, [1 + L + chosen, K].

    In standard deviations: first nothing; then, one at a time, one to each force, and one to each chosen parameter.
    """
    number = 1 + forces + len(chosen)
    lifted, ones = torch.zeros(number, forces, dtype=dtype), torch.zeros(number, params, dtype=dtype)
    lifted[1 : 1 + forces] = torch.eye(forces, dtype=dtype)
    ones[torch.arange(1 + forces, number), torch.tensor(chosen, dtype=torch.long)] = 1
    return lifted.to(device), ones.to(device)


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
"""Noise that is smaller than this part of the fluctuations cannot be told apart from what grids and splines leave."""

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
def features(model: FourierOperator, values: Tensor, mask: Tensor, prediction: OperatorOutput) -> dict[str, Tensor]:
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
    numbers = {
        "size": torch.cat([means, log_spread], -1),
        "roughness": torch.cat([log_rough, log_rough - log_spread], -1),
        "seen": mask.mean(dims) / SEEN,
    }
    if model.equation is None:
        return numbers | {"course": prediction.summary, "doubt": doubt}
    residual = model.equation.residual(values, prediction.force, normal.physical(prediction.params))
    noise = (rough.square() + (LEAST_NOISE * spread).square() + 1e-12).sqrt() * normal.value_sd
    explained = explain(model, values, prediction, noise, residual)
    residual = residual / normal.value_sd.view(wide)
    start = residual[..., : max(2, grid[0] // 8)]
    numbers["equation"] = _log(torch.cat([residual.square().mean(-1).sqrt(), start.abs().mean(-1)], -1))
    numbers["answer"] = torch.cat([numbers["equation"], doubt, prediction.params, log_rough, log_spread], -1)
    left = explained.left.square().mean(-1)
    numbers["unexplained"] = _log(torch.cat([left, left.mean(-1, keepdim=True)], -1))
    numbers["moved"] = _log(explained.moved)
    parts = residual @ local_fit(grid[0], 0.5 / WINDOWS, WINDOWS, v.dtype, v.device)[0].T
    expected = rough.mean(-1) + 0.02 * (prediction.unit / normal.force_sd).mean(-1)
    numbers["residual"] = (parts / expected.view(-1, 1, 1)).flatten(1)
    return numbers


def _log(x: Tensor) -> Tensor:
    return (x + 1e-4).log()


@dataclass(frozen=True)
class Kind:
    """mean: [F], whiten: [F, F] so that distances are lengths of (x − mean) @ whiten.

    typical, spread: mean and standard deviation of the distance's logarithm.
    """

    mean: Tensor
    whiten: Tensor
    typical: float
    spread: float


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
            away = ((torch.nan_to_num(held_out[name]).double() - mean) @ whiten).square().mean(-1).sqrt()
            logs = away.clamp_min(1e-9).log()
            typical, spread = max(float(logs.mean()), math.log(LEAST[0])), max(float(logs.std()), LEAST[1])
            kinds[name] = Kind(mean, whiten, typical, spread)
        # About the largest distance, but several that are large say more than one.
        every = Novelty(kinds, 1.0).distances(held_out).logsumexp(-1)
        limit = max(1.0, float(torch.quantile(every, RARELY)))
        if "seen" not in kinds and "seen" in train:
            kinds["seen"] = _always_seen(train["seen"], max(MISSING, hidden), limit)
        return Novelty(kinds, limit)

    def score(self, found: Mapping[str, Tensor]) -> tuple[Tensor, list[str]]:
        """The score [B], 0 or more, and the kind that it comes from."""
        every, names = self.distances(found), list(self.kinds)
        return every.logsumexp(-1).clamp_min(0) / self.limit, [names[i] for i in every.argmax(-1).tolist()]

    def distances(self, found: Mapping[str, Tensor]) -> Tensor:
        """How far from usual, by each kind [B, kinds], in standard deviations of what is usual."""
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
        return {"kinds": {name: dict(vars(kind)) for name, kind in self.kinds.items()}, "limit": self.limit}

    @staticmethod
    def of(state: Mapping[str, Any]) -> Novelty | None:
        """From what `state` gave; None from nothing."""
        if not state:
            return None
        return Novelty({name: Kind(**kind) for name, kind in state["kinds"].items()}, state["limit"])


def _always_seen(x: Tensor, allowed: float, limit: float) -> Kind:
    """Where all of the training split was observed alike: the limit is a share of observations that are missing.

    For several outputs, the root mean square of their shares.
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
