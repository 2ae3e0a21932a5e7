"""The mode of the unknowns through the solver, begun at the match, with the noise set by the evidence.

Maximised together with the force, the noise has no interior mode: a force that passes through every point, with no
noise at all, beats every other. So it is held while the rest is searched, and then set to what the evidence says: the
squared residuals over the number of data less the number of unknowns that the data determine (MacKay 1992).
Shapes: `B` instances, `A` of them, `P` outputs, `W` unknowns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from distlfm.inference.collapsed import ONE_START, Starts
from distlfm.inference.curvature import hessian, root_of_inverse
from distlfm.inference.optimise import OptimiserConfig, Optimum, Status, minimise
from distlfm.inference.series.forward import Forward
from distlfm.inference.series.preestimate import Matching, PreestimateConfig, matched_start

NOISE_ROUNDS = 2
"""How often the noise is set anew."""

LONGEST = 4.0
"""The longest step of a search, in posterior standard deviations."""

FURTHEST = 3.0
"""The noise is within this many standard deviations of its prior's middle."""

ROUGH = 0.3
"""Until then a search ends when the mode is about this near, in posterior standard deviations."""


def best_matched_mode(
    forward: Forward,
    seeds: Sequence[int],
    optimiser: OptimiserConfig,
    options: PreestimateConfig,
    starts: Starts = ONE_START,
) -> Optimum | None:
    """The mode of each instance with the highest joint density over all starts; None as in `matched_mode`."""
    best: Optimum | None = None
    for attempt in range(starts.count):
        one = Starts(random=starts.random or attempt > 0)
        found = matched_mode(forward, [seed + attempt for seed in seeds], optimiser, options, one)
        if found is None:
            return None
        if best is None:
            best = found
            continue
        better = (found.value < best.value) & (found.status != Status.DIVERGED)
        best.z[better], best.value[better] = found.z[better], found.value[better]
        best.status[better], best.iterations[better] = found.status[better], found.iterations[better]
    return best


def matched_mode(
    forward: Forward,
    seeds: Sequence[int],
    optimiser: OptimiserConfig,
    options: PreestimateConfig,
    starts: Starts = ONE_START,
) -> Optimum | None:
    """The mode given the noise, and the noise with it; None if the mechanism has states that are not observed.

    The first search is in units of the match's curvature, the later ones in those of the joint density's own.
    """
    w = matched_start(forward, seeds, options, starts)
    if w is None:
        return None
    search = _Search(forward)
    everyone = torch.arange(len(w))
    rough = optimiser.model_copy(update={"gradient": ROUGH, "max_step": LONGEST})
    fine = rough.model_copy(update={"gradient": optimiser.distance})
    curvature = hessian(Matching(forward, options).objective, w, everyone)
    for _ in range(NOISE_ROUNDS if search.held.any() else 0):
        w = search.descend(w, curvature, everyone, rough).z
        curvature = hessian(search.objective, w, everyone)
        w = search.with_evident_noise(w, curvature)
    found = search.descend(w, curvature, everyone, fine)
    for _ in range(optimiser.rounds):
        rows = torch.nonzero((found.status != Status.CONVERGED) & (found.status != Status.DIVERGED)).squeeze(-1)
        if len(rows) == 0:
            break
        closer = search.descend(found.z[rows], hessian(search.objective, found.z[rows], rows), rows, fine)
        found.z[rows], found.value[rows], found.status[rows] = closer.z, closer.value, closer.status
        found.iterations[rows] += closer.iterations
    return found


class _Search:
    """Searches in which the noise stands still."""

    def __init__(self, forward: Forward) -> None:
        self.forward = forward
        self.held = torch.zeros(forward.size, dtype=torch.bool)
        if forward.model.likelihood.learns_noise:
            self.held[forward.model.space.slice_of("noise")] = True

    def objective(self, w: Tensor, rows: Tensor) -> Tensor:
        """Minus the log joint density [A] at w [A, W]."""
        return 0.5 * w.square().sum(-1) - self.forward.log_likelihood(w[None], rows)[0]

    def descend(self, w: Tensor, curvature: Tensor, rows: Tensor, options: OptimiserConfig) -> Optimum:
        """Minimise from w [A, W] in units in which the curvature [A, W, W] is the identity."""
        root = root_of_inverse(self._apart(curvature)).masked_fill(self.held[:, None], 0.0)

        def place(x: Tensor, some: Tensor) -> Tensor:
            return w[some] + (root[some] @ x.unsqueeze(-1)).squeeze(-1)

        found = minimise(lambda x, some: self.objective(place(x, some), rows[some]), torch.zeros_like(w), options)
        return replace(found, z=place(found.z, torch.arange(len(w))))

    @torch.no_grad()
    def with_evident_noise(self, w: Tensor, curvature: Tensor) -> Tensor:
        """w [B, W] with σ² = residuals² / (n − γ), where γ of the unknowns are determined by the n data."""
        data, space = self.forward.observations, self.forward.model.space
        root = root_of_inverse(self._apart(curvature))
        # The prior's precision is one: what is left of a variance of one is not determined.
        left = root.square().sum(-1).clamp_max(1.0)
        determined = (1 - left)[:, ~self.held].sum(-1)
        outcome = self.forward.run(w.unsqueeze(0), torch.arange(len(w)))
        off = torch.where(data.mask, data.values - outcome.outputs[0], 0.0).square().sum(-1)
        count = data.mask.sum(-1).to(off)
        if self.forward.model.likelihood.options.shared:
            off, count = off.sum(-1, keepdim=True), count.sum(-1, keepdim=True)
        free = count * (1 - determined.unsqueeze(-1) / count.sum(-1, keepdim=True))
        sd = (off / free.clamp_min(1.0)).sqrt()
        parameter = space["noise"]
        z = parameter.prior.whiten(sd)[:, list(parameter.free)].clamp(-FURTHEST, FURTHEST)
        known = (count > 0)[:, list(parameter.free)] & outcome.ok[0].unsqueeze(-1)
        place, changed = space.slice_of("noise"), w.clone()
        changed[:, place] = torch.where(known, z, w[:, place])
        return changed

    def _apart(self, curvature: Tensor) -> Tensor:
        """The curvature with what is held cut off from the rest."""
        kept = ~self.held
        both = kept.unsqueeze(-1) & kept
        return torch.where(both, curvature, torch.eye(len(kept), dtype=curvature.dtype))
