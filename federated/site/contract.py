"""What a site lets a round ask of it: bounds on the task, on the weights that come, and on what they do to patients.

The coordinator chooses task and weights. The bounds of the policy depend on these alone, so a refusal tells nothing
about patients. `effect_of` looks at the patients: of a network that is made to measure, the answer comes from few of
them, or one site's is next to nothing. Such a refusal tells one bit, so there are few of them a day.

Shapes: `N` patients, `U` units of a tensor, `D` shared weights.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Iterator, Mapping, Sequence
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
        f"Tune {count} weights (shared: {_named(task.shared)}; adapter: {task.adapter}) for {task.steps} steps of "
        f"{each} with {task.optimiser} at rate {task.lr:g}, clip {task.clip or 'none'}, mu {task.mu:g}, beta "
        f"{task.beta:g}, on {task.kind};{shared} {stays}."
    )


def _named(patterns: Sequence[str]) -> str:
    """Patterns as they came, shown so that they can be read, and cut where they are long."""
    shown = [one if one.isprintable() else repr(one) for one in patterns]
    return ", ".join(one[:LONGEST] for one in shown[:MOST_NAMED]) + (", …" if len(shown) > MOST_NAMED else "")


MOST_NAMED, LONGEST = 8, 60
"""Patterns of a task that are logged, and letters of each."""


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
    """What weights do to the patients. effective: fewest patients, over the units, from which the gradient of one comes
    in effect. few: largest part, over the tensors, of the units that come from few patients or are next to nothing.
    weakest, strongest: length of a tensor's gradients in units of the first operator's."""

    effective: float
    few: float
    weakest: float
    strongest: float

    @property
    def is_known(self) -> bool:
        """Whether all of it are numbers."""
        return all(map(math.isfinite, (self.effective, self.few, self.weakest, self.strongest)))


DEAD = Effect(0.0, 1.0, 0.0, 0.0)
AS_BEFORE = 0.75
"""Share of the effective patients with the first operator's weights from which on a unit counts as unchanged."""
HALF = 0.5
"""Share of these patients that a unit must have, if it has not as many as an answer needs. In honest rounds, with 12
patients to learn from, at most 0.35 of a tensor's units had less, and no unit less than 1.2 patients."""
FEW, MANY = 0.5, 5
"""Part of a tensor's units that may have less; of fewer units than this it may be chance."""


MOST_PATIENTS = 64


def effect_of(
    operator: Operator,
    base: Operator,
    names: Sequence[str],
    batch: Batch,
    task: RoundTask,
    random: torch.Generator,
    enough: int,
    weakest: float,
) -> Effect:
    """Measure how many patients an update with these weights would come from, and how strongly they act.

    A tensor is looked at unit by unit: what a coordinator makes to measure is some units, and the others are decoys. A
    unit on which nobody acts with the first operator's weights either is left out, and from the effective patients also
    one on which about as many act as with these. Of many patients some are drawn. enough: patients that an answer
    needs. weakest: strength of a unit, in units of the first operator's, below which it counts as next to nothing.
    """
    rows = list(groups(batch.ids).values())
    drawn = torch.randperm(len(rows), generator=random)[:MOST_PATIENTS].tolist()
    chosen = [batch.at(rows[one]) for one in drawn]
    here, before = (unit_lengths(one, names, chosen, task) for one in (operator, base))
    found = [_of_tensor(here[name], before[name], enough, weakest) for name in here]
    known = [one for one in found if one is not None]
    if not known:
        return DEAD
    worst = Effect(
        min(one.effective for one in known),
        max(one.few for one in known),
        min(one.weakest for one in known),
        max(one.strongest for one in known),
    )
    return worst if worst.is_known else DEAD


def _of_tensor(here: NDArray[np.float64], before: NDArray[np.float64], enough: int, weakest: float) -> Effect | None:
    """The effect on one tensor, from lengths [N, U] of its units' gradients now and with the first operator's weights;
    None if nobody acts on it in either."""
    if not np.isfinite(here).all():
        return DEAD
    live = (here.sum(0) > 0) | (before.sum(0) > 0)
    if not live.any():
        return None
    here, before = here[:, live], before[:, live]
    now, then = _effective(here), _effective(before)
    then = np.where(then > 0, then, len(here))
    alive = now > 0
    with np.errstate(divide="ignore"):
        strength = here.sum(0) / before.sum(0)
    few = (now < np.minimum(enough, HALF * then)) | (strength < weakest)
    share = few.mean() if len(few) >= MANY else 0.0
    least = np.where(alive & (now < AS_BEFORE * then), now, len(here)).min() if alive.any() else 0.0
    lengths = [float(np.linalg.norm(one, axis=1).sum()) for one in (here, before)]
    whole = lengths[0] / lengths[1] if lengths[1] else 1.0
    return Effect(float(least), float(share), whole, whole)


def _effective(lengths: NDArray[np.float64]) -> NDArray[np.float64]:
    """The effective number [U] of patients behind gradients of lengths [N, U], from 1 to N; 0 if all are zero."""
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = lengths / lengths.sum(0)
        return np.where(lengths.sum(0) > 0, 1 / (shares**2).sum(0), 0.0)


def unit_lengths(
    operator: Operator, names: Sequence[str], patients: Sequence[Batch], task: RoundTask
) -> dict[str, NDArray[np.float64]]:
    """The length of each patient's gradient for each unit of the tuned tensors, [N, U] by tensor.

    A unit is one output of a layer, with all weights that lead to it, or one input or output of a spectral layer. Its
    bias is told by these weights, so they stand for a bias that is tuned alone; what has no such weights is one unit.
    """
    model, objective = operator.model, Objective(operator, task)
    own = dict(model.named_parameters())
    wanted = {_weights_of(name, own): None for name in names}
    weights = [own[name].requires_grad_(True) for name in wanted]
    found: dict[str, list[NDArray[np.float64]]] = {}
    try:
        for part in patients:
            keep_time()
            loss = objective(model(part.values, part.mask), part).mean()
            each = torch.autograd.grad(loss, weights, allow_unused=True)
            for name, weight, one in zip(wanted, weights, each, strict=True):
                gradient = torch.zeros_like(weight) if one is None else one
                for key, lengths in _by_units(name, gradient.double()):
                    found.setdefault(key, []).append(lengths.numpy())
    finally:
        model.requires_grad_(False)
    return {name: np.stack(lengths) for name, lengths in found.items()}


def _weights_of(name: str, own: Mapping[str, torch.Tensor]) -> str:
    """The tensor whose rows tell of this one: of a bias those of its layer."""
    weights = f"{name.removesuffix('bias')}weight"
    return weights if weights in own and own[weights].dim() > 1 else name


def _by_units(name: str, gradient: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Lengths [U] of a tensor's units; a spectral weight [modes, 2, W, W] has them both ways."""
    if gradient.dim() == 2:
        yield name, gradient.norm(dim=1)
    elif gradient.dim() > 2:
        squares = gradient.flatten(0, -3).square().sum(0)
        yield f"{name}, one way", squares.sum(1).sqrt()
        yield f"{name}, the other way", squares.sum(0).sqrt()
    else:
        yield name, gradient.norm().unsqueeze(0)


def check_effect(limits: TaskLimits, effect: Effect, *, figures: bool = False) -> None:
    """Refuse weights with which the answer would be that of few patients, or of other sites alone.

    figures: of so few patients that one unit may well be of one of them.
    """
    alive = limits.weakest <= effect.weakest and effect.strongest * limits.weakest <= 1
    if (effect.effective < limits.effective and not figures) or effect.few > FEW or not alive:
        raise Refused(
            Reason.TASK,
            f"With these weights the update would come from {effect.effective:.2f} patients in effect (task.effective "
            f"in the policy: {limits.effective:g}), {effect.few:.0%} of a layer's units from few ({FEW:.0%} may), with "
            f"gradients {effect.weakest:.1e} to {effect.strongest:.1e} times those of the first operator "
            f"(task.weakest: {limits.weakest:g}, and its inverse). Weights of honest training are not so; ask the "
            "coordinator.",
            told=True,
        )
