"""Chains of nutpie's NUTS over a density of torch, which all of them ask at once.

A density of small matrices costs about as much at eight places as at one. So each chain runs in a thread of its own and
waits until the others have asked too; one call answers all of them. A chain keeps its row of that call, and rows do not
depend on each other, so a seed repeats its draws.

Each chain begins at a random place of the prior. From there it first goes downhill by itself, and then moves in units
of the curvature where it arrived: what is sampled is the same, and far fewer evaluations are needed than from afar.

Shapes: `C` chains, `N` draws of each, `W` unknowns.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from distlfm.config import Config
from distlfm.inference.collapsed import START_SPREAD
from distlfm.inference.curvature import find_modes, hessian, root_of_inverse
from distlfm.inference.optimise import Objective, OptimiserConfig, evaluate
from distlfm.instance import FloatArray
from distlfm.optional import require
from distlfm.runtime.reporting import during, stepped

EXTRA = "reference"

TRIES = 16
"""Random places of which a chain takes the first with a finite density."""

DOWNHILL = OptimiserConfig(iterations=40, rounds=2, distance=0.3)


class ReferenceConfig(Config):
    """How long chains are.

    chains: independent ones, begun at random places of the prior; eight cost little more than one.
    warmup: steps in which each finds its step size and what is left of the posterior's shape; they are not kept.
    draws: steps of each that are kept.
    acceptance: share of moves to be accepted; closer to one takes shorter steps, which narrow valleys ask for.
    depth: each step takes at most 2 to this power evaluations.
    """

    chains: int = Field(default=8, ge=2, le=64)
    warmup: int = Field(default=300, ge=10)
    draws: int = Field(default=500, ge=4)
    acceptance: float = Field(default=0.85, gt=0, lt=1)
    depth: int = Field(default=8, ge=1, le=12)


@dataclass(frozen=True)
class Chains:
    """Draws of an unnormalised density.

    draws: [C, N, W]; log_density: [C, N]; astray: the share of draws at which the integrator lost its energy;
    rhat, effective: of the unknown, or the density, that is worst, by ranks (Vehtari et al. 2021).
    """

    draws: Tensor
    log_density: Tensor
    astray: float
    rhat: float
    effective: float

    @property
    def turns(self) -> Tensor:
        """Draws [N·C, W], one of each chain in turn."""
        return self.draws.transpose(0, 1).flatten(0, 1)

    @property
    def best(self) -> Tensor:
        """The draw [1, W] of the highest density."""
        return self.draws.flatten(0, 1)[self.log_density.flatten().argmax()].unsqueeze(0)

    @property
    def begun(self) -> bool:
        """Whether every chain found a place where the density is finite."""
        return bool(torch.isfinite(self.log_density).all())

    @staticmethod
    def resting(size: int, options: ReferenceConfig, log_density: float) -> Chains:
        """Chains that stay at the prior's middle: there is nothing to learn, or no place to begin at."""
        count = (options.chains, options.draws)
        density = torch.full(count, log_density, dtype=torch.float64)
        return Chains(torch.zeros(*count, size, dtype=torch.float64), density, 0.0, 1.0, float(density.numel()))


def sample(
    negative: Objective, size: int, options: ReferenceConfig, seed: int, held: Sequence[int] | range = ()
) -> Chains:
    """Draw from exp(−negative) of `size` unknowns.

    negative: of places [A, W] and rows [A], which are all 0. Unknowns are about standard normal before the data.
    held: unknowns that stand still while chains go downhill, as noise that has no mode of its own.
    """
    nutpie = require("nutpie", EXTRA)
    if not size:
        value = negative(torch.zeros(1, 0, dtype=torch.float64), torch.zeros(1, dtype=torch.long))
        return Chains.resting(size, options, -float(value))
    seeds = [int(one.generate_state(1, np.uint64)[0]) for one in np.random.SeedSequence(seed).spawn(options.chains)]
    units = _units(negative, size, seeds, torch.tensor([i in held for i in range(size)]))
    if units is None:
        return Chains.resting(size, options, -math.inf)
    inbox: SimpleQueue[tuple[int, FloatArray | None]] = SimpleQueue()
    answers: list[SimpleQueue[tuple[float, FloatArray] | None]] = [SimpleQueue() for _ in seeds]
    traces: list[Any] = [None] * len(seeds)
    over = threading.Event()

    def run(chain: int) -> None:
        def density(place: FloatArray) -> tuple[float, FloatArray]:
            inbox.put((chain, place.copy()))
            answer = None if over.is_set() else answers[chain].get()
            # Once the work is over, chains end in a density that costs nothing: an error in one would be a panic there.
            return (-0.5 * float(place @ place), -place) if answer is None else answer

        try:
            traces[chain] = nutpie.sample(
                _compiled(size, density),
                chains=1,
                cores=1,
                seed=seeds[chain],
                tune=options.warmup,
                draws=options.draws,
                low_rank_modified_mass_matrix=True,
                progress_bar=False,
                save_warmup=False,
                target_accept=options.acceptance,
                maxdepth=options.depth,
            )
        except RuntimeError:  # what Rust makes of every failure, such as no place to start from
            traces[chain] = None
        finally:
            inbox.put((chain, None))

    threads = [threading.Thread(target=run, args=(chain,), daemon=True) for chain in range(len(seeds))]
    for thread in threads:
        thread.start()
    try:
        _serve(lambda x, rows: negative(units.places(x, rows), _first(rows)), inbox, answers, size)
    finally:
        over.set()
        for queue in answers:
            queue.put(None)
        for thread in threads:
            thread.join()
    if any(trace is None for trace in traces):
        return Chains.resting(size, options, -math.inf)
    x = torch.from_numpy(np.stack([trace.posterior["w"].to_numpy()[0] for trace in traces], 1))
    draws = units.places(x, torch.arange(len(seeds))).transpose(0, 1).contiguous()
    log_density, astray = (
        np.stack([trace.sample_stats[name].to_numpy()[0] for trace in traces]) for name in ("logp", "diverging")
    )
    met = agreement(np.concatenate([draws.numpy(), log_density[..., None]], -1))
    return Chains(draws, torch.from_numpy(log_density), float(astray.mean()), *met)


@dataclass(frozen=True)
class _Units:
    """Where chains count from, anchor [C, W], and what they count in, root [C, W, W]."""

    anchor: Tensor
    root: Tensor

    def places(self, x: Tensor, rows: Tensor) -> Tensor:
        """Places [..., A, W] of x [..., A, W] in the units of the chains `rows` [A]."""
        return self.anchor[rows] + torch.einsum("aij,...aj->...ai", self.root[rows], x)


def _first(rows: Tensor) -> Tensor:
    """The instance of each chain: there is one."""
    return torch.zeros_like(rows)


def _units(negative: Objective, size: int, seeds: Sequence[int], held: Tensor) -> _Units | None:
    """What chains count in; None if one finds no place to begin at."""
    streams = [torch.Generator().manual_seed(seed >> 1) for seed in seeds]
    shape = (TRIES, size)
    tried = START_SPREAD * torch.stack([torch.randn(shape, generator=one, dtype=torch.float64) for one in streams])
    with torch.no_grad():
        density = negative(tried.flatten(0, 1), torch.zeros(TRIES * len(seeds), dtype=torch.long))
    usable = torch.isfinite(density).unflatten(0, (-1, TRIES))
    if not bool(usable.any(-1).all()):
        return None
    chains = torch.arange(len(seeds))
    start = tried[chains, usable.int().argmax(-1)]

    def objective(w: Tensor, rows: Tensor) -> Tensor:
        return negative(torch.where(held, start[rows], w), _first(rows))

    with during("start of the chains"):
        found = find_modes(objective, start, DOWNHILL)
        curvature = hessian(objective, found.z, chains)
    apart = held.unsqueeze(-1) | held
    curvature = torch.where(apart, torch.eye(size, dtype=torch.float64), curvature)
    return _Units(torch.where(held, start, found.z), root_of_inverse(curvature))


def _serve(
    negative: Objective,
    inbox: SimpleQueue[tuple[int, FloatArray | None]],
    answers: list[SimpleQueue[tuple[float, FloatArray] | None]],
    size: int,
) -> None:
    """Answer chains until all have ended. The row of one that has ended stays: others keep theirs to the last bit."""
    places = torch.zeros(len(answers), size, dtype=torch.float64)
    rows, running, calls = torch.arange(len(answers)), len(answers), 0
    while True:
        waiting: list[int] = []
        while len(waiting) < running:
            chain, place = inbox.get()
            if place is None:
                running -= 1
            else:
                places[chain] = torch.from_numpy(place)
                waiting.append(chain)
        if not running:
            return
        calls += 1
        stepped("evaluation", calls)
        value, slope = evaluate(negative, places, rows)
        finite = torch.isfinite(value) & torch.isfinite(slope).all(-1)
        found = torch.where(finite, -value, -torch.inf).numpy()
        downhill = torch.where(finite.unsqueeze(-1), -slope, 0.0).numpy()
        for chain in waiting:
            answers[chain].put((float(found[chain]), downhill[chain]))


def _compiled(size: int, density: Callable[[FloatArray], tuple[float, FloatArray]]) -> Any:
    """A density as nutpie takes it."""

    def start(seed: int) -> FloatArray:
        return np.random.default_rng(seed).standard_normal(size)

    return require("nutpie.compiled_pyfunc", EXTRA).from_pyfunc(
        size,
        lambda: density,
        lambda *_: lambda place: {"w": place},
        ["float64"],
        [(size,)],
        ["w"],
        make_initial_point_fn=start,
    )


def agreement(draws: FloatArray) -> tuple[float, float]:
    """The largest R-hat of columns, and the fewest draws that one is worth, in bulk and tails; draws: [C, N, W]."""
    arviz = require("arviz", EXTRA)
    data = arviz.convert_to_dataset({"w": draws})
    effective = [arviz.ess(data, method=method)["w"].to_numpy() for method in ("bulk", "tail")]
    rhat = arviz.rhat(data)["w"].to_numpy()
    return float(np.max(rhat)), float(np.min(effective))
