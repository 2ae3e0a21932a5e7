"""Fine-tune an operator at a site, without noise, and measure how good it is for the site's patients.

A round's task takes some steps from the weights that came. A site has tens of patients, and the noise of differential
privacy grows with the number of weights it is added to. So an adapter tunes only the end of the network, its last
projection, on features that are frozen and computed once (`distlfm.lfo.tail`). The tuned weights are the network's own:
a checkpoint holds them as any other. Figures are one number per patient and figure.

Shapes: `B` windows, `N` patients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from distlfm.errors import WorkError
from distlfm.federated.settings import RoundTask
from distlfm.federated.site.cohort import groups
from distlfm.federated.site.worktime import keep_time
from distlfm.lfo import Batch, LossConfig, Operator, OperatorOutput
from distlfm.lfo.loss import force_q2, losses, reconstruction
from distlfm.lfo.operator import TOGETHER
from distlfm.lfo.physics import GridSolver
from distlfm.lfo.tail import Features, Tail

PLAIN = LossConfig(beta=0.0)

ADAM, TINY = (0.9, 0.999), 1e-8
"""Of Kingma and Ba (2015)."""


class NotFinite(WorkError):
    """Tuning has led to weights that are not numbers."""


class Objective:
    """The loss [B] of a prediction, as a task asks for it; the operator's calibration is part of its answers."""

    def __init__(self, operator: Operator, task: RoundTask) -> None:
        self.operator, self.beta = operator, task.beta
        self.forward = GridSolver(operator.schema) if task.kind == "physics" else None

    def __call__(self, prediction: OperatorOutput, batch: Batch) -> Tensor:
        normal = self.operator.model.normal
        if self.forward is not None:
            return reconstruction(prediction, batch, normal, self.forward)
        ready = self.operator.calibration.apply(prediction)
        return losses(ready, batch, normal, PLAIN, self.beta)["total"]


Weights = dict[str, Tensor]
"""Tuned weights by their names in the model."""


def tune(
    operator: Operator,
    names: Sequence[str],
    near: Sequence[str],
    batch: Batch,
    task: RoundTask,
    generator: torch.Generator,
) -> tuple[Weights, Tensor]:
    """Tune the named weights of the operator's model, in place. near: those that the proximal term holds back.

    Returns the tuned weights, and which windows of the batch were used, [B] of bool. Raises NotFinite if not even the
    first step leads to numbers.
    """
    model, objective = operator.model, Objective(operator, task)
    own = dict(model.named_parameters())
    weights = {name: own[name].requires_grad_(True) for name in names}
    if task.adapter == "none":

        def loss_of(rows: Tensor) -> Tensor:
            part = batch.at(rows.tolist())
            return objective(model(part.values, part.mask), part)
    else:
        tail = Tail(model)
        seen, grid = tail.features(batch.values, batch.mask), tuple(batch.values.shape[2:])

        def loss_of(rows: Tensor) -> Tensor:
            some = Features(*(one[rows] for one in seen))
            return objective(tail.predict(weights, some, grid), batch.at(rows.tolist()))

    try:
        used = descend(weights, near, loss_of, list(groups(batch.ids).values()), task, generator)
    finally:
        model.requires_grad_(False)
    return {name: one.detach() for name, one in weights.items()}, used


def descend(
    weights: Mapping[str, Tensor],
    near: Sequence[str],
    loss_of: Callable[[Tensor], Tensor],
    patients: Sequence[Sequence[int]],
    task: RoundTask,
    generator: torch.Generator,
) -> Tensor:
    """Take the steps of a task on leaf tensors, in place. Return which windows were used, [B].

    patients: the windows of each. A step that leads to no numbers is not taken, and ends the work: a site that then
    sent no change would be silent in the sum, and the coordinator, who chooses the task, could make all but one so.
    """
    start = {name: weights[name].detach().clone() for name in near}
    descent = Descent(list(weights.values()), task)
    used = torch.zeros(sum(map(len, patients)), dtype=torch.bool)
    batches = drawn(patients, task.batch, generator)
    for number, rows in zip(range(task.steps), batches, strict=False):
        keep_time()
        for one in weights.values():
            one.grad = None
        loss_of(rows).mean().backward()
        hold_back(weights, start, task.mu)
        if task.clip is not None:
            torch.nn.utils.clip_grad_norm_(list(weights.values()), task.clip)
        last = [one.detach().clone() for one in weights.values()]
        descent.step()
        if not all_finite(weights.values()):
            if not number:
                raise NotFinite("The first step leads to weights that are not finite.", "Lower task.lr.")
            with torch.no_grad():
                for one, before in zip(weights.values(), last, strict=True):
                    one.copy_(before)
            break
        used[rows] = True
    return used


def drawn(patients: Sequence[Sequence[int]], size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the windows of one step after another: all, or `size` of them, of as many patients as there can be.

    All patients come equally often, and so do the windows of each.
    """
    count = sum(map(len, patients))
    if not 0 < size < count:
        while True:
            yield torch.randperm(count, generator=generator)
    turns: list[int] = []
    left: list[list[int]] = [[] for _ in patients]
    while True:
        while len(turns) < size:
            fresh = torch.randperm(len(patients), generator=generator).tolist()
            turns += sorted(fresh, key=set(turns).__contains__)  # who still waits comes last, so not twice in a step
        rows = []
        for one in turns[:size]:
            left[one] = left[one] or [patients[one][i] for i in torch.randperm(len(patients[one]), generator=generator)]
            rows.append(left[one].pop())
        turns = turns[size:]
        yield torch.tensor(rows)


def all_finite(weights: Iterable[Tensor]) -> bool:
    """Whether all weights are numbers."""
    return all(bool(torch.isfinite(one).all()) for one in weights)


def hold_back(weights: Mapping[str, Tensor], start: Mapping[str, Tensor], mu: float) -> None:
    """Add the gradient of mu / 2 · ‖w − w_global‖², the term of FedProx."""
    if mu:
        for name, origin in start.items():
            grad = weights[name].grad
            assert grad is not None
            grad.add_(weights[name].detach() - origin, alpha=mu)


class Descent:
    """Steps of gradient descent or Adam on leaf tensors, in place; nothing of it outlives a round.

    torch's own optimisers import its compiler, which takes seconds in each of a site's short-lived processes.
    """

    def __init__(self, weights: Sequence[Tensor], task: RoundTask) -> None:
        self.weights, self.task, self.number = list(weights), task, 0
        self.first = [torch.zeros_like(one) for one in self.weights]
        self.second = [torch.zeros_like(one) for one in self.weights]

    @torch.no_grad()
    def step(self) -> None:
        """By the gradients that the weights hold."""
        self.number += 1
        for one, first, second in zip(self.weights, self.first, self.second, strict=True):
            grad = one.grad
            assert grad is not None
            if self.task.optimiser == "sgd":
                one.sub_(grad, alpha=self.task.lr)
                continue
            first.lerp_(grad, 1 - ADAM[0])
            second.lerp_(grad.square(), 1 - ADAM[1])
            size = (second / (1 - ADAM[1] ** self.number)).sqrt_().add_(TINY)
            one.addcdiv_(first, size, value=-self.task.lr / (1 - ADAM[0] ** self.number))


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
    # Tables that the network keeps may serve gradients later, so no inference mode.
    pairs = zip(batch.values.split(TOGETHER), batch.mask.split(TOGETHER), strict=True)
    pieces = []
    for values, mask in pairs:
        keep_time()
        pieces.append(operator.calibration.apply(model(values, mask)))
    ready = OperatorOutput(*(torch.cat(one) for one in zip(*pieces, strict=True)))
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
        found["reconstruction"] = reconstruction(ready, batch, model.normal, GridSolver(operator.schema))
    return {name: found[name] for name in names}


def patient_figures(operator: Operator, batch: Batch, names: tuple[str, ...]) -> dict[str, NDArray[np.float64]]:
    """Means over each patient's windows, [N]."""
    of_windows = window_figures(operator, batch, names)
    rows = list(groups(batch.ids).values())
    return {
        name: np.array([float(torch.nanmean(values[one].double())) for one in rows])
        for name, values in of_windows.items()
    }
