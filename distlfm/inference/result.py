"""The answer for one instance: force and outputs with their bands, parameters with intervals, and what is not known.

Shapes: `L` forces, `P` outputs, `Q` times.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

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
from distlfm.instance import FloatArray, Instance, numbers
from distlfm.runtime.process import torch_threads
from distlfm.store.layout import FAILED

if TYPE_CHECKING:
    from distlfm.inference.findings.residuals import Structure

LEVELS = (0.68, 0.95)
UNRELIABLE = Status.UNRELIABLE.name.lower()
"""The status of an answer that failed a check of its own claim."""


@dataclass(frozen=True, repr=False)
class Prediction:
    """Force and outputs at some times, with their bands.

    times: [Q]. force: bands of [L, Q]. outputs: bands of [P, Q], of the curve and not of a new measurement. positions:
    [Q, d] of a field, or None.
    """

    times: FloatArray
    force: Band
    outputs: Band
    positions: FloatArray | None = None

    def __repr__(self) -> str:
        what = f"forces of shape {self.force.mean.shape}, outputs of shape {self.outputs.mean.shape}"
        return f"<Prediction at {len(self.times)} {'times' if self.positions is None else 'points'}: {what}>"

    @staticmethod
    def of(points: FloatArray, force: Band, outputs: Band) -> Prediction:
        """Return the prediction at some points.

        points: times [Q], or [Q, 1 + d] of a field. force, outputs: their bands there.
        """
        if points.ndim == 1:
            return Prediction(points, force, outputs)
        return Prediction(points[:, 0], force, outputs, points[:, 1:])

    def at(self, index: slice | NDArray[np.intp]) -> Prediction:
        """Return the prediction at some of its points, in any order. index: a slice, or indices."""
        force, outputs = (
            Band(*(getattr(band, name)[:, index] for name in Band.__dataclass_fields__))
            for band in (self.force, self.outputs)
        )
        return Prediction(self.times[index], force, outputs, None if self.positions is None else self.positions[index])


@dataclass(frozen=True, repr=False, eq=False)
class FitResult(Answer):
    """One instance's fit. `predict` answers at any times after the first observation, beyond the last one too.

    instance: what was fitted. method: of inference. status: how it ended, such as `converged` or `unreliable`. advice:
    what to know before relying on it, empty if there is nothing to say. seconds: its share of its batch's time.

    bound: what the method maximised, comparable between fits of one method only: the ELBO of a variational fit; the log
    joint density of data and unknowns at the mode where the force is integrated out; that of the slopes for a
    pre-estimate. trace: the same, iteration by iteration. effective_draws: how many independent draws the posterior's
    are worth. tail: shape k̂ of the Pareto tail of their weights. rhat: R-hat of the unknown on which chains agree
    least, None where draws are not those of chains.

    force_names: of the L forces. grid, at_data: force and outputs on the grid, and at the observed times. estimates: of
    the parameters, in the order of the model. undetermined: combinations of parameters that the data leave open.
    noise: parameters of the likelihood in the middle of the posterior, by name, each [K], such as the deviation
    `noise` of white noise. misfit: whether the residuals have a shape, None where that was not looked at.

    posterior, row: the posterior of the batch, and this instance's place in it. at_truth: force and outputs at the
    times of the truth, if they were predicted together with the rest.
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
    noise: Mapping[str, FloatArray]
    posterior: Posterior
    row: int
    tail: float = 0.0
    rhat: float | None = None
    misfit: Structure | None = None
    at_truth: Prediction | None = None

    @property
    def noise_sd(self) -> FloatArray | None:
        """Learned standard deviation of the white noise, [1] or [P], or None."""
        return self.noise.get("noise")

    @property
    def id(self) -> str:
        return self.instance.id

    @property
    def ok(self) -> bool:
        return self.status not in FAILED

    @property
    def trustworthy(self) -> bool:
        return self.ok and self.status != UNRELIABLE

    @property
    def chains(self) -> int:
        return self.posterior.chains

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
        """Return force and outputs at other times.

        times: [Q], or a single time, not before the first observation. positions: [Q, d], for a field only. Raises
        `UsageError` if a time is too early, or times and positions do not fit together.
        """
        points, order = self._asked(times, positions)
        at = torch.from_numpy(points[order]).unsqueeze(0)
        return predict(self.posterior, torch.tensor([self.row]), at)[0].at(np.argsort(order))

    def draws(
        self,
        count: int = NUM_DRAWS,
        times: Sequence[float] | FloatArray | None = None,
        positions: FloatArray | None = None,
        seed: int = 0,
    ) -> Draws:
        """Draw `count` times from the joint posterior: parameters, a force, and the outputs that this force drives.

        times: [Q], by default those of `force`. positions: [Q, d], for a field with times. seed: of the draws. A fit
        through the solver (`nested`, `variational`, `preestimate`) has as many different draws as were asked of it when
        it was fitted, and repeats them beyond that.

        Returns the draws, a sequence. Raises `UsageError` if an argument is wrong, or the fit failed.
        """
        self._drawable(count, seed)
        if times is None:
            times, positions = self.grid.times, self.grid.positions
        points, order = self._asked(times, positions)
        at, back = torch.from_numpy(points[order]).unsqueeze(0), np.argsort(order)
        with torch.no_grad(), torch_threads(1):  # the matrices are small, and more threads only wait for each other
            force, outputs, z = self.posterior.draw(torch.tensor([self.row]), at, count, seed)
        curves = force[:, 0].numpy()[..., back], outputs[:, 0].numpy()[..., back]
        names = (self.force_names, self.output_names)
        wanted, places = (points, None) if points.ndim == 1 else (points[:, 0], points[:, 1:])
        space = self.posterior.model.space
        values = space.unpack(z[:, 0])
        found = [values[one.name][..., i].numpy() for one in space.parameters for i in one.free]
        return Draws(wanted, *curves, dict(zip(space.free_names, found, strict=True)), *names, places)

    def _drawable(self, count: object, seed: object) -> None:
        if not isinstance(seed, int | np.integer):
            raise UsageError(f"The seed is {_brief(seed)}.", "Give a whole number, such as draws(200, seed=1).")
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
        wanted = _numbers(times)
        where = None if positions is None else _numbers(positions)
        if where is not None and where.ndim == 1 and dims == 1:
            where = where[:, None]
        if where is None or wanted.ndim != 1 or where.shape != (len(wanted), dims) or len(wanted) == 0:
            raise UsageError(
                "The times and positions to predict a field at do not fit together.",
                f"Give as many positions as times, each of {dims} numbers.",
            )
        points = np.column_stack([wanted, where])
        if not np.isfinite(points).all():
            raise UsageError("A time or a position to predict at is not finite.", "Give numbers.")
        return points

    def _asked(
        self, times: Sequence[float] | FloatArray, positions: FloatArray | None
    ) -> tuple[FloatArray, NDArray[np.intp]]:
        """Times [Q], or points [Q, 1 + d] of a field, and the order in which a posterior takes them."""
        if self.instance.positions is not None:
            points = self._places(times, positions)
            return points, np.arange(len(points))
        wanted = _numbers(times)
        first = float(self.instance.times[0])
        if wanted.ndim != 1 or len(wanted) == 0 or not np.isfinite(wanted).all():
            raise UsageError(
                "Times to predict at must be a list of finite numbers.",
                "Give one or more.",
            )
        if wanted.min() < first:
            raise UsageError(
                f"Cannot predict at {wanted.min():g}: the data begin at {first:g}, and so does the equation.",
                "Ask for later times.",
            )
        return wanted, np.argsort(wanted, kind="stable")


def _numbers(given: object) -> FloatArray:
    """Times or places, of which one may stand alone; NaN, which is refused, in place of what is not a number."""
    try:
        return np.atleast_1d(numbers(given))
    except (TypeError, ValueError):
        return np.full(1, np.nan)


def _brief(given: object) -> str:
    text = repr(given)
    return text if len(text) <= 40 else f"{text[:39]}…"


def predict(posterior: Posterior, rows: Tensor, times: Tensor) -> list[Prediction]:
    """Return the predictions of some instances.

    posterior: of a batch. rows: [A], which of its instances. times: [A, Q], or points [A, Q, 1 + d] of a field.
    """
    with torch.no_grad():
        predicted = posterior.predict(rows, times)
        force, outputs = _bands(predicted.force), _bands(predicted.outputs)
    return [Prediction.of(*one) for one in zip(times.numpy(), force, outputs, strict=True)]


def predict_together(posterior: Posterior, rows: Tensor, asked: Sequence[Tensor]) -> list[list[Prediction]]:
    """Return predictions at several sets of times, computed at once where that is cheaper.

    posterior, rows: as for `predict`. asked: sets of times, each [A, Q], or of points.
    """
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
    parts = np.split(back, np.cumsum([part.shape[-1] for part in asked])[:-1], axis=-1)
    return [[one.at(index) for one, index in zip(everywhere, part, strict=True)] for part in parts]


def _true_times(instances: Sequence[Instance]) -> Tensor | None:
    """The times [B, Q] at which all of these know the truth, if they are equally many and can be predicted at."""
    known = [one.truth for one in instances if one.truth is not None and one.truth.positions is None]
    times = [one.times for one in known if one.force is not None or one.outputs is not None]
    if len(times) < len(instances) or len({len(one) for one in times}) > 1:
        return None
    starts = [instance.times[0] for instance in instances]
    usable = all(
        len(one) and one[0] >= first and (np.diff(one) >= 0).all() for one, first in zip(times, starts, strict=True)
    )
    return torch.from_numpy(np.stack(times)) if usable else None


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
    predicted: Sequence[list[Prediction]] | None = None,
) -> list[FitResult]:
    """Return one result per instance of a batch.

    fit: of the batch. instances: B of them. seconds: the batch's time, which they share evenly. grids: times [B, Q] to
    predict at, or points [B, Q, 1 + d] of a field. predicted: on the grids and at the data, if
    it is known already.
    """
    posterior = fit.posterior
    rows = torch.arange(len(instances))
    if predicted is None:
        asked, truth = [grids, posterior.observations.points], _true_times(instances)
        predicted = predict_together(posterior, rows, asked if truth is None else [*asked, truth])
    on_grid, at_data, *at_truth = predicted
    parameters, directions = estimates(posterior), undetermined(posterior)
    unknowns = posterior.unknowns()
    z = (unknowns.weights.unsqueeze(-1) * unknowns.proposals).sum(0)
    middle = posterior.model.space.unpack(z)
    own = [one.name for one in posterior.model.likelihood.parameters()]
    results = []
    for b, instance in enumerate(instances):
        status = Status(int(fit.status[b]))
        notice, doubt = (words[b] if words else "" for words in (fit.notices, fit.doubts))
        diverged = status == Status.DIVERGED
        # What is known of the cause takes the place of a guess.
        advice = doubt if diverged and doubt else status.advice
        if doubt and not diverged:
            status, advice = Status.UNRELIABLE, f"{advice} {doubt}".strip()
        strained = strain(posterior.model.space.free_names, z[b])
        if strained not in notice:  # that of a saved fit has it already
            notice = f"{notice} {strained}".strip()
        results.append(
            FitResult(
                instance=instance,
                method=posterior.method,
                status=status.name.lower(),
                advice=" ".join(filter(None, [advice, notice])),
                bound=float(fit.bound[b]),
                trace=fit.trace[:, b].numpy(),
                effective_draws=0.0 if diverged else float(fit.effective[b]),
                seconds=seconds / len(instances),
                force_names=posterior.model.system.force_names,
                estimates=parameters[b],
                undetermined=directions[b],
                grid=on_grid[b],
                at_data=at_data[b].at(slice(len(instance.times))),
                noise={name: middle[name][b].numpy() for name in own},
                posterior=posterior,
                row=b,
                tail=0.0 if fit.tail is None else float(fit.tail[b]),
                rhat=None if fit.rhat is None else float(fit.rhat[b]),
                at_truth=at_truth[0][b] if at_truth else None,
            )
        )
    return results
