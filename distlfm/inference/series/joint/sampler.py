"""Many short chains of Hamiltonian Monte Carlo an instance, in coordinates in which its posterior is nearly round.

Chains begin at draws from the Gaussians of the modes. Step sizes and coordinates are adapted in rounds of warm-up, from
all chains of an instance together; the draws that count are made with both held fast, so that they are valid under the
exact density. Chains run on where they have not mixed, each instance by itself.

Shapes: `C` chains, `A` instances, `W` unknowns, `S` draws, `K` modes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from distlfm.gp.linalg import safe_cholesky
from distlfm.inference.series.joint.density import Density
from distlfm.inference.series.joint.modes import Modes
from distlfm.inference.series.joint.waves import Circle
from distlfm.runtime.reporting import stepped

LENGTHS = (0.9, 1.9)
"""Lengths of trajectories, in deviations, between which each is drawn: a quarter of a turn of a Gaussian is π/2."""

ACCEPTED = 0.7
"""Share of proposals that are accepted, which step sizes are adapted to."""

FIRST_STEP, SHORTEST_STEP, LONGEST_STEP = 0.25, 0.005, 0.9
BELOW, NEARER = 10.0, 7
"""Chains begin no further below their mode than one for each unknown and this; how often their way there is halved."""

MOST_LEAPS = 20
"""Steps of one trajectory; where they are very short, more of the shorter trajectories are needed."""

KERNEL_MOVES, KERNEL_STEPS = 8, (0.03, 0.6)
"""Moves of the kernels' parameters after each trajectory, and how long they are, in deviations of their priors."""

JITTER = 0.2
"""Step sizes of single trajectories lie within this share of the adapted one."""

LEAST_EVIDENCE = math.log(1e-3)
"""Modes with less evidence than this, relative to the best, get no chain."""


@dataclass(frozen=True)
class SamplerConfig:
    """chains: of an instance. warm: transitions of each round of warm-up. kept: transitions that count.

    extensions: how often chains that have not mixed run on, for as long as before. enough: effective draws.
    """

    chains: int = 32
    warm: tuple[int, ...] = (6, 8, 10, 10)
    kept: int = 24
    extensions: int = 3
    enough: float = 100.0


@dataclass
class _Chains:
    """w, gradient: [C, A, W]; value: [C, A]; root: [A, W, W]; log_step: [A]."""

    w: Tensor
    value: Tensor
    gradient: Tensor
    root: Tensor
    log_step: Tensor


@dataclass(frozen=True)
class Sampled:
    """draws: [S, A, W]; effective: [A], independent draws that they are worth; worst: [A], those of the worst unknown.

    accepted: [A]; step: [A].
    """

    draws: Tensor
    effective: Tensor
    worst: Tensor
    accepted: Tensor
    step: Tensor


class Streams:
    """Random numbers of each instance, from its own stream, whatever its neighbours."""

    def __init__(self, seeds: Sequence[int], active: Tensor) -> None:
        self.streams = [torch.Generator().manual_seed(seed) for seed in seeds]
        self.active = active

    def normal(self, rows: Tensor, count: int) -> Tensor:
        """[count, A, W], zero for unknowns that do not count."""
        found = torch.zeros(len(rows), count, self.active.shape[-1], dtype=torch.float64)
        for place, i in enumerate(rows.tolist()):
            mine = self.active[i]
            found[place, :, mine] = torch.randn(count, int(mine.sum()), generator=self.streams[i], dtype=torch.float64)
        return found.transpose(0, 1)

    def uniform(self, rows: Tensor, *shape: int) -> Tensor:
        """[*shape, A]."""
        parts = [torch.rand(shape, generator=self.streams[i], dtype=torch.float64) for i in rows.tolist()]
        return torch.stack(parts, -1)


def shares(modes: Modes) -> Tensor:
    """Weights [K, A] of the modes by their evidence; those found several times count once."""
    count = len(modes.w)
    weight = modes.evidence.clone()
    for k in range(1, count):
        for j in range(k):
            away = torch.linalg.solve_triangular(modes.root[j], (modes.w[k] - modes.w[j]).unsqueeze(-1), upper=False)
            same = torch.isfinite(weight[j]) & (away.square().sum((-2, -1)) < 1.0)
            weight[k] = torch.where(same, -torch.inf, weight[k])
    best = weight.amax(0)
    weight = torch.where(weight - best < LEAST_EVIDENCE, -torch.inf, weight)
    return torch.softmax(torch.where(torch.isfinite(best), weight, 0.0), 0)


@torch.no_grad()
def sample(density: Density, modes: Modes, streams: Streams, options: SamplerConfig) -> Sampled:
    """Sample all A instances."""
    everyone = torch.arange(len(density.data))
    chains = _begin(density, modes, streams, everyone, options)
    for number, count in enumerate(options.warm):
        stepped("warm-up", number + 1, len(options.warm))
        seen = _run(density, chains, streams, everyone, count, adapt=True)[0]
        _rescue(chains, streams, everyone, density.active)
        chains.root = _adapted(seen[count // 2 :], chains.root, density.active)
    draws, accepted = _run(density, chains, streams, everyone, options.kept, adapt=False)
    effective, worst = mixing(draws, density.num_free)
    kept = list(draws.unbind(2))
    for extension in range(options.extensions):
        rows = torch.nonzero(effective < options.enough).squeeze(-1)
        if len(rows) == 0:
            break
        stepped("longer chains", extension + 1, options.extensions)
        part = _Chains(
            chains.w[:, rows],
            chains.value[:, rows],
            chains.gradient[:, rows],
            chains.root[rows],
            chains.log_step[rows],
        )
        longest = max(len(kept[i]) for i in rows.tolist())
        more, _ = _run(density.rows(rows), part, streams, rows, longest, adapt=False)
        for place, i in enumerate(rows.tolist()):
            kept[i] = torch.cat([kept[i], more[:, :, place]])
            found = mixing(kept[i].unsqueeze(2), density.num_free)
            effective[i], worst[i] = found[0][0], found[1][0]
        chains.w[:, rows], chains.value[:, rows], chains.gradient[:, rows] = part.w, part.value, part.gradient
    size = options.kept * options.chains
    thinned = [one.flatten(0, 1)[_spread(len(one), options)] for one in kept]
    assert all(len(one) == size for one in thinned)
    return Sampled(torch.stack(thinned, 1), effective, worst, accepted, chains.log_step.exp())


def _spread(length: int, options: SamplerConfig) -> Tensor:
    """Which of `length` transitions of all chains are kept: as many as of chains that never ran on, evenly."""
    every = length // options.kept
    return (
        (torch.arange(options.kept).unsqueeze(-1) * every + every - 1)
        .mul(options.chains)
        .add(torch.arange(options.chains))
        .flatten()
    )


def _begin(density: Density, modes: Modes, streams: Streams, rows: Tensor, options: SamplerConfig) -> _Chains:
    weight = shares(modes)
    offset = streams.uniform(rows)
    marks = (torch.arange(options.chains).unsqueeze(-1) + offset) / options.chains
    chosen = torch.searchsorted(weight.cumsum(0).T.contiguous(), marks.T.contiguous()).T.clamp_max(len(weight) - 1)
    noise = streams.normal(rows, options.chains)
    middle, away = torch.empty_like(noise), torch.empty_like(noise)
    for k in range(len(weight)):
        mine = (chosen == k).unsqueeze(-1)
        middle = torch.where(mine, modes.w[k], middle)
        away = torch.where(mine, (noise.transpose(0, 1) @ modes.root[k].mT).transpose(0, 1), away)
    # Where the density is bent, a Gaussian's draws lie far below it: those come nearer to the mode.
    least = density.log_density(middle) - density.active.sum(-1) - BELOW
    part = torch.ones_like(least)
    for _ in range(NEARER):
        short = ~(density.log_density(middle + part.unsqueeze(-1) * away) >= least)
        if not bool(short.any()):
            break
        part = torch.where(short, 0.5 * part, part)
    w = middle + part.unsqueeze(-1) * away
    best = weight.argmax(0)
    value, gradient = density.with_gradient(w)
    step = torch.full((len(rows),), math.log(FIRST_STEP), dtype=w.dtype)
    return _Chains(w, value, gradient, modes.root[best, rows], step)


def _run(
    density: Density, chains: _Chains, streams: Streams, rows: Tensor, count: int, *, adapt: bool
) -> tuple[Tensor, Tensor]:
    """`count` transitions of all chains, which are changed; returns where they were, [count, C, A, W], and the share

    of accepted proposals [A]. rows: the instances' numbers in `streams`.
    """
    seen, accepted = [], []
    num_chains = len(chains.w)
    for number in range(count):
        momentum = streams.normal(rows, num_chains)
        drawn = streams.uniform(rows, 2 * num_chains + 1)
        jitter = 1 + JITTER * (2 * drawn[:num_chains] - 1)
        length = LENGTHS[0] + (LENGTHS[1] - LENGTHS[0]) * drawn[-1]
        share = _transition(density, chains, momentum, jitter, drawn[num_chains:-1], length)
        accepted.append(share)
        if adapt:
            chains.log_step = (chains.log_step + 0.8 * (share - ACCEPTED)).clamp(
                math.log(SHORTEST_STEP), math.log(LONGEST_STEP)
            )
        _interweave(density, chains, streams, rows)
        seen.append(chains.w.clone())
        stepped("transition", number + 1, count)
    return torch.stack(seen), torch.stack(accepted).mean(0)


def _transition(
    density: Density, chains: _Chains, momentum: Tensor, jitter: Tensor, uniform: Tensor, length: Tensor
) -> Tensor:
    """One trajectory of each chain; returns the mean probability [A] of being accepted."""
    step = chains.log_step.exp()
    count = (length / step).ceil().clamp(1, MOST_LEAPS).long()
    size = (step * jitter).unsqueeze(-1)
    root = chains.root

    def across(x: Tensor, matrix: Tensor) -> Tensor:
        """x [C, A, W] times the matrix of each instance."""
        return (x.transpose(0, 1) @ matrix).transpose(0, 1)

    w, gradient, value = chains.w.clone(), chains.gradient.clone(), chains.value.clone()
    p = momentum + 0.5 * size * across(gradient, root)
    for leap in range(int(count.max())):
        rows = torch.nonzero(count > leap).squeeze(-1)
        part = density.rows(rows)
        w[:, rows] += across(size[:, rows] * p[:, rows], root[rows].mT)
        value[:, rows], gradient[:, rows] = part.with_gradient(w[:, rows])
        # The last kick of a trajectory is half a kick.
        kick = torch.where(count[rows] - 1 > leap, 1.0, 0.5)[None, :, None]
        p[:, rows] += kick * size[:, rows] * across(gradient[:, rows], root[rows])
    change = value - chains.value - 0.5 * (p.square().sum(-1) - momentum.square().sum(-1))
    chance = torch.where(torch.isfinite(change), change.clamp_max(0.0).exp(), 0.0)
    taken = uniform < chance
    chains.w = torch.where(taken.unsqueeze(-1), w, chains.w)
    chains.gradient = torch.where(taken.unsqueeze(-1), gradient, chains.gradient)
    chains.value = torch.where(taken, value, chains.value)
    return chance.mean(0)


def _interweave(density: Density, chains: _Chains, streams: Streams, rows: Tensor) -> None:
    """Move the kernels' parameters of all chains while their forces stay as they are (Yu & Meng 2011).

    Where data hold the force fast, its amplitudes let the parameters move little; its values do. No solve is needed.
    """
    waves, kinds = density.waves, [one.kind for one in density.model.space.parameters for _ in one.free]
    places = [i for i, kind in enumerate(kinds) if kind == "kernel"]
    if not places or not isinstance(waves, Circle):
        return
    count = len(chains.w)
    drawn = streams.uniform(rows, KERNEL_MOVES, 2, count)
    noise = streams.normal(rows, KERNEL_MOVES * count).unflatten(0, (KERNEL_MOVES, count))
    z, amplitudes = (one.clone() for one in density.split(chains.w))
    counted = density.waves.active.unsqueeze(1)

    def log_roots(at: Tensor) -> Tensor:
        return torch.where(counted, waves.log_roots(density.model.space.unpack(at)), 0.0)

    here = log_roots(z)
    for (size, chance), direction in zip(drawn, noise, strict=True):
        length = KERNEL_STEPS[0] * (KERNEL_STEPS[1] / KERNEL_STEPS[0]) ** size
        moved = z.clone()
        moved[..., places] += length.unsqueeze(-1) * direction[..., places]
        there = log_roots(moved)
        scaled = amplitudes * (here - there).exp()
        before = 0.5 * (z.square().sum(-1) + amplitudes.square().sum((-2, -1))) + here.sum((-2, -1))
        after = 0.5 * (moved.square().sum(-1) + scaled.square().sum((-2, -1))) + there.sum((-2, -1))
        taken = chance.log() < before - after
        z = torch.where(taken.unsqueeze(-1), moved, z)
        amplitudes, here = (
            torch.where(taken[..., None, None], new, old) for new, old in ((scaled, amplitudes), (there, here))
        )
    chains.w = torch.cat([z, amplitudes.flatten(-2)], -1)
    chains.value, chains.gradient = density.with_gradient(chains.w)


def _rescue(chains: _Chains, streams: Streams, rows: Tensor, active: Tensor) -> None:
    """Move chains that lie far below the others, in warm-up only, to where one of the others is."""
    middle = chains.value.median(0).values
    lost = chains.value < middle - 3 * active.sum(-1).sqrt() - 10
    pick = (streams.uniform(rows, len(chains.w)) * len(chains.w)).long()
    if not bool(lost.any()):
        return
    order = torch.argsort(chains.value, dim=0, descending=True)[: len(chains.w) // 2]
    source = order.gather(0, pick % len(order))
    for name in ("w", "gradient"):
        one = getattr(chains, name)
        setattr(chains, name, torch.where(lost.unsqueeze(-1), one.gather(0, source.unsqueeze(-1).expand_as(one)), one))
    chains.value = torch.where(lost, chains.value.gather(0, source), chains.value)


def _adapted(seen: Tensor, before: Tensor, active: Tensor) -> Tensor:
    """Root [A, W, W] of the covariance of draws [S, C, A, W], drawn towards that before."""
    flat = seen.flatten(0, 1).transpose(0, 1)  # [A, S·C, W]
    centred = flat - flat.mean(1, keepdim=True)
    covariance = centred.mT @ centred / centred.shape[1]
    trust = (centred.shape[1] / (centred.shape[1] + 3.0 * active.sum(-1)))[:, None, None]
    factor, ok = safe_cholesky(trust * covariance + (1 - trust) * before @ before.mT)
    return torch.where(ok[:, None, None], factor, before)


def mixing(draws: Tensor, num_free: int) -> tuple[Tensor, Tensor]:
    """Effective draws [A] of draws [S, C, A, W], and those of the unknown that mixes worst.

    Chains are independent, so the scatter of their means says how much one chain's draws are worth (Gelman & Rubin). It
    is averaged over the n parameters, as that of one unknown says little with few chains.
    """
    length, count = draws.shape[:2]
    total = draws.flatten(0, 1).var(0)
    between = draws.mean(0).var(0)
    share = torch.where(total > 1e-300, between / total.clamp_min(1e-300), 0.0)
    most = float(length * count)
    mean = share[:, : max(1, num_free)].mean(-1)
    return (count / mean.clamp_min(1e-9)).clamp_max(most), (count / share.amax(-1).clamp_min(1e-9)).clamp_max(most)
