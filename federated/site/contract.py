"""What a site lets a round ask of it: bounds on the task, on the weights that come, and on what they do to patients.

The coordinator chooses task and weights. The bounds of the policy depend on these alone, so a refusal tells nothing
about patients. `effect_of` looks at the patients: of a network that is made to measure, the update comes from few of
them, or one site's is next to nothing. Such a refusal tells one bit, so it is counted as a question.

Shapes: `N` patients, `K` tuned tensors, `D` shared weights.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from distlfm.federated.codec import Codec, Vector
from distlfm.federated.refused import Reason, Refused
from distlfm.federated.settings import RoundTask
from distlfm.federated.site.cohort import groups
from distlfm.federated.site.policy import TaskLimits
from distlfm.federated.site.tuning import Objective
from distlfm.federated.site.worktime import keep_time
from distlfm.lfo import Batch, Operator
from distlfm.lfo.model import FourierOperator


def check_task(limits: TaskLimits, task: RoundTask, names: Sequence[str], *, shared: bool = False) -> None:
    """Refuse a task beyond the limits. names: of the weights that it tunes and sends. shared: whether patients' updates
    are cut to `task.noise.clip`, and noised in proportion to it, so that the rate says nothing of their length.
    """
    foreign = [name for name in names if not any(fnmatch.fnmatchcase(name, one) for one in limits.shared)]
    if foreign:
        raise _beyond(f"task.shared has {', '.join(foreign[:3])}", "shared", ", ".join(limits.shared), "task.shared")
    for name, given, allowed in (
        ("kinds", task.kind, limits.kinds),
        ("optimisers", task.optimiser, limits.optimisers),
    ):
        if given not in allowed:
            raise _beyond(f"The task has {given}", name, ", ".join(allowed), f"task.{name[:-1]}")
    for name in ("mu", "steps", "batch") if shared else ("lr", "mu", "steps", "batch", "clip"):
        value, most = (math.inf if one is None else one for one in (getattr(task, name), getattr(limits, name)))
        if value > most:
            raise _beyond(f"task.{name} is {value:g}", name, f"{most:g}", f"task.{name}")
    if not shared and task.optimiser == "sgd" and task.lr * task.mu >= 1:
        raise Refused(
            Reason.TASK,
            f"task.lr times task.mu is {task.lr * task.mu:g}: from 1 on each step undoes those before, and from 2 on "
            "it leads away. Lower task.mu.",
        )


def _beyond(what: str, name: str, limit: str, key: str) -> Refused:
    fix = f"Lower or change {key}, or agree with the site on another task.{name} in its policy"
    return Refused(Reason.TASK, f"{what}; the policy's task.{name} is {limit}. {fix}.")


def in_words(task: RoundTask, count: int, local: Sequence[str]) -> str:
    """Say what a task asks, for the site's log. count: of weights that travel."""
    each = "all windows" if task.batch == 0 else f"{task.batch} windows"
    stays = f"{len(local)} tensors stay here ({', '.join(local[:3])})" if local else "nothing stays here but own copies"
    noise = task.noise
    shared = "" if noise is None else f" noise {noise.multiplier:g} times {noise.clip:g}, without {noise.lost} sites;"
    return (
        f"Tune {count} weights (adapter: {task.adapter}) for {task.steps} steps of {each} with {task.optimiser} at "
        f"rate {task.lr:g}, clip {task.clip or 'none'}, mu {task.mu:g}, on {task.kind};{shared} {stays}."
    )


LEAST_SCALE = 0.1
"""Size of weights below which a tensor does not count as small: many begin at zero."""


def check_weights(base: FourierOperator, codec: Codec, vector: Vector, drift: float) -> None:
    """Refuse weights [D] that are further from the first operator than training would bring them."""
    new = codec.decode(vector)
    old = dict(base.named_parameters())
    for name, tensor in new.items():
        scale = max(float(old[name].detach().abs().max()), LEAST_SCALE)
        away = float((tensor - old[name].detach()).abs().max())
        if not away <= drift * scale:  # NaN too
            raise Refused(
                Reason.TASK,
                f"{name} came with weights {away / scale:.3g} times its size away from the first operator; the "
                f"policy's task.drift is {drift:g}. Begin the run anew, or with a smaller task.lr.",
            )


@dataclass(frozen=True)
class Effect:
    """What weights do to the patients. effective: fewest patients, over the tuned tensors, from which the gradient of
    one comes in effect. weakest, strongest: length of a tensor's gradients in units of the first operator's."""

    effective: float
    weakest: float
    strongest: float

    @property
    def is_known(self) -> bool:
        """Whether all of it are numbers."""
        return all(map(math.isfinite, (self.effective, self.weakest, self.strongest)))


DEAD = Effect(0.0, 0.0, 0.0)
AS_BEFORE = 0.75
"""Share of the effective patients with the first operator's weights from which on a tensor counts as unchanged."""


MOST_PATIENTS = 64


def effect_of(
    operator: Operator, base: Operator, names: Sequence[str], batch: Batch, task: RoundTask, random: torch.Generator
) -> Effect:
    """Measure how many patients an update with these weights would come from, and how strongly they act.

    A tensor on which nobody acts with the first operator's weights is left out, and from the effective patients also
    one on which about as many act as with these. Of many patients some are drawn.
    """
    rows = list(groups(batch.ids).values())
    drawn = torch.randperm(len(rows), generator=random)[:MOST_PATIENTS].tolist()
    chosen = [batch.at(rows[one]) for one in drawn]
    here, before = (gradient_lengths(one, names, chosen, task) for one in (operator, base))
    live = before.sum(0) > 0
    if not live.any():
        return DEAD
    here, before = here[:, live], before[:, live]
    strength = here.sum(0) / before.sum(0)
    now, then = _effective(here), _effective(before)
    least = np.where(now < AS_BEFORE * then, now, len(drawn)).min()
    found = Effect(float(least), float(strength.min()), float(strength.max()))
    return found if found.is_known else DEAD


def _effective(lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """The effective number [K] of patients behind gradients of lengths [N, K], from 1 to N; 0 if all are zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = lengths / lengths.sum(0)
        return np.where(lengths.sum(0) > 0, 1 / (shares**2).sum(0), 0.0)


def gradient_lengths(
    operator: Operator, names: Sequence[str], patients: Sequence[Batch], task: RoundTask
) -> NDArray[np.float64]:
    """The length of each patient's gradient for each tuned tensor, [N, K]."""
    model, objective = operator.model, Objective(operator, task)
    own = dict(model.named_parameters())
    weights = [own[name].requires_grad_(True) for name in names]
    found = []
    try:
        for part in patients:
            keep_time()
            loss = objective(model(part.values, part.mask), part).mean()
            each = torch.autograd.grad(loss, weights, allow_unused=True)
            found.append([0.0 if one is None else float(one.double().norm()) for one in each])
    finally:
        model.requires_grad_(False)
    return np.array(found)


def check_effect(limits: TaskLimits, effect: Effect) -> None:
    """Refuse weights with which the update would be that of few patients, or of other sites alone."""
    alive = limits.weakest <= effect.weakest and effect.strongest * limits.weakest <= 1
    if effect.effective < limits.effective or not alive:
        raise Refused(
            Reason.TASK,
            f"With these weights the update would come from {effect.effective:.2f} patients in effect (task.effective "
            f"in the policy: {limits.effective:g}), with gradients {effect.weakest:.1e} to {effect.strongest:.1e} "
            f"times those of the first operator (task.weakest: {limits.weakest:g}, and its inverse). Weights of honest "
            "training are not so; ask the coordinator.",
        )
