"""The answer for one instance: force and outputs with their bands, parameters with intervals, and what is not known.

Shapes: `L` forces, `P` outputs, `Q` times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distlfm.answer import Answer, Band, Draws
from distlfm.answer.base import NUM_DRAWS
from distlfm.errors import UsageError
from distlfm.inference.base import Fit, Mixture, Posterior
from distlfm.inference.findings.estimates import Direction, Estimate, estimates, strain, undetermined
from distlfm.inference.optimise import Status
from distlfm.instance import FloatArray, Instance
from distlfm.runtime.process import torch_threads

LEVELS = (0.68, 0.95)
FAILED = ("diverged", "failed")
"""Statuses of instances without an answer: no finite value was found, or fitting it raised an error."""


@dataclass(frozen=True)
class Prediction:
    """times: [Q]; force: bands of [L, Q]; outputs: bands of [P, Q], of the curve and not of a new measurement.

    positions: [Q, d] of a field.
    """

    times: FloatArray
    force: Band
    outputs: Band
    positions: FloatArray | None = None


@dataclass(frozen=True, repr=False)
class FitResult(Answer):
    """One instance's fit. `predict` answers at any times after the first observation, beyond the last one too.

    bound: what the method maximised, comparable between fits of one method only: the ELBO of a variational fit; the log
    joint density of data and unknowns at the mode where the force is integrated out; that of the slopes for a
    pre-estimate. trace: the same, iteration by iteration.
    """

    instance: Instance
    method: str
    status: str
    advice: str
    bound: float
    trace: FloatArray
    effective_draws: float
    seconds: float
    force_names: tuple[str, ...]
    estimates: tuple[Estimate, ...]
    undetermined: tuple[Direction, ...]
    grid: Prediction
    at_data: Prediction
    noise_sd: FloatArray | None
    posterior: Posterior
    row: int
    relative_noise: FloatArray | None = None
    at_truth: Prediction | None = None
    """Where the truth is known, if it was asked for together with the rest."""

    @property
    def id(self) -> str:
        return self.instance.id

    @property
    def ok(self) -> bool:
        return self.status not in FAILED

    @property
    def trustworthy(self) -> bool:
        return self.ok

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.posterior.model.system.outputs

    @property
    def times(self) -> FloatArray:
        return self.grid.times

    @property
    def positions(self) -> FloatArray | None:
        return self.grid.positions

    @property
    def force(self) -> Band:
        return self.grid.force

    @property
    def outputs(self) -> Band:
        return self.grid.outputs

    @property
    def has_outputs(self) -> bool:
        return True

    def _headline(self) -> str:
        return f"fit, {self.status} ({self.method})"

    def predict(self, times: Sequence[float] | FloatArray, positions: FloatArray | None = None) -> Prediction:
        """Force and outputs at `times` [Q], and for a field at `positions` [Q, d]."""
        if self.instance.positions is not None:
            points = self._places(times, positions)
            return predict(self.posterior, torch.tensor([self.row]), torch.from_numpy(points).unsqueeze(0))[0]
        wanted, order = self._asked(times)
        found = predict(self.posterior, torch.tensor([self.row]), torch.from_numpy(wanted[order]).unsqueeze(0))[0]
        back = np.argsort(order, kind="stable")
        return Prediction(wanted, _reordered(found.force, back), _reordered(found.outputs, back))

    def draws(
        self,
        count: int = NUM_DRAWS,
        times: Sequence[float] | FloatArray | None = None,
        positions: FloatArray | None = None,
        seed: int = 0,
    ) -> Draws:
        """Draw `count` times from the joint posterior: parameters, a force, and the outputs that this force drives.

        times: [Q], by default those of `force`; a field takes positions [Q, d] with them. A fit through the solver
        (`nested`, `variational`, `preestimate`) has as many different draws as were asked of it when it was fitted, and
        repeats them beyond that.
        """
        self._drawable(count)
        if times is None:
            times, positions = self.grid.times, self.grid.positions
        if self.instance.positions is not None:
            points = self._places(times, positions)
            wanted, order = points[:, 0], np.arange(len(points))
            at = torch.from_numpy(points).unsqueeze(0)
        else:
            wanted, order = self._asked(times)
            at = torch.from_numpy(wanted[order]).unsqueeze(0)
        back = np.argsort(order, kind="stable")
        with torch.no_grad(), torch_threads(1):  # the matrices are small, and more threads only wait for each other
            force, outputs, z = self.posterior.draw(torch.tensor([self.row]), at, count, seed)
        curves = force[:, 0].numpy()[..., back], outputs[:, 0].numpy()[..., back]
        names = (self.force_names, self.output_names)
        places = None if self.instance.positions is None else points[:, 1:]
        return Draws(wanted, *curves, self._drawn_parameters(z[:, 0]), *names, places)

    def _drawn_parameters(self, z: Tensor) -> dict[str, FloatArray]:
        """Natural values [S] by name of the unknowns z [S, n]; known ones are left out, as in `parameters`."""
        space = self.posterior.model.space
        values = space.unpack(z)
        found = [values[one.name][..., i].numpy() for one in space.parameters for i in one.free]
        return dict(zip(space.free_names, found, strict=True))

    def _drawable(self, count: object) -> None:
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 1:
            raise UsageError(
                f"The number of draws is {_brief(count)}.", "Write draws(200), or draws(200, times=[0.0, 1.0])."
            )
        if not self.ok:
            raise UsageError(f"The fit of {self.id!r} {self.status}: there is nothing to draw from.", self.advice)

    def _places(self, times: Sequence[float] | FloatArray, positions: FloatArray | None) -> FloatArray:
        """Times and positions as points [Q, 1 + d]."""
        assert self.instance.positions is not None
        dims = self.instance.positions.shape[1]
        wanted = np.asarray(times, dtype=np.float64)
        where = None if positions is None else np.asarray(positions, dtype=np.float64)
        if where is not None and where.ndim == 1 and dims == 1:
            where = where[:, None]
        if where is None or wanted.ndim != 1 or where.shape != (len(wanted), dims) or len(wanted) == 0:
            raise UsageError(
                "A field is asked at times and positions, and they do not fit together.",
                f"Give as many positions as times, each of {dims} numbers.",
            )
        points = np.column_stack([wanted, where])
        if not np.isfinite(points).all():
            raise UsageError("A time or a position to predict at is not finite.", "Give numbers.")
        return points

    def _asked(self, times: Sequence[float] | FloatArray) -> tuple[FloatArray, NDArray[np.intp]]:
        """The times as an array, and the order that sorts them."""
        wanted = np.asarray(times, dtype=np.float64)
        first = float(self.instance.times[0])
        if wanted.ndim != 1 or len(wanted) == 0 or not np.isfinite(wanted).all():
            raise UsageError("Times to predict at must be a list of finite numbers.", "Give at least one.")
        if wanted.min() < first:
            raise UsageError(
                f"Cannot predict at {wanted.min():g}: the data begin at {first:g}, and so does the equation.",
                "Ask for later times.",
            )
        return wanted, np.argsort(wanted, kind="stable")


def _brief(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 40 else f"{text[:39]}…"


def _reordered(band: Band, index: NDArray[np.intp]) -> Band:
    return Band(*(getattr(band, name)[:, index] for name in Band.__dataclass_fields__))


def _first(found: Prediction, count: int) -> Prediction:
    """A prediction at its first `count` points: what follows pads it to the longest instance of a batch."""
    if len(found.times) <= count:
        return found
    here = np.arange(count)
    positions = None if found.positions is None else found.positions[:count]
    return Prediction(found.times[:count], _reordered(found.force, here), _reordered(found.outputs, here), positions)


def predict(posterior: Posterior, rows: Tensor, times: Tensor) -> list[Prediction]:
    """Predictions of the instances `rows` [A] at times [A, Q], or at points [A, Q, 1 + d] of a field."""
    with torch.no_grad():
        predicted = posterior.predict(rows, times)
        force, outputs = _bands(predicted.force), _bands(predicted.outputs)
    if times.dim() == 2:
        return [Prediction(times[i].numpy(), force[i], outputs[i]) for i in range(len(rows))]
    points = times.numpy()
    return [Prediction(points[i, :, 0], force[i], outputs[i], points[i, :, 1:]) for i in range(len(rows))]


def predict_together(posterior: Posterior, rows: Tensor, asked: Sequence[Tensor]) -> list[list[Prediction]]:
    """Predictions at several sets of times, each [A, Q]: at all of them at once where that is cheaper."""
    if not posterior.at_once or any(times.dim() != 2 for times in asked):
        return [predict(posterior, rows, times) for times in asked]
    wanted = torch.cat(list(asked), -1)
    if bool((wanted == wanted[:1]).all()):
        once, place = torch.unique(wanted[0], return_inverse=True)
        times, back = once.expand(len(wanted), -1), place.expand(len(wanted), -1).numpy()
    else:
        times, order = wanted.sort(dim=-1, stable=True)
        back = torch.argsort(order, -1).numpy()
    everywhere = predict(posterior, rows, times)
    parts, first = [], 0
    for part in asked:
        here = slice(first, first + part.shape[-1])
        first = here.stop
        parts.append(
            [
                Prediction(one.times[at], _reordered(one.force, at), _reordered(one.outputs, at))
                for one, at in zip(everywhere, back[:, here], strict=True)
            ]
        )
    return parts


def _true_times(instances: Sequence[Instance]) -> Tensor | None:
    """The times [B, Q] at which all of these know the truth, if they are equally many and can be predicted at."""
    truths = [one.truth for one in instances]
    times = [one.times for one in truths if one is not None and one.positions is None]
    if len(times) < len(instances) or len({len(one) for one in times}) > 1:
        return None
    known = all(one is not None and (one.force is not None or one.outputs is not None) for one in truths)
    starts = [instance.times[0] for instance in instances]
    usable = all(
        len(one) and one[0] >= first and (np.diff(one) >= 0).all() for one, first in zip(times, starts, strict=True)
    )
    return torch.from_numpy(np.stack(times)) if known and usable else None


def _bands(mixture: Mixture) -> list[Band]:
    columns = [mixture.mean, mixture.variance.sqrt()]
    for level in LEVELS:
        columns += mixture.interval(level)
    return [Band(*(column[i].numpy() for column in columns)) for i in range(len(columns[0]))]


def results_of(
    fit: Fit,
    instances: Sequence[Instance],
    grids: Tensor,
    seconds: float,
    predicted: tuple[list[Prediction], list[Prediction]] | None = None,
) -> list[FitResult]:
    """One result an instance; `seconds` is the batch's, shared evenly.

    grids: times [B, Q] to predict at, or points [B, Q, 1 + d] of a field. predicted: on the grids and at the data, if
    it is known already.
    """
    posterior = fit.posterior
    rows = torch.arange(len(instances))
    at_truth: list[Prediction] | None = None
    if predicted is None:
        asked = [grids, posterior.observations.points]
        truth = _true_times(instances)
        on_grid, at_data, *more = predict_together(posterior, rows, asked if truth is None else [*asked, truth])
        at_truth = more[0] if more else None
    else:
        on_grid, at_data = predicted
    parameters, directions = estimates(posterior), undetermined(posterior)
    unknowns = posterior.unknowns()
    z = (unknowns.weights.unsqueeze(-1) * unknowns.proposals).sum(0)
    middle = posterior.model.space.unpack(z)
    noise, relative = middle.get("noise"), middle.get("relative_noise")
    results = []
    for b, instance in enumerate(instances):
        status = Status(int(fit.status[b]))
        notice = fit.notices[b] if fit.notices else ""
        strained = strain(posterior.model.space.free_names, z[b])
        if strained not in notice:  # that of a saved fit has it already
            notice = f"{notice} {strained}".strip()
        results.append(
            FitResult(
                instance=instance,
                method=posterior.method,
                status=status.name.lower(),
                advice=" ".join(filter(None, [status.advice, notice])),
                bound=float(fit.bound[b]),
                trace=fit.trace[:, b].numpy(),
                effective_draws=float(fit.effective[b]),
                seconds=seconds / len(instances),
                force_names=posterior.model.system.force_names,
                estimates=parameters[b],
                undetermined=directions[b],
                grid=on_grid[b],
                at_data=_first(at_data[b], len(instance.times)),
                noise_sd=None if noise is None else noise[b].numpy(),
                posterior=posterior,
                row=b,
                relative_noise=None if relative is None else relative[b].numpy(),
                at_truth=None if at_truth is None else at_truth[b],
            )
        )
    return results
