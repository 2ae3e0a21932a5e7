"""Draws of linear fits beside long chains of Hamiltonian Monte Carlo on the same density.

The instances are the first of each design of `calibration_designs`, and those of its first ones whose weights have the
heaviest tail. The distance is Wasserstein's (W1) between the marginal distributions of each unknown and of the force at
five times, in deviations of the chains. Chains of this length have an error of their own: that between halves of them
stands beside.
Shapes: `B` instances, `C` chains, `K` states kept, `n` unknowns, `Q` times.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.calibration_designs import DESIGNS, RANKED_TIMES, drawn
from benchmarks.goals import at_most
from distlfm.inference.base import Mixture
from distlfm.inference.collapsed import CollapsedPosterior
from distlfm.inference.fit import InferenceConfig, fit_instances
from distlfm.inference.optimise import Objective, evaluate

INSTANCES, WORST = 24, 2
"""Instances fitted of each design, of which the first and those of the heaviest tail are compared."""

CHAINS, WARM, KEPT, STEPS = 16, 60, 400, (4, 20)
FARTHEST, AGREED = 0.15, 1.05
LEVELS = torch.linspace(0.0, 1.0, 401, dtype=torch.float64)[1::2]
FORCES = 320
"""States of the chains over which the force is averaged."""


def run(quick: bool = False) -> dict[str, Any]:
    """Compare every design; one figure for the unknowns, one for the force, one for the chains' agreement."""
    count, kept = (4, 40) if quick else (INSTANCES, KEPT)
    figures: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name in DESIGNS:
        model, instances = drawn(name, count)
        results = fit_instances(model, [one.blind() for one in instances], InferenceConfig(grid_points=5))
        heavy = np.argsort([-one.tail for one in results])[:WORST]
        chosen = list(dict.fromkeys([0, *map(int, heavy)]))
        found = [_compared(results[i].posterior, results[i].row, kept) for i in chosen]
        agreement = max(one["R-hat"] for one in found)
        figures[f"{name}: R-hat of the chains, largest"] = at_most(agreement, AGREED)
        for what in ("unknowns", "force"):
            figures[f"{name}: W1 of {what}, mean"] = at_most(float(np.mean([one[what] for one in found])), FARTHEST)
        rest[name] = {
            instances[i].id: {"tail": results[i].tail, "effective draws": results[i].effective_draws, **one}
            for i, one in zip(chosen, found, strict=True)
        }
    return {"figures": figures, "instances": rest}


def _compared(posterior: Any, row: int, kept: int) -> dict[str, float]:
    """Distances of one instance's draws from chains on the density of its unknowns."""
    assert isinstance(posterior, CollapsedPosterior)
    marginal, unknowns = posterior.marginal, posterior.unknowns()
    proposals, weights = unknowns.proposals[:, row], unknowns.weights[:, row]
    centred = proposals - weights @ proposals
    root = torch.linalg.cholesky((weights * centred.T) @ centred)
    starts = posterior.draws[torch.linspace(0, len(posterior.draws) - 1, CHAINS).long(), row]

    def objective(z: Tensor, rows: Tensor) -> Tensor:
        return marginal.negative(z, torch.full_like(rows, row))

    states = chains(objective, starts, root, kept)
    agreement, flat = r_hat(states), states.flatten(0, 1)
    sd = flat.std(0)
    order = proposals.sort(0)
    below = weights[order.indices].cumsum(0)
    own = torch.stack([_quantiles(order.values[:, i], below[:, i]) for i in range(flat.shape[1])], -1)
    first, last = (part.flatten(0, 1).quantile(LEVELS, 0) for part in states.chunk(2))
    away = (own - flat.quantile(LEVELS, 0)).abs().mean(0) / sd
    times = posterior.observations.times[row]
    asked = times[torch.linspace(0, len(times) - 1, RANKED_TIMES).long()].unsqueeze(0)
    some = flat[torch.linspace(0, len(flat) - 1, FORCES).long()]
    with torch.no_grad():
        forces = [
            posterior.predict(torch.tensor([row]), asked).force,
            _force(marginal, some, row, asked),
        ]
    levels = torch.stack([torch.stack([one.quantile(float(level)) for level in LEVELS[::4]]) for one in forces])
    force = (levels[0] - levels[1]).abs().mean(0) / forces[1].variance.sqrt()
    return {
        "unknowns": float(away.mean()),
        "unknowns, worst": float(away.max()),
        "force": float(force.mean()),
        "force, worst": float(force.max()),
        "halves of the chains": float(((first - last).abs().mean(0) / sd).mean()),
        "R-hat": float(agreement.max()),
    }


def _force(marginal: Any, z: Tensor, row: int, times: Tensor) -> Mixture:
    found = marginal.posterior(z, torch.full((len(z),), row), times.expand(len(z), -1))
    return Mixture(found.force_mean.unsqueeze(1), found.force_var.unsqueeze(1))


def _quantiles(values: Tensor, below: Tensor) -> Tensor:
    """Values at LEVELS of sorted values with the cumulative weights `below`."""
    return values[torch.searchsorted(below, LEVELS * below[-1]).clamp_max(len(values) - 1)]


def r_hat(states: Tensor) -> Tensor:
    """R-hat [n] of states [K, C, n], each chain halved."""
    halves = torch.cat(states[: len(states) // 2 * 2].chunk(2), 1)
    count, within, between = len(halves), halves.var(0).mean(0), halves.mean(0).var(0)
    return torch.sqrt((count - 1) / count + between / within)


def chains(objective: Objective, starts: Tensor, root: Tensor, kept: int, seed: int = 0) -> Tensor:
    """States [K, C, n] of chains that begin at `starts` [C, n], with lengths measured by root [n, n]."""
    stream, rows = torch.Generator().manual_seed(seed), torch.zeros(len(starts), dtype=torch.long)
    place, states, length = starts, [], 0.3
    value, slope = evaluate(objective, place, rows)
    for number in range(WARM + kept):
        momentum = torch.randn(place.shape, generator=stream, dtype=torch.float64)
        steps = int(torch.randint(*STEPS, (), generator=stream))
        energy = value + 0.5 * momentum.square().sum(-1)
        ahead, level, down = place, value, slope
        for _ in range(steps):
            momentum = momentum - 0.5 * length * down @ root
            ahead = ahead + length * momentum @ root.T
            level, down = evaluate(objective, ahead.clamp(-12, 12), rows)
            momentum = momentum - 0.5 * length * down @ root
        chance = (energy - level - 0.5 * momentum.square().sum(-1)).clamp_max(0).exp().nan_to_num(0.0)
        taken = torch.rand(len(starts), generator=stream, dtype=torch.float64) < chance
        place, slope = (torch.where(taken.unsqueeze(-1), *pair) for pair in ((ahead, place), (down, slope)))
        value = torch.where(taken, level, value)
        if number < WARM:
            length *= float(np.exp(0.3 * (float(chance.mean()) - 0.8)))
        else:
            states.append(place)
    return torch.stack(states)
