"""Fit linear mechanisms: find the mode of the unknowns by L-BFGS, then their posterior, the force integrated out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.inference.base import Fit, Mixture, Posterior, Predicted, Unknowns
from distlfm.inference.curvature import find_modes
from distlfm.inference.marginal import Marginal
from distlfm.inference.optimise import Objective, OptimiserConfig, Optimum, Status
from distlfm.inference.posterior import Coordinates, PosteriorConfig, infer
from distlfm.runtime.reporting import during, stepped

START_SPREAD = 0.7
"""Standard deviation, in units of the prior's, of the random starts after the first, which is the prior's middle."""


@dataclass(frozen=True)
class Starts:
    """How many starts the optimiser makes, and whether the first one is random too."""

    count: int = 1
    random: bool = False


ONE_START = Starts()


class CollapsedPosterior(Posterior):
    """Gaussian given z, averaged over draws of z."""

    def __init__(self, method: str, marginal: Marginal, draws: Tensor, unknowns: Unknowns) -> None:
        self.method = method
        self.marginal, self.draws = marginal, draws
        self.at_once = marginal.at_once
        self.model, self.observations = marginal.model, marginal.observations
        self._unknowns = unknowns

    def unknowns(self) -> Unknowns:
        return self._unknowns

    def predict(self, rows: Tensor, times: Tensor) -> Predicted:
        num_draws = len(self.draws)
        z, every, at = (
            self.draws[:, rows].flatten(0, 1),
            rows.repeat(num_draws),
            times.repeat(num_draws, *[1] * (times.dim() - 1)),
        )
        chunk = max(1, self.marginal.call_bytes // self.marginal.row_bytes(times.shape[1]))
        parts = []
        for i, some in enumerate_chunks(every, chunk):
            stepped("prediction", i, len(every))
            with during("prediction", i, len(every)):
                parts.append(self.marginal.posterior(z[i : i + chunk], some, at[i : i + chunk]))

        def gather(name: str) -> Tensor:
            joined: Tensor = torch.cat([getattr(part, name) for part in parts]).unflatten(0, (num_draws, len(rows)))
            return joined

        return Predicted(
            Mixture(gather("force_mean"), gather("force_var")), Mixture(gather("output_mean"), gather("output_var"))
        )

    def draw(self, rows: Tensor, times: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        generator = torch.Generator().manual_seed(seed)
        z = self.draws[torch.arange(count) % len(self.draws)][:, rows]
        size = max(1, self.marginal.call_bytes // (len(rows) * self.marginal.row_bytes(times.shape[1])))
        parts = []
        for some in z.split(size if self.marginal.draws_together else 1):
            repeats = len(some)
            every, at = rows.repeat(repeats), times.repeat(repeats, *[1] * (times.dim() - 1))
            force, outputs = self.marginal.draw(some.flatten(0, 1), every, at, generator)
            parts.append((force.unflatten(0, (repeats, -1)), outputs.unflatten(0, (repeats, -1))))
        return torch.cat([force for force, _ in parts]), torch.cat([outputs for _, outputs in parts]), z

    def state(self) -> dict[str, Tensor]:
        return {
            "draws": self.draws.movedim(0, 1),
            "proposals": self._unknowns.proposals.movedim(0, 1),
            "weights": self._unknowns.weights.movedim(0, 1),
            **self.marginal.state(),
        }


def enumerate_chunks(rows: Tensor, size: int) -> list[tuple[int, Tensor]]:
    """(start, rows[start : start + size]) for all of rows."""
    return [(i, rows[i : i + size]) for i in range(0, len(rows), size)]


def restore(method: str, marginal: Marginal, state: dict[str, Tensor]) -> CollapsedPosterior:
    """The posterior whose `state` this is."""
    unknowns = Unknowns(state["proposals"].movedim(1, 0), state["weights"].movedim(1, 0))
    return CollapsedPosterior(method, marginal, state["draws"].movedim(1, 0), unknowns)


def fit_at(method: str, marginal: Marginal, best: Optimum, seeds: Sequence[int], options: PosteriorConfig) -> Fit:
    """The posterior around the modes of a marginal's instances."""
    model = marginal.model
    found = infer(marginal.negative, best.z, seeds, options, Coordinates(model.space), marginal.further)
    return Fit(
        posterior=CollapsedPosterior(method, marginal, found.draws, Unknowns(found.proposals, found.weights)),
        bound=-best.value,
        status=best.status,
        iterations=best.iterations,
        effective=found.effective,
        trace=-best.trace,
        tail=found.tail,
    )


def best_of_starts(
    objective: Objective, seeds: Sequence[int], size: int, options: OptimiserConfig, where: Starts
) -> Optimum:
    """Minimise from the prior's middle and from random starts, all at once, and keep each instance's best."""
    num_instances, restarts = len(seeds), where.count
    starts = torch.zeros(restarts, num_instances, size, dtype=torch.float64)
    for b, seed in enumerate(seeds):
        stream = torch.Generator().manual_seed(seed)
        starts[:, b] = START_SPREAD * torch.randn(restarts, size, generator=stream, dtype=torch.float64)
    if not where.random:
        starts[0] = 0.0
    instance = torch.arange(num_instances).repeat(restarts)
    found = find_modes(lambda z, rows: objective(z, instance[rows]), starts.flatten(0, 1), options)
    value = found.value.reshape(restarts, num_instances)
    lost = found.status.reshape(restarts, num_instances) == Status.DIVERGED
    choice = torch.where(lost, torch.inf, value).argmin(0)
    return found.rows(choice * num_instances + torch.arange(num_instances))
